"""What the explorers that go through a loop visit by visit share: their sizes, and the bytes up to each visit."""

LENGTHS = (4, 8, 12, 16, 20, 24)
BLOCKS = (2, 3, 4, 6, 8)


def visit_starts(events, begin, end, inner, outer):
    """Where visits begin in a machine's log: at the inner loop's load, or at the outer loop's loads just before it."""
    starts = []
    for index in range(begin, end):
        if (events[index].kind, events[index].tensor) == ("load", inner):
            while index > begin and events[index - 1].kind == "load" and events[index - 1].tensor in outer:
                index -= 1
            starts.append(index)
    return starts


def bytes_moved(events, ends, names):
    """tensor -> (bytes read, bytes written) of the log's first `end` events, for each of the ends: a tuple."""
    moved, done, steps = dict.fromkeys(names, (0, 0)), 0, []
    for end in ends:
        for event in events[done:end]:
            read, written = moved[event.tensor]
            is_load = event.kind == "load"
            moved = moved | {event.tensor: (read + event.n_bytes * is_load, written + event.n_bytes * (not is_load))}
        steps.append(moved)
        done = end
    return tuple(steps)
