"""Which element of a tile a thread copies in which step."""

from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, show, single_finding


def thread_map(thread, step, n_threads, rows, columns):
    """The element of a tile that one thread copies in one step: (row, column), or None if none is left for it.

    The threads of a block copy a tile together. In each step, every thread copies one element, as long as there are
    any left. The tile is stored row after row: consecutive threads take consecutive elements, and the next step goes on
    with the element after the last one that was taken.

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


def takes_the_right_element(returned, thread, step, n_threads, rows, columns):
    tile = [(row, column) for row in range(rows) for column in range(columns)]
    right = dict(enumerate(tile)).get(step * n_threads + thread)
    taken = tuple(returned) if isinstance(returned, list | tuple) else returned
    if taken == right:
        return None
    if taken is not None and (not isinstance(taken, tuple) or len(taken) != 2):
        kind, text = "type", "the answer returned neither (row, column) nor None"
    elif right is None:
        kind, text = "beyond", "the elements before this one are all there are, so nothing is left"
    elif taken is None:
        kind, text = "nothing", "there is an element left for this thread"
    else:
        whose = f"element {tile.index(taken)}" if taken in tile else "no element"
        kind, text = "place", f"this is the place of {whose}"
    if kind != "type":
        text += f"; this thread's element is number {step * n_threads + thread} of {rows * columns}, counted from 0"
    part = ("the row", "the column")[taken[0] == right[0]] if kind == "place" else ""
    return single_finding(kind, text, show(returned), show(right), part)


check = Checks(thread_map, takes_the_right_element)


@st.composite
def copies(draw):
    n_threads, rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    steps = -(-rows * columns // n_threads)
    return draw(st.integers(0, n_threads - 1)), draw(st.integers(0, steps)), n_threads, rows, columns


check("the first step: consecutive threads take consecutive elements", [(0, 0, 3, 3, 3), (2, 0, 3, 3, 3)])
check("several rows in one step", [(3, 0, 6, 2, 3), (5, 0, 6, 3, 2), (40, 0, 64, 2, 36)])
check("later steps, of which each takes a row", [(1, 1, 4, 3, 4), (3, 2, 4, 3, 4)])
check("later steps, in which a row begins or ends", [(2, 1, 4, 4, 3), (1, 2, 2, 3, 4), (5, 1, 6, 4, 5)])
check("in the last step, nothing is left for some threads", [(1, 1, 4, 2, 3), (2, 1, 4, 2, 3)])
check("any number of threads, any tile", [(7, 0, 8, 1, 3), (0, 3, 2, 2, 3), (6, 1, 7, 3, 5), copies()])

EXERCISE = Exercise(__file__, thread_map, check, points=2, minutes=6, difficulty="easy")
