"""The memory machine: what it counts, what it refuses, and that nothing gets past it."""

import math

import numpy as np
import pytest

from course_lib.machine import Machine, SRAMOverflow


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_loads_and_stores_are_counted_in_bytes_of_their_dtype(dtype):
    machine, X, array = machine_with(dtype=dtype)
    out = np.zeros_like(array)
    Y = machine.hbm(out, "Y")
    tile = machine.load(X, slice(2, 5))
    machine.store(Y, (2, 5), tile)
    machine.store(Y, (0, 3), tile)
    machine.load(X, slice(None))
    item = np.dtype(dtype).itemsize
    report = machine.report()
    assert report.by_tensor == {"X": ((3 + 8) * 4 * item, 0), "Y": (0, 2 * 3 * 4 * item)}
    assert (report.read_bytes, report.write_bytes) == (44 * item, 24 * item)
    np.testing.assert_array_equal(out[:3], array[2:5])
    assert [(event.kind, event.tensor, event.start, event.stop) for event in report.events] == [
        ("load", "X", 2, 5), ("store", "Y", 2, 5), ("store", "Y", 0, 3), ("load", "X", 0, 8),
    ]  # fmt: skip


def test_one_dimensional_tensors_have_rows_too():
    machine = Machine()
    l = machine.hbm(np.zeros(6, np.float32), "l")
    machine.store(l, (2, 4), machine.load(l, (0, 2)) + 1)
    assert machine.report().by_tensor["l"] == (8, 8)


def test_a_loaded_tile_is_a_copy():
    machine, X, array = machine_with()
    tile = machine.load(X, (0, 2))
    tile += 1
    np.testing.assert_array_equal(array[0], [0, 1, 2, 3])
    np.testing.assert_array_equal(values(machine, tile)[0], [1, 2, 3, 4])


def test_tiles_compute_like_arrays():
    machine, X, array = machine_with()
    x, y = machine.load(X, (0, 4)), machine.load(X, (4, 8))
    a, b = array[:4], array[4:]
    m = x.max(axis=-1, keepdims=True)
    for tile, expected in [
        (x @ y.T, a @ b.T),
        (np.matmul(x, y.T, dtype=np.float64), np.matmul(a, b.T, dtype=np.float64)),
        (np.exp(x - m), np.exp(a - a.max(axis=-1, keepdims=True))),
        (np.maximum(x[:, 0], 5), np.maximum(a[:, 0], 5)),
        (np.where(x > 3, -np.inf, x), np.where(a > 3, -np.inf, a)),
        (np.where(np.arange(4) > 1, x, 0), np.where(np.arange(4) > 1, a, 0)),
        (x.sum(axis=0), a.sum(axis=0)),
        (np.sum(x, axis=1, keepdims=True), a.sum(axis=1, keepdims=True)),
        (2 / (1 + x[1:3, ::2]), 2 / (1 + a[1:3, ::2])),
        (x.astype(np.float16), a.astype(np.float16)),
        (x[:, None, 1].reshape(2, 2), a[:, None, 1].reshape(2, 2)),
        (np.concatenate([x, y]), array),
        (x.mean(axis=1), a.mean(axis=1)),
        (-x, -a),
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
    machine.free(x)
    assert used_bytes(machine) == 0


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


def test_fancy_indexing_copies_and_is_charged():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    picked = x[[0, 3]]
    assert used_bytes(machine) == 128 + picked.nbytes


def test_an_array_that_meets_a_tile_takes_sram_while_the_operation_lasts():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 8))
    y = x + np.ones((8, 4), np.float32)
    assert machine.report().peak_sram_bytes == 3 * 128
    assert dict(machine.report().peak_holders) == {
        "X[0:8]": 128,
        "an array in add": 128,
        "result of add": 128,
    }
    del y
    assert used_bytes(machine) == 128


def test_full_makes_a_tile_without_traffic():
    machine = Machine(100)
    tile = machine.full((2, 3), -np.inf)
    assert (tile.shape, tile.dtype, used_bytes(machine)) == ((2, 3), np.float32, 24)
    assert machine.report().by_tensor["probe0"].read_bytes == machine.report().read_bytes


def test_an_overflow_names_the_budget_and_what_holds_it():
    machine, X, _ = machine_with(sram_bytes=200)
    x = machine.load(X, (0, 4))
    y = x + 1
    with pytest.raises(SRAMOverflow) as overflow:
        machine.load(X, (2, 8))
    assert str(overflow.value) == (
        "X[2:8] needs 96 bytes; of the SRAM's 200 bytes 128 are in use:\n"
        "          64  X[0:4]\n"
        "          64  result of add"
    )
    assert isinstance(overflow.value, MemoryError)
    report = machine.report()
    assert (report.peak_sram_bytes, report.read_bytes) == (128, 64), "a load that fails counts nothing"
    machine.free(y)
    machine.load(X, (2, 6))


def test_a_budget_can_be_filled_to_the_last_byte():
    machine, X, _ = machine_with(sram_bytes=128)
    x = machine.load(X, (0, 8))
    with pytest.raises(SRAMOverflow, match="result of exp needs 128 bytes"):
        np.exp(x)


def test_a_freed_tile_and_its_views_cannot_be_used():
    machine, X, _ = machine_with()
    x = machine.load(X, (0, 2))
    view = x.T
    machine.free(x)
    for use in (lambda: x + 1, lambda: view @ view.T, lambda: machine.store(X, (0, 2), x),
                lambda: machine.free(x), lambda: x[0], lambda: x.astype(np.float64)):  # fmt: skip
        with pytest.raises(ValueError, match=r"tile X\[0:2\] was freed"):
            use()
    assert repr(x) == "Tile X[0:2] [2, 4] float32, freed"


@pytest.mark.parametrize(
    "rows, error, message",
    [
        *((rows, IndexError, "of X, which has rows 0:8") for rows in ((0, 9), (-1, 2), (3, 3), (5, 2), slice(6, 12))),
        *((rows, TypeError, "rows is") for rows in (3, slice(0, 4, 2), (0, 1, 2), (0.0, 2.0), "0:2")),
    ],
)
def test_rows_out_of_bounds_or_of_another_kind_are_refused(rows, error, message):
    machine, X, _ = machine_with()
    tile = machine.load(X, (0, 1))
    with pytest.raises(error, match=message):
        machine.load(X, rows)
    with pytest.raises(error, match=message):
        machine.store(X, rows, tile)


def test_a_store_must_match_in_shape_and_dtype():
    machine, X, array = machine_with()
    tile = machine.load(X, (0, 2))
    with pytest.raises(ValueError, match=r"tile has shape \(2, 4\); X\[0:3\] takes \(3, 4\)"):
        machine.store(X, (0, 3), tile)
    with pytest.raises(ValueError, match=r"tile has shape \(4,\); X\[0:1\] takes \(1, 4\)"):
        machine.store(X, (0, 1), tile[0])
    with pytest.raises(TypeError, match="tile is float16, X float32; convert it with tile.astype"):
        machine.store(X, (0, 2), tile.astype(np.float16))
    with pytest.raises(TypeError, match="tile is an array of dtype float32; accepted: a tile"):
        machine.store(X, (0, 2), array[:2])
    array.setflags(write=False)
    with pytest.raises(ValueError, match="X was made from a read-only array"):
        machine.store(X, (0, 2), tile)
    assert machine.report().write_bytes == 0


def test_values_leave_the_machine_only_through_a_store():
    machine, X, array = machine_with()
    x = machine.load(X, (0, 8))
    outside = np.zeros((8, 4), np.float32)
    escapes = [
        lambda: np.asarray(X),
        lambda: np.asarray(x),
        lambda: np.array(x),
        lambda: X[0:2],
        lambda: np.exp(X),
        lambda: x @ X,
        lambda: float(x[0, 0]),
        lambda: int(x[0, 0]),
        lambda: bool(x[0, 0]),
        lambda: outside.__setitem__(slice(None), x),
        lambda: np.exp(x, out=outside),
        lambda: np.sum(x, axis=0, out=outside[0]),
        lambda: outside.__iadd__(x),
        lambda: np.add.at(outside, 0, x[0]),
        lambda: np.copyto(outside, x),
        lambda: np.array2string(x),
        lambda: np.save("tile", x),
        lambda: memoryview(x),
    ]
    for number, escape in enumerate(escapes):
        with pytest.raises(TypeError):
            escape()
            pytest.fail(f"escape {number} got out")
    assert not outside.any()
    assert machine.report().read_bytes == array.nbytes


def test_machines_do_not_mix():
    (machine, X, _), (other, Y, _) = machine_with(), machine_with()
    x, y = machine.load(X, (0, 2)), other.load(Y, (0, 2))
    with pytest.raises(ValueError, match="HBM of another machine"):
        machine.load(Y, (0, 2))
    for mix in (lambda: machine.store(X, (0, 2), y), lambda: x + y, lambda: machine.free(y)):
        with pytest.raises(ValueError, match="SRAM of another machine"):
            mix()


def test_names_are_unique_and_given_when_missing():
    machine, _, array = machine_with()
    with pytest.raises(ValueError, match="name is 'X', which is already"):
        machine.hbm(array, "X")
    assert machine.hbm(array).name == "tensor1"


def test_hbm_takes_numeric_arrays_and_a_budget_is_a_positive_number():
    for array in ([1.0, 2.0], np.array(["a"]), np.array([None]), 3.0):
        with pytest.raises(TypeError, match="array is"):
            Machine().hbm(array)
    for sram_bytes in (0, -1, "64 KB", None, math.nan):
        with pytest.raises(ValueError, match="sram_bytes is"):
            Machine(sram_bytes)


def test_a_report_reads_as_a_table():
    machine, X, array = machine_with(sram_bytes=4096)
    machine.store(machine.hbm(np.zeros_like(array), "out"), (0, 8), machine.load(X, (0, 8)))
    assert str(machine.report()) == (
        "           read_bytes     write_bytes\n"
        "X                 128               0\n"
        "out                 0             128\n"
        "total             128             128\n"
        "peak SRAM 128 bytes of 4,096 bytes; 2 loads and stores"
    )
