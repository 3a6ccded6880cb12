"""A warp's load: mappings go where they say, counts are the rules', the picture is the model."""

import re

import numpy as np
import pytest

from courseware.explorers import warp as explorer
from courseware.explorers.warp import MAPPINGS, evaluate
from courseware.simulators.cuda_emulator import request

from .conftest import numbers, tips

LOADS = [
    evaluate(mapping, columns, padding, floats)
    for mapping in MAPPINGS
    for columns in (32, 64, 128)
    for padding, floats in ((0, 1), (1, 1), (4, 4), (8, 2), (0, 4))
]


def page_of(load):
    names = "mapping", "columns", "padding", "floats", "step"
    return explorer.page(**{name: getattr(load, name) for name in names})


def test_every_step_stays_inside_the_matrix_and_a_copy_visits_each_element_once():
    for load in LOADS:
        visited = np.zeros((load.rows, load.columns), dtype=int)
        for step in range(1, load.steps + 1):
            now = evaluate(load.mapping, load.columns, load.padding, load.floats, step)
            for row, column in now.places:
                assert 0 <= row < load.rows and 0 <= column <= load.columns - load.floats, load
                visited[row, column : column + load.floats] += 1
            assert (now.memory == 2).sum() * 4 == now.requested_bytes, load
            assert now.misaligned is None and len(now.group_of_pass) == len(now.passes), load
        if load.mapping in ("along the row", "down the column", "4 rows of 8 lanes"):
            assert (visited == 1).all(), load
        assert evaluate(load.mapping, load.columns, load.padding, load.floats, load.steps + 1).places == load.places


@pytest.mark.parametrize(
    "load, sectors, passes, conflicts",
    [
        (evaluate("down the column"), 32, 32, 31),
        (evaluate("down the column", padding=1), 32, 1, 0),
        (evaluate("along the row"), 4, 1, 0),
        (evaluate("along the row", floats=4), 16, 4, 0),
        (evaluate("4 rows of 8 lanes", columns=128), 4, 4, 3),
        (evaluate("4 rows of 8 lanes", columns=128, padding=8), 4, 1, 0),
        (evaluate("row lane % 8", columns=128, padding=4, floats=4), 8, 4, 0),
        (evaluate("row lane // 2 % 8", columns=128, padding=4, floats=4), 8, 2, 0),
        (evaluate("row lane // 2 % 8", columns=128, floats=4), 8, 16, 14),
        (evaluate("all lanes one address", floats=4), 1, 2, 0),
    ],
)
def test_counts_that_the_lesson_speaks_of(load, sectors, passes, conflicts):
    assert (len(load.sectors), len(load.passes), load.conflicts) == (sectors, passes, conflicts)
    text = page_of(load).text.partition("<br>")[2]
    assert numbers(text) == [sectors, 32 * sectors, load.requested_bytes, passes, *([conflicts] if conflicts else [])]
    assert f" sector{'s' * (sectors > 1)}</b>, " in text and f" pass{'es' * (passes > 1)}</b>, " in text
    assert f"of them {'conflicts' if conflicts > 1 else 'a conflict'}." in text if conflicts else "no conflict." in text


def test_memory_shows_sectors_that_reach_over_the_end_of_a_row():
    load = evaluate("down the column", padding=4)
    assert set(load.sectors) == {(row * 36) // 8 for row in range(32)}
    assert load.memory[1].tolist() == [2] + 3 * [1] + 28 * [0] + 4 * [3]  # a sector that began in the padding before it
    assert load.memory[0].tolist() == [2] + 7 * [1] + 24 * [0] + 4 * [1]
    load = evaluate("down the column", 64, 1, 4)
    assert load.misaligned == 260 and "misaligned" in page_of(load).text
    assert page_of(load).html().count("no GPU") == 2
    with pytest.raises(ValueError):
        request.sectors(load.addresses, load.element_bytes)


def lanes_of(text):
    """The lanes that a tip names: 0-7, or 0, 8, 16."""
    first, _, last = re.sub("lanes? ", "", text).partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(lane) for lane in first.split(", ")]


@pytest.mark.parametrize(
    "load", LOADS[::3], ids=lambda load: f"{load.mapping} {load.columns} {load.padding} {load.floats}"
)
def test_the_drawing_is_the_model(load):
    page, places, deliveries = page_of(load), {}, {}
    for lane, (row, column) in enumerate(load.places):
        places.setdefault(f"row {row}, float {column}", []).append(lane)
    assert {tip.split(": ")[0]: lanes_of(tip.split(": ")[1]) for tip in tips(page, "(?=row)")} == places
    for where, lanes in (tip.split(": ") for tip in tips(page, "pass ")):
        number, first, *last = map(int, re.findall(r"\d+", where))
        for bank in range(first, (last or [first])[0] + 1):
            deliveries[number, bank] = lanes_of(lanes)
    begins = [i for i, group in enumerate(load.group_of_pass) if i == 0 or group != load.group_of_pass[i - 1]]
    orange = sum(len(set(map(tuple, load.passes[i].values()))) for i in set(range(len(load.passes))) - set(begins))
    assert page.html().count('"cell K"') == orange, "conflicts, and not the passes of other lanes"
    passes = enumerate(load.passes, start=1)
    assert deliveries == {(number, bank): lanes for number, banks in passes for bank, lanes in banks.items()}
