"""The fixed example of the course: a sentence of four tokens, head_dim 2.

The unscaled scores of the last query are 1, 2, 3, 4, so the running maximum moves at every step of a stream.
The arrays are read-only: copy one before changing it.
"""

import numpy as np

TOKENS = ("the", "cat", "sat", "down")


def _fixed(rows):
    array = np.array(rows, dtype=np.float64)
    array.setflags(write=False)
    return array


Q = _fixed([[1, 0], [0, 1], [1, 1], [1, 2]])
K = _fixed([[1, 0], [0, 1], [1, 1], [2, 1]])
V = _fixed([[2, 0], [0, 2], [1, 1], [3, -1]])
