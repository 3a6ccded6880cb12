"""Which words of shared memory a block's threads race for."""


def find_the_race(accesses):
    """The words on which there is a race: no barrier decides which of two accesses comes first, and it matters.

    Two accesses race if they are to the same word, by different threads, between the same two barriers, and at least
    one of them is a store.

    accesses: of the threads of one block to its shared memory, a list of (thread, interval, kind, word) in no
        particular order. interval: how many barriers the thread has passed before. kind: "load" or "store".
    Returns the list of these words, in ascending order and each once.

    >>> find_the_race([(0, 0, "store", 7), (1, 0, "load", 7), (0, 1, "store", 9), (1, 2, "load", 9)])
    [7]
    """
    threads, stored = {}, set()
    for thread, interval, kind, word in accesses:
        threads.setdefault((word, interval), set()).add(thread)
        if kind == "store":
            stored.add((word, interval))
    return sorted({word for word, interval in stored if len(threads[word, interval]) > 1})
