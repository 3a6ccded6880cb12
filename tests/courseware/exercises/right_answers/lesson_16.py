import numpy as np


def shards_by_lists(n, ranks):
    """Tokens in lists, and the inverse by sorting."""
    if n % (2 * ranks) != 0:
        raise ValueError("not divided")
    chunk = n // ranks // 2
    rows = [
        [*range(rank * chunk, (rank + 1) * chunk), *range(n - (rank + 1) * chunk, n - rank * chunk)]
        for rank in range(ranks)
    ]
    return rows, np.argsort(np.concatenate(rows)).tolist()


def blocks_from_tokens(rank, step, ranks, n, zigzag):
    """From the mask itself."""

    def tokens(rank):
        half = np.arange(n // 2)
        early, late = (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)
        return np.concatenate([early * n // 2 + half, late * n // 2 + half])

    visible = tokens(rank)[:, None] >= tokens((rank - step) % ranks)
    if not visible.any():
        return None
    rows, keys = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    block = visible[rows[0] : rows[-1] + 1, keys[0] : keys[-1] + 1]
    return (rows[0], rows[-1] + 1), (keys[0], keys[-1] + 1), not block.all()


def ring_of_merged_outputs(link, Q, K, V, causal):
    """Each shard gives an output and a log-sum-exp, and keys and values travel as one array."""
    ranks, n, d = Q.shape
    chunks = np.arange(2 * ranks * (n // 2)).reshape(2 * ranks, -1)
    tokens = [np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]
    held = [np.concatenate([K[rank], V[rank]], axis=1) for rank in range(ranks)]
    whole, whole_lse = np.zeros(Q.shape), np.full((ranks, n), -np.inf)
    for step in range(ranks):
        for rank in range(ranks):
            S = Q[rank] @ held[rank][:, :d].T * d**-0.5
            if causal:
                S = np.where(tokens[rank][:, None] >= tokens[rank - step], S, -np.inf)
            with np.errstate(invalid="ignore"):
                lse = np.logaddexp.reduce(S, axis=1)
                o = np.exp(S - np.where(np.isinf(lse), 0, lse)[:, None]) @ held[rank][:, d:]
            both = np.logaddexp(whole_lse[rank], lse)
            whole[rank] = whole[rank] * np.exp(whole_lse[rank] - both)[:, None] + o * np.exp(lse - both)[:, None]
            whole_lse[rank] = both
        if step + 1 < ranks:
            arrived = [link.send(rank, held[rank]) for rank in range(ranks)]
            held = [arrived[rank - 1] for rank in range(ranks)]
    return whole


def waits_by_events(pairs, n, d, heads, kv_heads, flops_per_s, bytes_per_s):
    """Rank by rank, in lists."""
    ranks, transfer = len(pairs), 4.0 * n * d * kv_heads / bytes_per_s
    start, waited = [0.0] * ranks, [0.0] * ranks
    for step in range(ranks - 1):
        following = []
        for rank in range(ranks):
            done = start[rank] + 4.0 * d * heads * pairs[rank][step] / flops_per_s
            partners = start[rank], start[rank - 1], start[(rank + 1) % ranks]
            following.append(max(done, max(partners) + transfer))
            waited[rank] += following[rank] - done
        start = following
    return waited


RIGHT_ANSWERS = {
    "zigzag_shards": {"by lists": shards_by_lists},
    "visible_blocks": {"from the tokens": blocks_from_tokens},
    "ring_attention": {"of merged outputs": ring_of_merged_outputs},
    "exposed_seconds": {"rank by rank": waits_by_events},
}
