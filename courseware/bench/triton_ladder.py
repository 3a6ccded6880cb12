"""The forward kernel as a ladder: from the plain kernel to the shipped one, one idea a rung.

triton_ladder.toml lists the rungs in the order of lesson 11's worklog. The first ones launch `kernels.plain_forward`,
the last one `kernels.forward`. Between them, `ladder_kernel` has every idea as a constexpr flag; without flags it is
the plain kernel with cheaper addresses.
"""

import difflib
import inspect
from pathlib import Path

import torch

from course_lib import runtime
from course_lib.kernels.checks import check_tensors
from course_lib.kernels.configs import select
from course_lib.kernels.device import LOG2_E, kv_loop_bounds, load_tile, round_to, store_tile, visible
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.launch import descriptor
from course_lib.kernels.plain_forward import plain_attention
from course_lib.language import tl, triton
from courseware.bench import ladder
from courseware.bench.flash1_forward import flash1_attention
from courseware.editing import specialized


@triton.jit
def update(
    m_i, l_i, acc, scores, v, scale,
    EXP: tl.constexpr, FUSED_SCALE: tl.constexpr, LAZY_RESCALE: tl.constexpr, DIVIDE_ALWAYS: tl.constexpr,
):  # fmt: skip
    """The online-softmax update: m_i, l_i fp32 [BLOCK_M]; scores fp32 [BLOCK_M, BLOCK_N], not yet scaled.

    scale is the softmax scale, times log2(e) unless EXP. Every row has seen a key, because there are as many queries as
    keys and the first key tile comes first.
    """
    if FUSED_SCALE:
        m_new = tl.maximum(m_i, tl.max(scores, axis=1) * scale)
        if LAZY_RESCALE is not None:
            growth = m_new - m_i if LAZY_RESCALE == "each row" else tl.max(m_new - m_i, axis=0)
            has_grown = growth > 8.0
            m_new = tl.where(has_grown, m_new, m_i)
        exponents = scores * scale - m_new[:, None]
    else:
        scores = scores * scale
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        exponents = scores - m_new[:, None]
    if EXP:
        p, alpha = tl.exp(exponents), tl.exp(m_i - m_new)
    else:
        p, alpha = tl.exp2(exponents), tl.exp2(m_i - m_new)
    l_new = l_i * alpha + tl.sum(p, axis=1)
    # [BLOCK_M, BLOCK_N] @ [BLOCK_N, HEAD_DIM]
    if LAZY_RESCALE == "skip":
        if has_grown:
            acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
    elif DIVIDE_ALWAYS:
        acc = tl.dot(p.to(v.dtype), v, acc * (l_i * alpha)[:, None], input_precision="ieee") / l_new[:, None]
    else:
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_new, acc


@triton.jit
def attend(
    q, k_ptr, v_ptr, k_desc, v_desc, head, start_m, offs_m, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_ENDS: tl.constexpr, FUSED_SCALE: tl.constexpr, EXP: tl.constexpr = False, SCALE_Q: tl.constexpr = False,
    LAZY_RESCALE: tl.constexpr = None, DIVIDE_ALWAYS: tl.constexpr = False, VISIT_HIDDEN: tl.constexpr = False,
):  # fmt: skip
    """The output, fp32 [BLOCK_M, HEAD_DIM], of the query tile q. k_ptr, v_ptr: the first element of the head.

    MASK_ENDS: mask only the tiles that hide something from a query. FUSED_SCALE: scale and subtract in one instruction,
    as the shipped kernel does. EXP: natural exponentials. SCALE_Q: multiply q by the scale, and round it, instead of
    the scores. LAZY_RESCALE: "skip": keep m_i, and with it acc, unless some row's maximum has grown by more than 8
    (log2), so p <= 256; "vote": the same, but multiply acc all the same; "each row": and each row decides for itself.
    DIVIDE_ALWAYS: acc is divided by l_i after every tile, as FA1 Alg. 1, line 12, keeps it. VISIT_HIDDEN:
    visit tiles that no query of the program sees, too.
    """
    if not EXP:
        scale *= LOG2_E
    if SCALE_Q:
        q = (q * scale).to(q.dtype)
        scale = 1.0
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    full_end, kv_end = kv_loop_bounds(start_m, n, n, IS_CAUSAL, BLOCK_M, BLOCK_N)
    if VISIT_HIDDEN:
        kv_end = n
    if not MASK_ENDS:
        full_end = 0
    for MASKED in tl.static_range(0 if MASK_ENDS else 1, 2):
        start, end = (full_end, kv_end) if MASKED else (0, full_end)
        # When tiles are loaded by pointer and both loops are prefetched, ptxas serializes every wgmma (C7515).
        for start_n in tl.range(start, end, BLOCK_N, num_stages=(1 if MASKED else None) if k_desc is None else None):
            k = load_tile(k_ptr, k_desc, 0, head, start_n, n, HEAD_DIM, MASKED, HEAD_DIM, BLOCK_N, HEAD_DIM)
            v = load_tile(v_ptr, v_desc, 0, head, start_n, n, HEAD_DIM, MASKED, HEAD_DIM, BLOCK_N, HEAD_DIM)
            # [BLOCK_M, HEAD_DIM] @ [HEAD_DIM, BLOCK_N]
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            if MASKED:
                offs_n = start_n + tl.arange(0, BLOCK_N)
                scores = tl.where(visible(offs_m[:, None], offs_n[None, :], n, n, IS_CAUSAL), scores, float("-inf"))
            m_i, l_i, acc = update(m_i, l_i, acc, scores, v, scale, EXP, FUSED_SCALE, LAZY_RESCALE, DIVIDE_ALWAYS)
    return acc if DIVIDE_ALWAYS else acc / l_i[:, None]


@triton.jit
def ladder_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, q_desc, k_desc, v_desc, o_desc, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_ENDS: tl.constexpr = False, FUSED_SCALE: tl.constexpr = False, EXP: tl.constexpr = False,
    SCALE_Q: tl.constexpr = False, LAZY_RESCALE: tl.constexpr = None, DIVIDE_ALWAYS: tl.constexpr = False,
    VISIT_HIDDEN: tl.constexpr = False, LONGEST_FIRST: tl.constexpr = False, HEADS_FASTEST: tl.constexpr = False,
    GROUPED_HEADS: tl.constexpr = False,
):  # fmt: skip
    """Program (i, h) computes query tile i of head h. q, k, v, o: [heads, n, HEAD_DIM], contiguous.

    q_desc, k_desc, v_desc, o_desc: descriptors by which the tensor is loaded or stored, or None.
    LONGEST_FIRST: program 0 takes the last query tile, which under a causal mask sees the most keys. HEADS_FASTEST: the
    grid is (heads, tiles), so that one tile of every head comes before the next tile. GROUPED_HEADS: the same for eight
    heads at a time. The other flags: see `attend`.
    """
    # The first axis of the grid runs fastest.
    pid_m = tl.program_id(1 if HEADS_FASTEST else 0)
    head = tl.program_id(0 if HEADS_FASTEST else 1)
    if GROUPED_HEADS:
        heads_here = tl.minimum(8, tl.num_programs(1) - head // 8 * 8)
        pid_in_group = head % 8 * tl.num_programs(0) + pid_m
        pid_m = pid_in_group // heads_here
        head = head // 8 * 8 + pid_in_group % heads_here
    if LONGEST_FIRST:
        pid_m = tl.cdiv(n, BLOCK_M) - 1 - pid_m
    head_elems = tl.cast(head, tl.int64) * n * HEAD_DIM
    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q = load_tile(q_ptr + head_elems, q_desc, 0, head, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)
    o = attend(
        q, k_ptr + head_elems, v_ptr + head_elems, k_desc, v_desc, head, start_m, offs_m, n, scale,
        IS_CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N,
        MASK_ENDS, FUSED_SCALE, EXP, SCALE_Q, LAZY_RESCALE, DIVIDE_ALWAYS, VISIT_HIDDEN,
    )  # fmt: skip
    if o_desc is not None:
        o_desc.store([0, head, start_m, 0], round_to(o, o_ptr.dtype.element_ty).reshape(1, 1, BLOCK_M, HEAD_DIM))
    else:
        store_tile(o_ptr + head_elems, o, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)


@triton.jit
def load_queries(q_ptr, place, n_heads, n, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """(head, start_m, tile of q) at a place in the order of `ladder_kernel`'s programs; zeros after the last."""
    n_tiles = tl.cdiv(n, BLOCK_M)
    head = place // n_tiles
    start_m = (n_tiles - 1 - place % n_tiles) * BLOCK_M
    head_ptr = q_ptr + tl.cast(head, tl.int64) * n * HEAD_DIM
    n_rows = tl.where(head < n_heads, n, 0)
    q = load_tile(head_ptr, None, 0, head, start_m, n_rows, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)
    return head, start_m, q


@triton.jit
def persistent_kernel(
    q_ptr, o_ptr, k_desc, v_desc, n_heads, n, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`ladder_kernel` as the rung "shipped tiles" has it, but each program computes many query tiles.

    Program i takes the tiles i, i + num_programs, ... of all heads. q, k, v, o: [n_heads, n, HEAD_DIM].
    """
    head, start_m, q_next = load_queries(q_ptr, tl.program_id(0), n_heads, n, HEAD_DIM, BLOCK_M)
    for place in tl.range(tl.program_id(0), tl.cdiv(n, BLOCK_M) * n_heads, tl.num_programs(0), num_stages=1):
        this_head, this_start, q = head, start_m, q_next
        head, start_m, q_next = load_queries(q_ptr, place + tl.num_programs(0), n_heads, n, HEAD_DIM, BLOCK_M)
        offs_m = this_start + tl.arange(0, BLOCK_M)
        o = attend(
            q, None, None, k_desc, v_desc, this_head, this_start, offs_m, n, scale,
            IS_CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, MASK_ENDS=True, FUSED_SCALE=True,
        )  # fmt: skip
        o_head = o_ptr + tl.cast(this_head, tl.int64) * n * HEAD_DIM
        store_tile(o_head, o, this_start, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, HEAD_DIM)


def launch_ladder(q, k, v, *, causal, config, descriptors="", persistent=False, **flags):
    """descriptors: the tensors that come and go by descriptor, "kv" for k and v.

    persistent: launch `persistent_kernel`, which has the flags of "shipped tiles" by itself.
    """
    batch, heads, n, head_dim = q.shape
    tensors = dict(zip("qkvo", (q, k, v, torch.empty_like(q)), strict=True))
    flat = {name: x.view(1, batch * heads, n, head_dim) for name, x in tensors.items()}
    block_m, block_n, num_warps, num_stages = config or select(
        "forward", dtype=q.dtype, head_dim=head_dim, causal=causal, capability=runtime.capability(q.device), n_k=n,
        by_descriptor="k" in descriptors, n_rows=batch * heads * n,
    )  # fmt: skip
    rows = {"q": block_m, "k": block_n, "v": block_n, "o": block_m}
    described = {name: descriptor(x, rows[name]) if name in descriptors else None for name, x in flat.items()}
    options = {
        "IS_CAUSAL": causal, "HEAD_DIM": head_dim, "BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps,
        "num_stages": num_stages,
    }  # fmt: skip
    if persistent:
        # As many programs as run at once: one of 8 warps, or two of 4, on a multiprocessor.
        on_gpu = runtime.mode() == "gpu"
        sms = torch.cuda.get_device_properties(q.device).multi_processor_count if on_gpu else 3
        persistent_kernel[(sms * 8 // num_warps,)](
            flat["q"], flat["o"], described["k"], described["v"], batch * heads, n, head_dim**-0.5, **options
        )
    else:
        grid = (triton.cdiv(n, block_m), batch * heads)
        ladder_kernel[grid[::-1] if flags.get("HEADS_FASTEST") else grid](
            *flat.values(), *described.values(), n, head_dim**-0.5, **flags, **options
        )
    return tensors["o"]


def launch_plain(q, k, v, *, causal, config, dtype=None):
    inputs = (x.to(getattr(torch, dtype) if dtype else x.dtype) for x in (q, k, v))
    return plain_attention(*inputs, causal=causal, block_q=config[0], block_k=config[1])[0].to(q.dtype)


def launch_flash1(q, k, v, *, causal, config):
    return flash1_attention(q, k, v, causal=causal, block_q=config[0], block_k=config[1])[0]


def launch_shipped(q, k, v, *, causal, config):
    return flash_forward(q, k, v, causal=causal, scale=q.shape[-1] ** -0.5, store_lse=False, config=config)[0]


LAUNCHES = {"plain": launch_plain, "ladder": launch_ladder, "flash1": launch_flash1, "shipped": launch_shipped}


def launch(rung, q, k, v, *, causal):
    return LAUNCHES[rung.kernel](q, k, v, causal=causal, **rung.options)


# A rung's kernel is a name in LAUNCHES, and its options are the keywords of that launch; their config is (BLOCK_M,
# BLOCK_N, num_warps, num_stages), empty for what `configs.select` says.
RUNGS = tuple(ladder.read(Path(__file__).with_suffix(".toml"), launch).values())


def code_of(rung):
    """How a rung is launched, with head_dim 128 and a causal mask; and then, of `ladder_kernel`, its code: lines."""
    options = dict(rung.options)
    shape = {"dtype": torch.float16, "head_dim": 128, "causal": True, "n_k": 4096}
    options["config"] = tuple(options["config"] or select("forward", capability=(9, 0), by_descriptor=True, **shape))
    described, is_persistent = options.get("descriptors", ""), options.pop("persistent", False)
    named = {"kernel": rung.kernel, "BLOCK_M, BLOCK_N, num_warps, num_stages": options.pop("config"), **options}
    lines = [f"{name} = {value}" for name, value in named.items() if not name.isupper()]
    if rung.kernel != "ladder":
        return lines
    kernel = persistent_kernel if is_persistent else ladder_kernel
    parameters = [p for each in (attend, ladder_kernel) for p in inspect.signature(each.fn).parameters.values()]
    flags = {p.name: p.default for p in parameters if p.default is not p.empty} | {"IS_CAUSAL": True} | options
    flags |= {f"{name}_desc": ... if name in described else None for name in "qkvo"}
    flags["desc"] = flags["k_desc"]
    return lines + [line for each in (kernel, attend, update, load_tile) for line in specialized(each, flags)]


def change_of(name):
    """What the rung of this name changes in the one that it builds on, as a diff.

    Lines that are only indented otherwise stand as unchanged. Of a rung with another kernel, only its name is shown.
    """
    rungs = {rung.name: rung for rung in RUNGS}
    old, new = (code_of(rung) for rung in (rungs[rungs[name].builds_on], rungs[name]))
    if old[0] != new[0]:
        return f"- {old[0]}\n+ {new[0]}"
    shown, stripped = [], ([line.strip() for line in lines] for lines in (old, new))
    for group in difflib.SequenceMatcher(None, *stripped, autojunk=False).get_grouped_opcodes(1):
        for kind, i, i_end, j, j_end in group:
            removed = [] if kind == "equal" else [f"- {line}" for line in old[i:i_end]]
            shown += removed + [f"{' +'[kind != 'equal']} {line}" for line in new[j:j_end]]
        shown.append("  ...")
    return "\n".join(shown[:-1])


def run(rung, q, k, v, *, causal):
    """Attention by one rung: o, like q, k and v [batch, heads, n, head_dim], fp16 or bf16, contiguous, of one shape.

    n is any length from 2 up, head_dim a power of two from 16 to 256, the scale 1/sqrt(head_dim). Raises TypeError or
    ValueError for other inputs, Triton's OutOfResources where the tiles do not fit the GPU.
    Triton compiles a length of 1 into the code, and there ptxas 12.8 crashes on two of the rungs.
    """
    check_tensors(q, k, v)
    head_dim = q.shape[-1]
    if q.shape != k.shape or not all(x.is_contiguous() for x in (q, k, v)):
        raise ValueError("q, k and v must be contiguous and have one shape")
    if q.shape[2] < 2:
        raise ValueError("rungs take 2 or more queries and keys, not 1")
    if q.dtype == torch.float32 or head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"rungs take fp16 or bf16, head_dim 16, 32, 64, 128 or 256, not {q.dtype}, {head_dim}")
    return rung.launch(q, k, v, causal=causal)
