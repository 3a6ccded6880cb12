"""Which element of a tile a thread copies in which step."""


def thread_map(thread, step, n_threads, rows, columns):
    """The element of a tile that one thread copies in one step: (row, column), or None if none is left for it.

    The threads of a block copy a tile together, one element a thread and step, and every element once. The tile is
    stored row after row. In a step, consecutive threads take consecutive elements, and the next step goes on where the
    last thread of the step before has stopped.

    thread: its number in the block, 0 to n_threads - 1. step: counted from 0. rows, columns: of the tile.

    >>> [thread_map(thread, 0, 4, rows=2, columns=3) for thread in range(4)]
    [(0, 0), (0, 1), (0, 2), (1, 0)]
    >>> [thread_map(thread, 1, 4, rows=2, columns=3) for thread in range(4)]
    [(1, 1), (1, 2), None, None]
    """
    element = step * n_threads + thread
    if element >= rows * columns:
        return None
    return element // columns, element % columns
