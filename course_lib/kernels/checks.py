"""What the public functions accept and refuse: each check raises TypeError or ValueError, and names the argument."""

import math
import numbers

import torch
from torch.autograd.forward_ad import unpack_dual

from course_lib import masks, runtime
from course_lib.kernels.configs import BLOCK_SIZES
from course_lib.kernels.score_mods import ScoreMod

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
MAX_GRID_AXIS = 65_535  # programs along the second and third axes of a CUDA grid; the first takes 2^31 - 1
NO_FORWARD_MODE = "no forward-mode derivatives; use reverse mode: backward, torch.func.grad or torch.func.vjp"
COMPILED = runtime.mode() == "gpu"
# Whether the values of lengths, block_table and key_ranges are checked. The host then waits for the GPU at every call.
# In the interpreter they are always checked.
DEBUG = False


def check_tensors(q, k, v):
    """Refuse q, k and v unless they are as `flash_attention` takes them."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    batch, n_heads, _, head_dim = q.shape
    n_kv_heads = k.shape[1]
    for name, x in (("k", k), ("v", v)):
        check_like_q(name, x, q)
        if x.shape[0] != batch:
            raise ValueError(f"{name} has batch {x.shape[0]} but q has {batch}; they must be equal")
    check_device(q)
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {shape_of(k)}, got {shape_of(v)}")
    check_head_dim(head_dim)
    for name, heads in (("q", n_heads), ("k", n_kv_heads)):
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
    if n_kv_heads > MAX_GRID_AXIS:
        raise ValueError(f"k_cache has {n_kv_heads} kv_heads; at most {MAX_GRID_AXIS} are accepted; call it for some")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        # A copy of a whole cache at every call would take longer than the call.
        if x.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, whose stride is {x.stride(-1)}")
    check_integers("lengths", lengths, q, (torch.int32, torch.int64), "batch")
    if block_table is None:
        if n_pages != batch:
            raise ValueError(f"k_cache has batch {n_pages} but q has {batch}; they must be equal")
        return
    check_integers("block_table", block_table, q, (torch.int32, torch.int64), "batch, pages")
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
    if x.layout != torch.strided:
        raise TypeError(
            f"{name} has layout {x.layout}; accepted: strided. Sequences of several lengths go into one row, with "
            "masks.packed(...)"
        )
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
    if COMPILED and not q.is_cuda and not q.is_meta:
        raise ValueError(f"q, k and v are on {q.device}; kernels run compiled here and take CUDA tensors")


def check_head_dim(head_dim):
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim must be 1 to {MAX_HEAD_DIM}, got {head_dim}; PyTorch's scaled_dot_product_attention takes more"
        )


def check_heads(n_heads, names, n_kv_heads):
    """Refuse numbers of heads, neither of them 0, that do not fit each other. names: whose n_kv_heads is."""
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
    """value as an int, or None; refused unless it is None or a whole number from least to most."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number or None, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most} or None, got {value}")
    return int(value)


def check_block(name, block):
    """block as an int, or None."""
    if block is None:
        return None
    if isinstance(block, bool) or block not in BLOCK_SIZES:
        raise ValueError(f"{name} must be one of {', '.join(map(str, BLOCK_SIZES))} or None, got {block!r}")
    return int(block)


def check_not_differentiated(function, **tensors):
    """Refuse a call that autograd or torch.func takes part in, by a function that has no derivative."""
    for name, x in tensors.items():
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(f"{name} requires a gradient, which {function} does not compute; call it under no_grad")
        if not torch.compiler.is_compiling() and unpack_dual(x).tangent is not None:
            raise NotImplementedError(f"{name} has a tangent, and {function} has no derivatives")
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{function} does not work inside torch.func transforms; make a mapped dimension part of the batch"
        )


def check_mask(mask, causal):
    """One mask of both."""
    if mask is None:
        return masks.causal() if causal else masks.full()
    if isinstance(mask, torch.Tensor):
        raise TypeError(
            "mask is a Tensor; accepted: None or what functions of course_lib.masks return: from_dense(mask) for bool, "
            "key_lengths(lengths) for padding. To add numbers to the scores, write a score_mod"
        )
    if not isinstance(mask, masks.Mask):
        raise TypeError(
            f"mask is a {type(mask).__name__}; accepted: None or what functions of course_lib.masks return. A function "
            "of (batch, head, i, j) becomes a mask by from_function(...)"
        )
    if causal and isinstance(mask, masks.Packed):
        raise ValueError("causal is True and mask is packed(...); write packed(..., within=causal()), which is aligned")
    return mask & masks.causal() if causal else mask


def check_key_ranges(key_ranges, mask, causal, q):
    """key_ranges, contiguous. Their values are not looked at."""
    if causal or mask is not None:
        raise ValueError("key_ranges is given with causal or mask, whose place it takes; clip it to what they show")
    check_integers("key_ranges", key_ranges, q, (torch.int32,), "batch, 2, n_q")
    if key_ranges.shape[1:] != (2, q.shape[2]):
        raise ValueError(
            f"key_ranges must have shape [batch, 2, n_q] with n_q {q.shape[2]}, got {shape_of(key_ranges)}"
        )
    return key_ranges.contiguous()


def check_key_range_values(key_ranges, n_k):
    """Refuse ranges with an end that is no key's, or that moves left. Waits for the GPU."""
    if key_ranges.numel() and not 0 <= key_ranges.min() <= key_ranges.max() <= n_k:
        raise ValueError(
            f"key_ranges has entries from {key_ranges.min()} to {key_ranges.max()}; accepted: 0 to {n_k}, the number "
            "of keys"
        )
    for b, end, i in torch.nonzero(key_ranges.diff(dim=2) < 0).tolist():
        before, after = key_ranges[b, end, i : i + 2].tolist()
        raise ValueError(f"key_ranges[{b}, {end}] goes down from {before} to {after} at query {i + 1}")


def check_score_mods(score_mod, q):
    """(codes of the ScoreMods, their parameters, fp32 [mods, batch, heads], or None without any)."""
    if score_mod is None:
        return (), None
    mods = tuple(score_mod) if isinstance(score_mod, tuple | list) else (score_mod,)
    for mod in mods:
        if not isinstance(mod, ScoreMod):
            raise TypeError(f"score_mod is {mod!r}; accepted: a ScoreMod, several in a tuple, or None")
    parameters = [_parameter(mod.parameter, q) for mod in mods]
    return tuple(mod.code for mod in mods), torch.stack(parameters) if mods else None


def _parameter(parameter, q):
    """The parameter of a ScoreMod for every head: fp32 [batch, heads]."""
    batch, n_heads = q.shape[:2]
    if isinstance(parameter, numbers.Real):
        # Filled in: copied to the GPU, a number would make the host wait for the GPU.
        return torch.full((batch, n_heads), float(parameter), dtype=torch.float32, device=q.device)
    if torch.is_grad_enabled() and getattr(parameter, "requires_grad", False):
        raise ValueError("the parameter of a score_mod requires a gradient, which it does not get; detach it")
    parameter = torch.as_tensor(parameter, dtype=torch.float32, device=q.device).detach()
    if parameter.shape not in ((), (n_heads,), (batch, n_heads)):
        raise ValueError(
            f"the parameter of a score_mod has shape {shape_of(parameter)}; accepted: a number, [{n_heads}] or "
            f"[{batch}, {n_heads}]"
        )
    return parameter.expand(batch, n_heads)


def check_sinks(sinks, q):
    """sinks as fp32 [heads], or None."""
    if sinks is None:
        return None
    if not isinstance(sinks, torch.Tensor) or sinks.shape != (q.shape[1],) or not sinks.is_floating_point():
        found = f"{sinks.dtype} {shape_of(sinks)}" if isinstance(sinks, torch.Tensor) else repr(sinks)
        raise ValueError(f"sinks is {found}; accepted: floating-point [{q.shape[1]}], one a head")
    check_device_of("sinks", sinks, q)
    return sinks.float().contiguous()


def check_dropout(dropout_p, seed, q):
    """(dropout_p, seed as int64 [1] on q's device, or None without dropout)."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, numbers.Real) or not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is {dropout_p!r}; accepted: numbers from 0 to 1")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**63):
        raise ValueError(f"seed is {seed!r}; accepted: whole numbers from 0 to 2^63 - 1, or None for a random one")
    if not dropout_p:
        return 0.0, None
    of_seed = dict(dtype=torch.int64, device=q.device)
    if seed is None:  # by the generator of q's device, of which each replay of a CUDA graph draws anew
        return float(dropout_p), torch.randint(2**63 - 1, (1,), **of_seed)
    return float(dropout_p), torch.full((1,), int(seed), **of_seed)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def shape_of(x):
    return str(list(x.shape))
