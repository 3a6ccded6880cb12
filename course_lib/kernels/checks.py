"""What the public functions accept and refuse: each check raises TypeError or ValueError, and names the argument."""

import math
import numbers

import torch

from course_lib import runtime

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
MAX_HEADS = 65_535  # what the second axis of a CUDA grid holds
COMPILED = runtime.mode() == "gpu"
# Whether `flash_decode` checks the values of lengths and block_table. The host then waits for the GPU at every call.
# In the interpreter they are always checked.
DEBUG = False


def check_tensors(q, k, v):
    """Refuse q, k and v unless they are as `flash_attention` takes them."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    batch, n_heads, n_q, head_dim = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    for name, x in (("k", k), ("v", v)):
        check_like_q(name, x, q)
        if x.shape[0] != batch:
            raise ValueError(f"{name} has batch {x.shape[0]} but q has {batch}; they must be equal")
    check_device(q)
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {shape_of(k)}, got {shape_of(v)}")
    check_head_dim(head_dim)
    for name, heads, length in (("q", n_heads, n_q), ("k", n_kv_heads, n_k)):
        if length < 1:
            raise ValueError(f"{name} has sequence length 0; it must be at least 1")
        if heads < 1:
            raise ValueError(f"{name} has 0 heads; it must have at least 1")
    check_heads(n_heads, "k and v", n_kv_heads)


def check_caches(q, k_cache, v_cache, lengths, block_table):
    """Refuse all but such tensors as `flash_decode` takes. Their values are not looked at."""
    first, third = ("batch", "capacity") if block_table is None else ("n_pages", "page_size")
    check_tensor("q", q, "batch, heads, n_new, head_dim")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, x, f"{first}, kv_heads, {third}, head_dim")
        check_like_q(name, x, q)
    check_device(q)
    if v_cache.shape != k_cache.shape:
        raise ValueError(f"v_cache must have k_cache's shape {shape_of(k_cache)}, got {shape_of(v_cache)}")
    batch, n_heads, n_new, head_dim = q.shape
    n_pages, n_kv_heads, page_size, _ = k_cache.shape
    check_head_dim(head_dim)
    for name, axis, size in (
        ("q", "heads", n_heads), ("q", "n_new", n_new),
        ("k_cache", "kv_heads", n_kv_heads), ("k_cache", third, page_size),
    ):  # fmt: skip
        if size < 1:
            raise ValueError(f"{name} has {axis} 0; it must be at least 1")
    check_heads(n_heads, "k_cache and v_cache", n_kv_heads)
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        # A copy of a whole cache at every call would take longer than the call.
        if x.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, whose stride is {x.stride(-1)}")
    check_integers("lengths", lengths, q, (torch.int32, torch.int64), "batch")
    if block_table is None:
        if n_pages != batch:
            raise ValueError(f"k_cache has batch {n_pages} but q has {batch}; they must be equal")
        return
    check_integers("block_table", block_table, q, (torch.int32,), "batch, pages")
    if page_size < 16 or page_size & (page_size - 1):
        raise ValueError(f"k_cache has page_size {page_size}; accepted: powers of two from 16 up")
    if block_table.shape[1] < 1:
        raise ValueError("block_table has pages 0; it must be at least 1")


def check_integers(name, x, q, dtypes, axes):
    """Refuse x unless it is a tensor of these axes, the first of q's batch, in one of dtypes, on q's device."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {name_of(x.dtype)}; accepted: {', '.join(map(name_of, dtypes))}")
    if x.dim() != axes.count(",") + 1 or x.shape[0] != q.shape[0]:
        raise ValueError(f"{name} must have shape [{axes}] with batch {q.shape[0]}, got {shape_of(x)}")
    check_device_of(name, x, q)


def check_values(lengths, block_table, k_cache, n_new, window_left):
    """Refuse lengths that the cache cannot have, and pages that are not there. Waits for the GPU."""
    n_pages, _, page_size, _ = k_cache.shape
    capacity = page_size if block_table is None else block_table.shape[1] * page_size
    for b in torch.nonzero((lengths != 0) & ((lengths < n_new) | (lengths > capacity))).flatten().tolist():
        raise ValueError(f"lengths[{b}] is {lengths[b]}; accepted: {n_new} (the new tokens) to {capacity}, or 0")
    if block_table is None:
        return
    first_keys = torch.arange(0, capacity, page_size, device=lengths.device)
    is_read = first_keys < lengths[:, None]
    if window_left is not None:
        is_read &= first_keys + page_size > lengths[:, None] - n_new - window_left
    for b, p in torch.nonzero(is_read & ((block_table < 0) | (block_table >= n_pages))).tolist():
        raise ValueError(f"block_table[{b}, {p}] is {block_table[b, p]}; accepted: 0 to {n_pages - 1}")


def check_tensor(name, x, axes="batch, heads, seq, head_dim"):
    """Refuse x unless it is a tensor of these axes in a dtype of DTYPES."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dim() != 4:
        raise ValueError(f"{name} must have 4 dimensions [{axes}], got {shape_of(x)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {name_of(x.dtype)}; accepted: {', '.join(map(name_of, DTYPES))}")


def check_like_q(name, x, q):
    """Refuse x unless dtype, device and head_dim are q's."""
    if x.dtype != q.dtype:
        raise TypeError(f"{name} has dtype {name_of(x.dtype)} but q has {name_of(q.dtype)}; they must be equal")
    check_device_of(name, x, q)
    if x.shape[-1] != q.shape[-1]:
        raise ValueError(f"{name} has head_dim {x.shape[-1]} but q has {q.shape[-1]}; they must be equal")


def check_device_of(name, x, q):
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device} but q is on {q.device}; they must be on one device")


def check_device(q):
    if COMPILED and not q.is_cuda:
        raise ValueError(f"q, k and v are on {q.device}; kernels run compiled here and take CUDA tensors")


def check_head_dim(head_dim):
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be 1 to {MAX_HEAD_DIM}, got {head_dim}")


def check_heads(n_heads, names, n_kv_heads):
    """Refuse numbers of heads, neither of them 0, that do not fit each other. names: whose n_kv_heads is."""
    if n_heads > MAX_HEADS:
        raise ValueError(f"q has {n_heads} heads; at most {MAX_HEADS} are accepted (the batch may be larger)")
    if n_heads % n_kv_heads:
        raise ValueError(f"{names} have {n_kv_heads} heads, which do not divide q's {n_heads}")


def check_flag(name, value):
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_scale(scale, head_dim):
    """scale as a float; 1/sqrt(head_dim) for None."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale must be a real number or None, got {scale!r}")
    if not abs(float(scale)) <= 1e38:
        raise ValueError(f"scale must be finite in fp32 (at most 1e38 in size), got {scale!r}")
    return float(scale)


def check_int_range(name, value, least, most):
    """Refuse value unless it is None or a whole number from least to most."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number or None, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most} or None, got {value}")


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def shape_of(x):
    return str(list(x.shape))
