import numpy as np


def share_by_ratio(n, width, heads, kv_heads, head_dim, hidden, times_as_fast):
    """From FLOPs a token, and times instead of shares."""
    numbers = heads * head_dim * width * 2 + 2 * kv_heads * head_dim * width + 2 * width * hidden
    attention = 14 * heads * head_dim * np.mean(np.arange(1, n + 1))
    before = 6 * numbers + attention
    return [attention / before, before / (6 * numbers + attention / times_as_fast)]


def attention_of_each_sequence(kernel, query, key, value, attention_mask, scaling=None):
    """Query rows by their tokens' numbers, heads copied one by one."""
    (batch, heads, n_q, d), n_k = query.shape, key.shape[2]
    group = [h // (heads // key.shape[1]) for h in range(heads)]
    o = np.zeros((batch, heads, n_q, d), np.float32)
    for b in range(batch):
        real = np.ones(n_k, bool) if attention_mask is None else attention_mask[b].astype(bool)
        rows = np.flatnonzero(real[n_k - n_q :])
        if len(rows):
            given = query[b][:, rows], key[b][group][:, real], value[b][group][:, real]
            o[b][:, rows] = kernel.attention(*given, 1 / np.sqrt(d) if scaling is None else scaling)
    return o.swapaxes(1, 2)


def step_by_loops(parameters, gradients, n_tokens, loss_scale, learning_rate, max_norm):
    """In float64, micro-batch by micro-batch."""
    mean = [np.zeros(w.shape) for w in parameters]
    for n, of_batch in zip(n_tokens, gradients, strict=True):
        for total, g in zip(mean, of_batch, strict=True):
            if not np.isfinite(g).all():
                return list(parameters), 0.5 * loss_scale
            total += n * g.astype(np.float64)
    for total in mean:
        total /= sum(n_tokens) * loss_scale
    norm = np.linalg.norm([np.linalg.norm(total) for total in mean])
    if norm > max_norm:
        mean = [total * (max_norm / norm) for total in mean]
    return [np.float32(w - learning_rate * total) for w, total in zip(parameters, mean, strict=True)], loss_scale


RIGHT_ANSWERS = {
    "attention_share": {"by the token": share_by_ratio},
    "course_attention": {"sequence by sequence": attention_of_each_sequence},
    "train_step": {"in float64": step_by_loops},
}
