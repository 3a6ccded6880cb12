"""Reading is counted by rows."""

import numpy as np
import pytest

from courseware.checks.read_counting import Rows

ARRAY = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    "read, reads, at_once",
    [(lambda rows: rows[1:3], [0, 1, 1, 0, 0, 0], 2),
     (lambda rows: rows[4:9], [0, 0, 0, 0, 1, 1], 2),
     (lambda rows: rows[2], [0, 0, 1, 0, 0, 0], 1),
     (lambda rows: rows[[0, 5]], [1, 0, 0, 0, 0, 1], 2),
     (lambda rows: [row for row in rows], [1] * 6, 1),
     (lambda rows: np.asarray(rows), [1] * 6, 6),
     (lambda rows: rows @ np.ones(2), [1] * 6, 6),
     (lambda rows: (len(rows), rows.shape, rows.dtype, rows.ndim), [0] * 6, 0)],
)  # fmt: skip
def test_reads_are_counted(read, reads, at_once):
    rows = Rows(ARRAY)
    read(rows)
    assert rows.reads.tolist() == reads
    assert rows.most_at_once == at_once


@pytest.mark.parametrize("index", [slice(1, 3), 2, (slice(0, 2), 1), (3, 0), [0, 5], slice(None, None, 2)])
def test_what_is_read_is_what_stands_there_and_a_copy(index):
    read = Rows(ARRAY)[index]
    np.testing.assert_array_equal(read, ARRAY[index])
    assert not np.shares_memory(read, ARRAY)
