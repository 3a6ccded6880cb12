"""Which stage of a ring a tile goes through, and which phases the producer and a consumer wait for."""

from numbers import Integral

from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, Finding, are_numbers, show, single_finding


def barrier_phases(query_tile, key_tile, key_tiles, stages):
    """The stage of a key tile, and the parities to wait for: (stage, ready_parity, empty_parity).

    A thread block computes query tiles 0, 1, 2, ..., one after the other, and visits key tiles 0 to key_tiles - 1 for
    each of them. The key tiles go through a ring of stages 0 to stages - 1, in turn; at the next query tile the ring
    goes on where it was. Each stage has two barriers, made once before the first tile:
    ready: a phase of it is complete when a tile has arrived in the stage. A consumer waits for ready_parity.
    empty: a phase of it is complete when all consumers have handed a tile of the stage back. The producer waits for
        empty_parity before it copies the next tile there, the first tile included.
    A barrier's phases are numbered 0, 1, 2, ... A wait for parity p returns if the last complete phase has parity p,
        and blocks otherwise. Before phase 0 is complete, it returns for p = 1 as if phase -1 were.
    All three are whole numbers.

    >>> barrier_phases(query_tile=0, key_tile=5, key_tiles=8, stages=2)
    (1, 0, 1)
    >>> barrier_phases(query_tile=1, key_tile=0, key_tiles=3, stages=2)
    (1, 1, 0)
    """
    tile = query_tile * key_tiles + key_tile
    stage = tile % stages
    ready_parity = tile // stages % 2
    empty_parity = 1 - ready_parity
    return stage, ready_parity, empty_parity


NAMES = ("stage", "ready_parity", "empty_parity")
NO_PARITY = "; a parity is 0 or 1"


def walked(query_tile, key_tile, key_tiles, stages):
    """The same by walking through all tiles, with a count of the tiles that have gone through each stage."""
    gone, stage = [0] * stages, -1
    for query in range(query_tile + 1):
        for _ in range(key_tiles if query < query_tile else key_tile + 1):
            stage = stage + 1 if stage + 1 < stages else 0
            gone[stage] += 1
    # The tile's own arrival completes phase gone - 1; the tile before it in this stage was handed back in gone - 2.
    return (stage, (gone[stage] - 1) % 2, (gone[stage] - 2) % 2), (sum(gone) - 1, gone[stage] - 1)


def agrees_with_the_walk(returned, **inputs):
    right, (before, of_them) = walked(**inputs)
    if not are_numbers(returned, 3, Integral):
        text = "the answer did not return three whole numbers"
        if isinstance(returned, tuple | list) and any(isinstance(x, float) for x in returned):
            floats = ", ".join(repr(float(x)) for x in returned if isinstance(x, float))
            text += f", but with {floats}: / makes floats, // whole numbers of whole numbers"
        return single_finding("type", text, show(returned), "(stage, ready_parity, empty_parity)")
    findings = tuple(
        Finding(name, "number", f"{name} is {now}, not {due}" + NO_PARITY * (name != "stage" and now not in (0, 1)))
        for name, now, due in zip(NAMES, returned, right, strict=True) if now != due
    )  # fmt: skip
    text = f"before this tile, {before} went through the ring, {of_them} of them through its stage, which is {right[0]}"
    told = (*findings, Finding("", "fact", text))
    return Evidence(told, show(tuple(returned)), show(right)) if findings else None


@st.composite
def visits(draw):
    key_tiles = draw(st.integers(1, 9))
    return draw(st.integers(0, 4)), draw(st.integers(0, key_tiles - 1)), key_tiles, draw(st.integers(1, 5))


check = Checks(barrier_phases, agrees_with_the_walk)

check("the first round: every stage is empty", [(0, 0, 8, 3), (0, 1, 8, 3), (0, 3, 8, 4)])
check("the second round: the ring begins again at stage 0", [(0, 3, 8, 3), (0, 4, 8, 3), (0, 7, 8, 4)])
check("later rounds: the parities return every other time", [(0, 6, 14, 3), (0, 11, 14, 3)])
check("a ring of one stage", [(0, 0, 4, 1), (0, 1, 4, 1), (0, 2, 4, 1)])
check("the second query tile, where the ring stood at its beginning", [(1, 0, 6, 3), (1, 1, 3, 3), (1, 4, 9, 3)])
check("the next query tiles, where the ring goes on in its middle", [(1, 0, 7, 3), (1, 2, 8, 3), (2, 1, 5, 4)])
check("any tile", [(2, 6, 9, 4), visits()])

EXERCISE = Exercise(__file__, barrier_phases, check, points=3, minutes=10, difficulty="medium")
