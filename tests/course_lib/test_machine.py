"""The memory machine: what it counts, what it refuses, and that nothing gets past it."""

import functools
import math
from collections import namedtuple

import numpy as np
import pytest

from course_lib.machine import Machine, SRAMOverflow
from tests.course_lib.kernels.common import check_refusal


def machine_with(rows=8, columns=4, dtype=np.float32, sram_bytes=math.inf):
    """A machine, a handle X of [rows, columns], and the array behind it."""
    machine = Machine(sram_bytes)
    array = np.arange(rows * columns, dtype=dtype).reshape(rows, columns)
    return machine, machine.hbm(array, "X"), array


def used_bytes(machine):
    """SRAM in use now, read off the log of a load of one row of a new tensor, less that row."""
    probe = machine.hbm(np.zeros(1), f"probe{len(machine.report().by_tensor)}")
    machine.load(probe, (0, 1))
    return machine.report().events[-1].sram_bytes - 8


def values(machine, tile):
    """A tile's values, taken the only way there is: through a store."""
    array = np.zeros(tile.shape, tile.dtype)
    machine.store(machine.hbm(array), (0, len(array)), tile)
    return array


def test_loads_and_stores_are_counted_in_bytes_of_their_dtype():
    machine, X, array = machine_with(dtype=np.float16)
    out = np.zeros_like(array)
    Y = machine.hbm(out, "Y")
    tile = machine.load(X, slice(2, 5))
    machine.store(Y, (2, 5), tile)
    machine.store(Y, (0, 3), tile)
    machine.load(X, slice(None))
    report = machine.report()
    assert report.by_tensor == {"X": ((3 + 8) * 4 * 2, 0), "Y": (0, 2 * 3 * 4 * 2)}
    assert (report.read_bytes, report.write_bytes) == (88, 48)
    np.testing.assert_array_equal(out[:3], array[2:5])
    events = ("load", "X", 2, 5), ("store", "Y", 2, 5), ("store", "Y", 0, 3), ("load", "X", 0, 8)
    assert tuple(event[:4] for event in report.events) == events
    tile += 1
    np.testing.assert_array_equal(out[:3], array[2:5], "a tile is a copy")


def test_tiles_compute_like_arrays():
    machine, X, array = machine_with()
    x, y = machine.load(X, (0, 4)), machine.load(X, (4, 8))
    a, b = array[:4], array[4:]
    m = x.max(axis=-1, keepdims=True)
    for tile, expected in [
        (x @ y.T, a @ b.T),
        (np.matmul(x, y.T, dtype=np.float64), np.matmul(a, b.T, dtype=np.float64)),
        (np.exp(x - m), np.exp(a - a.max(axis=-1, keepdims=True))),
        (np.where(x > 3, -np.inf, x), np.where(a > 3, -np.inf, a)),
        (np.where(np.arange(4) > 1, x, 0), np.where(np.arange(4) > 1, a, 0)),
        (np.sum(x, axis=1, keepdims=True), a.sum(axis=1, keepdims=True)),
        (2 / (1 + x[1:3, ::2]), 2 / (1 + a[1:3, ::2])),
        (x[:, None, 1].reshape(2, 2), a[:, None, 1].reshape(2, 2)),
        (np.concatenate(namedtuple("Halves", "x y")(x, y)), array),
    ]:
        np.testing.assert_array_equal(values(machine, tile), expected)
        assert tile.dtype == expected.dtype
    assert (x == x).all() and not (x < 0).any() and not x.min() < 0
    assert machine.report().matmul_flops == 2 * (2 * 4 * 4 * 4)


def test_results_take_sram_until_no_variable_holds_them():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    assert used_bytes(machine) == 128
    y = x * 2
    assert used_bytes(machine) == 256
    s = (x @ y.T).sum(axis=1)
    assert used_bytes(machine) == 256 + 32
    assert machine.report().peak_sram_bytes == 256 + 8 * 8 * 4 + 32
    del y, s
    assert used_bytes(machine) == 128
    picked = x[[0, 3]]
    assert used_bytes(machine) == 128 + picked.nbytes, "picked rows are a copy"
    machine.free(x)
    assert used_bytes(machine) == picked.nbytes
    tile = machine.full((2, 3), -np.inf)
    assert (tile.dtype, used_bytes(machine)) == (np.float32, picked.nbytes + 24)


def test_views_and_work_in_place_take_no_sram_of_their_own():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    top, turned, column = x[:2], x.T, x[:, 0, None]
    x -= 1
    x *= 2
    np.exp(x, out=x)
    x[0, 0] = 7
    assert machine.report().peak_sram_bytes == 128
    assert used_bytes(machine) == 128
    assert values(machine, top)[0, 0] == values(machine, turned)[0, 0] == values(machine, column)[0, 0] == 7
    del x
    assert used_bytes(machine) == 128, "the views still hold it"
    del top, turned, column
    assert used_bytes(machine) == 0


def test_an_array_that_meets_a_tile_takes_sram_while_the_operation_lasts():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    y = x + np.ones((8, 4), np.float32)
    assert machine.report().peak_sram_bytes == 3 * 128
    assert dict(machine.report().peak_holders) == {"X[0:8]": 128, "an array in add": 128, "result of add": 128}
    del y
    assert used_bytes(machine) == 128


def test_a_load_that_overflows_counts_nothing():
    """What the error says is in notebook 06."""
    machine, X, _ = machine_with(sram_bytes=200)
    x = machine.load(X, (0, 4))
    y = x + 1
    with pytest.raises(SRAMOverflow, match=r"^X\[2:8\] needs 96 bytes; of the SRAM's 200 bytes 128 are in use"):
        machine.load(X, (2, 8))
    report = machine.report()
    assert (report.peak_sram_bytes, report.read_bytes) == (128, 64)
    machine.free(y)
    machine.load(X, (2, 6))


def test_rows_out_of_bounds_or_of_another_kind_are_refused():
    machine, X, _ = machine_with()
    tile = machine.load(X, (0, 1))
    for rows in ((0, 9), (-1, 2), (3, 3), (5, 2), slice(6, 12), 3, slice(0, 4, 2), (0, 1, 2), (0.0, 2.0)):
        for access in (lambda rows: machine.load(X, rows), lambda rows: machine.store(X, rows, tile)):
            with pytest.raises((IndexError, TypeError), match="of X, which has rows 0:8|rows is"):
                access(rows)


def test_what_a_machine_refuses():
    (machine, X, array), (other, Y, _) = machine_with(), machine_with()
    tile, foreign, freed = machine.load(X, (0, 2)), other.load(Y, (0, 2)), machine.load(X, (0, 2))
    readonly = machine.hbm(np.broadcast_to(np.float32(0), (2, 4)), "readonly")
    view = freed.T
    machine.free(freed)
    assert repr(freed) == "Tile X[0:2] [2, 4] float32, freed" and machine.hbm(array).name == "tensor2"
    another, was_freed = "V: SRAM of another machine", r"V: tile X\[0:2\] was freed"
    for call, said in [
        (lambda: machine.store(X, (0, 3), tile), r"V: tile has shape \(2, 4\); X\[0:3\] takes \(3, 4\)"),
        (lambda: machine.store(X, (0, 1), tile[0]), r"V: tile has shape \(4,\); X\[0:1\] takes \(1, 4\)"),
        (
            lambda: machine.store(X, (0, 2), tile.astype(np.float16)),
            "T: tile is float16, X float32; convert it with tile.astype",
        ),
        (lambda: machine.store(X, (0, 2), array[:2]), "T: tile is an array of dtype float32; accepted: a tile"),
        (lambda: machine.store(readonly, (0, 2), tile), "V: readonly was made from a read-only array"),
        (lambda: machine.load(Y, (0, 2)), "V: HBM of another machine"),
        (lambda: machine.store(X, (0, 2), foreign), another),
        (lambda: tile + foreign, another),
        (lambda: machine.free(foreign), another),
        (lambda: freed + 1, was_freed),
        (lambda: view @ view.T, was_freed),
        (lambda: machine.store(X, (0, 2), freed), was_freed),
        (lambda: machine.free(freed), was_freed),
        (lambda: freed[0], was_freed),
        (lambda: freed.astype(np.float64), was_freed),
        (lambda: machine.hbm(array, "X"), "V: name is 'X', which is already"),
        (lambda: machine.hbm([1.0, 2.0]), "T: array is"),
        (lambda: machine.hbm(np.array([None])), "T: array is"),
        *((functools.partial(Machine, size), "V: sram_bytes is") for size in (0, "64 KB", None, math.nan)),
    ]:
        check_refusal(call, {}, {}, said)
    assert machine.report().write_bytes == 0


def test_values_leave_the_machine_only_through_a_store():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    outside = np.zeros((8, 4), np.float32)
    escapes = [
        lambda: np.asarray(X),
        lambda: np.asarray(x),
        lambda: X[0:2],
        lambda: x @ X,
        lambda: float(x[0, 0]),
        lambda: bool(x[0, 0]),
        lambda: outside.__setitem__(slice(None), x),
        lambda: np.exp(x, out=outside),
        lambda: np.sum(x, axis=0, out=outside[0]),
        lambda: np.add.at(outside, 0, x[0]),
        lambda: np.copyto(outside, x),
    ]
    for number, escape in enumerate(escapes):
        with pytest.raises(TypeError):
            escape()
            pytest.fail(f"escape {number} got out")
    assert not outside.any()


def test_a_report_reads_as_a_table():
    machine, X, array = machine_with(sram_bytes=4096)
    machine.store(machine.hbm(np.zeros_like(array), "out"), (0, 8), machine.load(X, (0, 8)))
    lines = str(machine.report()).splitlines()
    columns = ["read_bytes", "write_bytes"], ["X", "128", "0"], ["out", "0", "128"], ["total", "128", "128"]
    assert tuple(line.split() for line in lines[:-1]) == columns
    assert lines[-1] == "peak SRAM 128 bytes of 4,096 bytes; 2 loads and stores"
