"""What the explorers that go through a loop visit by visit share: bytes up to each visit, their bars, the widget."""

from .drawing import names_below, pale
from .figures import INK, TENSOR_COLOURS, corner, tidy
from .shell import Explorer, choice, slider, tick

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


def draw_moved(axes, so_far, in_the_end, names=None):
    """A bar for each tensor: read, above it paler what was written, and dashed what both will come to.

    so_far, in_the_end: tensor -> (bytes read, bytes written). names: what to write below the bars.
    """
    places, faces = range(len(so_far)), [TENSOR_COLOURS[name] for name in so_far]
    read, written = zip(*so_far.values(), strict=True)
    ends = [sum(moved) for moved in in_the_end.values()]
    tidy(axes, title="bytes moved; dashed: in all", y="bytes")
    axes.bar(places, read, width=0.7, color=faces)
    axes.bar(places, written, bottom=read, width=0.7, color=[pale(face) for face in faces])
    axes.bar(places, ends, width=0.7, facecolor="none", edgecolor=INK, linestyle="--", linewidth=1)
    names_below(axes, names or list(so_far))
    axes.set_ylim(0, 1.18 * max(ends))
    corner(axes, "pale: written", right=names is not None)


def explore_visits(run, describe, draw, *, causal, visit):
    """The widget: causal, lengths, block sizes, and the visit.

    run(n_q=, n_k=, block_q=, block_k=, causal=) gives the model, which has n_visits. causal, visit: what is chosen at
    first.
    """
    sizes = {"n_q": 12, "n_k": 12, "block_q": 4, "block_k": 3}
    return Explorer(
        run, describe, draw,
        {"causal": tick("causal", causal)},
        {"n_q": choice("queries", LENGTHS, 12), "n_k": choice("keys", LENGTHS, 12)},
        {"block_q": choice("block_q", BLOCKS, 4), "block_k": choice("block_k", BLOCKS, 3)},
        {"visit": slider("visit", 0, run(**sizes, causal=causal).n_visits, visit)},
        step="visit", ends={"visit": lambda visit, **chosen: run(**chosen).n_visits}, play="visit",
    )  # fmt: skip
