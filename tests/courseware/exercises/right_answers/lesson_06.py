"""Lesson 06: right answers written differently."""

import numpy as np


def blocks_by_trying(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    """Every pair of sizes, without a formula for the larger block_k."""
    pairs = []
    for block_q in range(multiple_of, sram_bytes + 1, multiple_of):
        for block_k in range(multiple_of, sram_bytes + 1, multiple_of):
            if dtype_bytes * (block_q * d + 2 * block_k * d + block_q * block_k) > sram_bytes:
                break
            pairs.append((block_q * block_k, block_q, block_k))
    if not pairs:
        raise ValueError("nothing fits")
    return max(pairs)[1:]


def blocks_keys_first(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    pairs = []
    for block_k in range(multiple_of, sram_bytes, multiple_of):
        left = sram_bytes / dtype_bytes - 2 * block_k * d
        block_q = int(left // (d + block_k)) // multiple_of * multiple_of
        if block_q <= 0:
            break
        pairs.append((block_q * block_k, block_q, block_k))
    if not pairs:
        raise ValueError("nothing fits")
    return max(pairs)[1:]


def tiles_from_the_mask(n_q, n_k, block_q, block_k, causal):
    pairs = [(i, j) for i in range(n_q) for j in range(n_k) if not causal or j <= i + n_k - n_q]
    return sorted({(i // block_q, j // block_k) for i, j in pairs})


def tiles_by_end(n_q, n_k, block_q, block_k, causal):
    tiles = []
    for start in range(0, n_q, block_q):
        stop = min(start + block_q, n_q)
        end = min(max(stop + n_k - n_q, 0), n_k) if causal else n_k
        tiles += [[start // block_q, j] for j in range(-(-end // block_k))]
    return tiles


def bytes_by_loops(n, d, block, size, order):
    row, outer, inner = d * size, 0, 0
    if order not in ("q_outer", "kv_outer"):
        raise ValueError(order)
    for start in range(0, n, block):
        rows = min(block, n - start)
        outer += rows * 2 * row
        inner += n * 2 * row if order == "q_outer" else n * (3 * row + 16)
    return outer + inner + (0 if order == "q_outer" else n * (row + 8))


def tiled_divided_each_step(machine, Q, K, V, O, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    for start in range(0, n_q, block_q):
        rows = slice(start, min(start + block_q, n_q))
        q = machine.load(Q, rows)
        m, l, out = machine.full((len(q), 1), -np.inf), machine.full((len(q), 1), 0), machine.full((len(q), d), 0)
        for first in range(0, n_k, block_k):
            if causal and first > rows.stop - 1 + n_k - n_q:
                break
            keys = slice(first, min(first + block_k, n_k))
            k = machine.load(K, keys)
            s = np.matmul(q, k.T, dtype=np.float32) / np.float32(d**0.5)
            machine.free(k)
            if causal:
                seen = np.arange(keys.start, keys.stop) <= np.arange(rows.start, rows.stop)[:, None] + n_k - n_q
                s = np.where(seen, s, np.float32(-np.inf))
            new = np.maximum(m, s.max(axis=1, keepdims=True))
            safe = np.where(np.isfinite(new), new, np.float32(0))
            p = np.exp(s - safe)
            machine.free(s)
            old = np.exp(m - safe) * l
            l, m = old + p.sum(axis=1, keepdims=True), new
            v = machine.load(V, keys)
            out = (old * out + np.matmul(p, v, dtype=np.float32)) / np.maximum(l, np.float32(1e-30))
            machine.free(v)
            machine.free(p)
        machine.store(O, rows, out.astype(O.dtype))


def tiled_exp2(machine, Q, K, V, O, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    scale = float(np.log2(np.e) / np.sqrt(d))
    for i in range(-(-n_q // block_q)):
        q_rows = i * block_q, min((i + 1) * block_q, n_q)
        q = machine.load(Q, q_rows).astype(np.float32) * scale
        m, l = machine.full(len(q), -np.inf), machine.full(len(q), 0)
        acc = machine.full((len(q), d), 0)
        end = max(min(n_k, q_rows[1] + n_k - n_q), 0) if causal else n_k
        for j in range(-(-end // block_k)):
            k_rows = j * block_k, min((j + 1) * block_k, n_k)
            k, v = (machine.load(handle, k_rows).astype(np.float32) for handle in (K, V))
            s = q @ k.T
            if causal:
                hidden = np.arange(*q_rows)[:, None] + n_k - n_q < np.arange(*k_rows)
                s = np.where(hidden, np.float32(-np.inf), s)
            m_old, m = m, np.maximum(m, s.max(axis=1))
            shift = np.where(m > -np.inf, m, np.float32(0))
            s = np.exp2(s - shift[:, None])
            l = np.exp2(m_old - shift) * l + s.sum(axis=1)
            acc = np.exp2(m_old - shift)[:, None] * acc + s @ v
        machine.store(O, q_rows, (acc / np.where(l > 0, l, np.float32(1))[:, None]).astype(O.dtype))


RIGHT_ANSWERS = {
    "choose_block_sizes": {
        "every pair tried": blocks_by_trying,
        "block_k in the outer loop": blocks_keys_first,
    },
    "visited_tiles": {
        "from the mask": tiles_from_the_mask,
        "by the end of the keys": tiles_by_end,
        "as an array": lambda *sizes: np.array(tiles_by_end(*sizes)).reshape(-1, 2),
        "the last query may lie beyond the end": {"min((i + 1) * block_q, n_q) - 1": "(i + 1) * block_q - 1"},
    },
    "tiled_attention": {
        "divided by np.sqrt(d), which makes float64": {"s = q @ k.T * d**-0.5": "s = q @ k.T / np.sqrt(d)"},
        "float64 throughout": {
            "(Q, (q_start, q_stop)).astype(np.float32)": "(Q, (q_start, q_stop)).astype(np.float64)",
            "s = q @ k.T * d**-0.5": "s = q @ k.T / np.sqrt(np.float64(d))",
        },
        "acc begins as NumPy's zeros": {"machine.full((len(q), d), 0.0)": "np.zeros((len(q), d))"},
        "divided at every step, tiles freed by hand": tiled_divided_each_step,
        "exp2 and np.where, everything converted on loading": tiled_exp2,
    },
    "flash_attention_bytes": {
        "tile by tile": bytes_by_loops,
        "as a float": lambda *sizes: float(bytes_by_loops(*sizes)),
    },
}
