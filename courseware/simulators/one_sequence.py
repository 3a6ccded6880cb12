"""A kernel for one sequence, as lessons 08 and 09 have it: what it does not take, a model's adapter has to make."""

from numbers import Real

import numpy as np


class Kernel:
    """Causal attention of one sequence without padding. launches: the lengths, (n_q, n_k), of each launch.

    gain: so many times the output is what it should be. With another one than 1, a result shows what the kernel made.
    """

    def __init__(self, gain=1):
        self.gain, self.launches = gain, []

    def attention(self, q, k, v, scale):
        """o, [heads, n_q, d]. q: [heads, n_q, d]; k, v: [heads, n_k, d], n_q at most n_k. The last query sees all keys.

        Raises ValueError for other shapes, if there is no query, and if scale is no number.
        """
        q, k, v = (np.asarray(x) for x in (q, k, v))
        shapes = f"q has shape {q.shape}, k {k.shape}, v {v.shape}"
        if q.ndim != 3 or k.ndim != 3 or k.shape != v.shape:
            raise ValueError(f"{shapes}; accepted: [heads, tokens, d], k and v alike")
        if q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
            raise ValueError(f"{shapes}; accepted: as many heads and the same d in all")
        if not 0 < q.shape[1] <= k.shape[1]:
            raise ValueError(f"{shapes}; accepted: at least one query, and no more than keys")
        if not isinstance(scale, Real):
            raise ValueError(f"scale is {scale}; accepted: a number")
        self.launches.append((q.shape[1], k.shape[1]))
        visible = np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool)
        scores = np.where(visible, scale * q @ k.swapaxes(1, 2), -np.inf)
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        return self.gain * (p / p.sum(axis=2, keepdims=True)) @ v

    def traces(self):
        """What an answer did: two that make the same mistake are recognised by it."""
        return self.launches
