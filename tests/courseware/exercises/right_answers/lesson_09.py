"""Lesson 09: right answers written differently."""

import math

import numpy as np


def softmax_vjp_by_matrix(P, dP):
    return np.array([(np.diag(p) - np.outer(p, p)) @ dp for p, dp in zip(P, dP, strict=True)])


def softmax_vjp_by_einsum(P, dP):
    p, dp = P.astype(np.float32), dP.astype(np.float32)
    return p * dp - p * np.einsum("ij,ij->i", p, dp)[:, None]


def backward_by_einsum(Q, K, V, dO):
    Q, K = Q / np.sqrt(np.sqrt(Q.shape[1])), K / np.sqrt(np.sqrt(Q.shape[1]))
    back = 1 / np.sqrt(np.sqrt(Q.shape[1]))
    S = np.einsum("id,jd->ij", Q, K)
    S = S - S.max(axis=1)[:, None]
    P = np.exp(S - np.log(np.exp(S).sum(axis=1))[:, None])
    delta = np.einsum("id,id->i", P @ V, dO)
    dS = P * (np.einsum("id,jd->ij", dO, V) - delta[:, None])
    return dS @ K * back, np.einsum("ij,id->jd", dS, Q) * back, np.einsum("ij,id->jd", P, dO)


def backward_query_by_query(Q, K, V, dO):
    Q, K, V, dO = (x.astype(np.float32) for x in (Q, K, V, dO))
    scale = np.float32(1 / np.sqrt(Q.shape[1]))
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for i in range(len(Q)):
        s = K @ Q[i] * scale
        p = np.exp(s - s.max())
        p /= p.sum()
        dp = V @ dO[i]
        ds = p * (dp - p @ dp) * scale
        dQ[i] = ds @ K
        dK += np.outer(ds, Q[i])
        dV += np.outer(p, dO[i])
    return dQ, dK, dV


def tiled_backward_with_free(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    n_q, n_k, scale = len(Q), len(K), np.float32(1 / np.sqrt(Q.shape[1]))
    q_starts, k_starts = range(0, n_q, block_q), range(0, n_k, block_k)

    def weights(q, k, v, do, stats, at_q, at_k):
        s = np.matmul(q, k.T, dtype=np.float32) * scale
        seen = np.arange(at_k, at_k + len(k)) <= np.arange(at_q, at_q + len(q))[:, None] + n_k - n_q
        p = np.where(seen | (not causal), np.exp(s - np.where(stats[0] > -np.inf, stats[0], np.float32(0))), 0)
        return p, p * (np.matmul(do, v.T, dtype=np.float32) - stats[1])

    for at in q_starts:
        rows = slice(at, min(at + block_q, n_q))
        o, do = machine.load(O, rows), machine.load(dO, rows)
        machine.store(delta, rows, np.sum(o.astype(delta.dtype) * do, axis=1))
    for at_k in k_starts:
        keys = slice(at_k, min(at_k + block_k, n_k))
        k, v = machine.load(K, keys), machine.load(V, keys)
        sums = machine.full((2, *k.shape), 0)
        for at_q in q_starts:
            rows = slice(at_q, min(at_q + block_q, n_q))
            if causal and at_k > rows.stop - 1 + n_k - n_q:
                continue
            q, do = machine.load(Q, rows), machine.load(dO, rows)
            stats = [machine.load(x, rows)[:, None] for x in (lse, delta)]
            p, ds = weights(q, k, v, do, stats, at_q, at_k)
            sums[0] += np.matmul(ds.T, q, dtype=ds.dtype) * scale
            sums[1] += np.matmul(p.T, do, dtype=p.dtype)
            for tile in (q, do, p, ds, *stats):
                machine.free(tile)
        machine.store(dK, keys, sums[0].astype(dK.dtype))
        machine.store(dV, keys, sums[1].astype(dV.dtype))
        for tile in (k, v, sums):
            machine.free(tile)
    for at_q in q_starts:
        rows = slice(at_q, min(at_q + block_q, n_q))
        q, do = machine.load(Q, rows), machine.load(dO, rows)
        stats = [machine.load(x, rows)[:, None] for x in (lse, delta)]
        dq = machine.full(q.shape, 0)
        for at_k in k_starts:
            if causal and at_k > rows.stop - 1 + n_k - n_q:
                break
            keys = slice(at_k, min(at_k + block_k, n_k))
            k, v = machine.load(K, keys), machine.load(V, keys)
            _, ds = weights(q, k, v, do, stats, at_q, at_k)
            dq = dq + np.matmul(ds, k, dtype=ds.dtype) * scale
            machine.free(k)
            machine.free(v)
        machine.store(dQ, rows, dq.astype(dQ.dtype))


def tiled_backward_in_base_2(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    log2_e, work = float(np.log2(np.e)), lse.dtype

    def load(handle, rows):
        return machine.load(handle, rows).astype(work)

    def rows_of(i, block, n):
        return i * block, min((i + 1) * block, n)

    for i in range(-(-n_q // block_q)):
        rows = rows_of(i, block_q, n_q)
        machine.store(delta, rows, (load(O, rows) * load(dO, rows)).sum(axis=1))
    for handles in ((K, V, dK, dV), (Q, dO, dQ)):
        outer_is_key = handles[0] is K
        n_outer, n_inner = (n_k, n_q) if outer_is_key else (n_q, n_k)
        outer, inner = (block_k, block_q) if outer_is_key else (block_q, block_k)
        for i in range(-(-n_outer // outer)):
            at = rows_of(i, outer, n_outer)
            stay = [load(handle, at) for handle in handles[:2]]
            stay += [] if outer_is_key else [load(lse, at), load(delta, at)]
            sums = [machine.full((at[1] - at[0], d), 0, work) for _ in handles[2:]]
            for j in range(-(-n_inner // inner)):
                by = rows_of(j, inner, n_inner)
                q_rows, k_rows = (by, at) if outer_is_key else (at, by)
                if causal and k_rows[0] > q_rows[1] - 1 + n_k - n_q:
                    continue
                passing = [load(x, by) for x in ((Q, dO, lse, delta) if outer_is_key else (K, V))]
                (k, v), (q, do, log_sum, row) = (stay, passing) if outer_is_key else (passing, stay)
                s = q @ k.T * (log2_e / np.sqrt(d))
                if causal:
                    s[np.arange(*q_rows)[:, None] + n_k - n_q < np.arange(*k_rows)] = -np.inf
                p = np.exp2(s - np.where(log_sum == -np.inf, 0, log_sum * log2_e)[:, None])
                ds = (do @ v.T - row[:, None]) * p
                sums[0] = sums[0] + (ds.T @ q if outer_is_key else ds @ k)
                if outer_is_key:
                    sums[1] = sums[1] + p.T @ do
                del passing, q, do, log_sum, row, k, v, s, p, ds
            for position, (handle, total) in enumerate(zip(handles[2:], sums, strict=True)):
                machine.store(handle, at, (total if position else total / np.sqrt(d)).astype(handle.dtype))
            del stay, sums, total


def p_and_ds_by_elements(q, k, v, do, lse, delta, first_q, first_k, n_q, n_k, causal=False):
    P, dS = np.zeros((2, len(q), len(k)), np.float32)
    for i in range(len(q)):
        for j in range(len(k)):
            if not causal or first_k + j <= first_q + i + n_k - n_q:
                P[i, j] = math.exp(q[i] @ k[j] / math.sqrt(q.shape[1]) - lse[i])
                dS[i, j] = P[i, j] * (do[i] @ v[j] - delta[i])
    return P, dS


RIGHT_ANSWERS = {
    "p_and_ds": {
        "element by element, float32": p_and_ds_by_elements,
        "base 2, the mask last": {
            "np.exp(S": "np.exp2(np.log2(np.e) * (S",
            "0.0, lse)[:, None])": "0.0, lse)[:, None]))",
        },
    },
    "softmax_vjp": {
        "row by row, with the matrix": softmax_vjp_by_matrix,
        "float32, einsum": softmax_vjp_by_einsum,
    },
    "attention_backward": {
        "delta from O, einsum": backward_by_einsum,
        "query by query, float32": backward_query_by_query,
    },
    "delta": {
        "einsum": lambda O, dO: np.einsum("id,id->i", O.astype(np.float64), dO.astype(np.float64)),
        "row by row": lambda O, dO: np.array([np.float32(o) @ np.float32(do) for o, do in zip(O, dO, strict=True)]),
    },
    "tiled_backward": {
        "columns of statistics, tiles freed by hand": tiled_backward_with_free,
        "base 2, keys before queries in the last pass too": tiled_backward_in_base_2,
    },
    "dkdv_tile": {
        "transposed scores, as the library has them": {
            "tl.dot(q, tl.trans(k), ": "tl.dot(k, tl.trans(q), ",
            "visible = mask_m[:, None] & mask_n[None, :]": "visible = mask_n[:, None] & mask_m[None, :]",
            "(offs_n[None, :] <= offs_m[:, None] + n_k - n_q)": "(offs_n[:, None] <= offs_m[None, :] + n_k - n_q)",
            "tl.exp(s - lse[:, None])": "tl.exp(s - lse[None, :])",
            "tl.dot(do, tl.trans(v), ": "tl.dot(v, tl.trans(do), ",
            "dp - delta[:, None]": "dp - delta[None, :]",
            "tl.trans(p).to(do.dtype), do": "p.to(do.dtype), do",
            "tl.trans(ds).to(q.dtype), q": "ds.to(q.dtype), q",
        },
        "results in the inputs' dtype": {
            "dk * scale, mask": "(dk * scale).to(k.dtype), mask",
            "dv, mask": "dv.to(v.dtype), mask",
        },
        "the first query tile is not rounded, and reads less": {" // BLOCK_M * BLOCK_M\n": "\n"},
        "base 2, scale inside the loop": {
            "        visible = mask_m[:, None]": "        s *= 1.4426950408889634\n        visible = mask_m[:, None]",
            "tl.exp(s - lse[:, None])": "tl.exp2(s - lse[:, None] * 1.4426950408889634)",
            "ds = p * (": "ds = scale * p * (",
            "dk * scale": "dk",
        },
    },
}
