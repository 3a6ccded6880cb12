"""Lesson 08, the forward kernel: the exercises' answers, hints, properties and plausible wrong answers.

The kernel is FlashAttention-2 (Dao, 2023), Alg. 1: lesson 05's update in lesson 06's loop.
"""

import numpy as np

from course_lib import reference, traffic
from course_lib.exercises.lesson_06 import (
    ACC_NOT_RESCALED,
    CAUSAL_IGNORED,
    FROM_OWN_MAX,
    L_NOT_RESCALED,
    MASKED_AS_ZERO,
    NOT_DIVIDED,
    ONE_TOO_FEW,
    ONE_TOO_MANY,
    PADDED,
    SHARED_HINTS,
    SHARED_MISTAKES,
    UNSCALED,
    UPSIDE_DOWN,
    draw_counts,
    only,
    output_parts,
)
from course_lib.grading.diagnosis import compare, show
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
    option,
)
from course_lib.grading.kernel_calls import TRITON, compare_bytes, launched, outside, unwritten
from course_lib.language import WRITTEN

tl, triton = WRITTEN.tl, WRITTEN.triton

LESSON = "08"
TITLE = "The forward kernel"


def kv_loop_bounds(start_m, n_q, n_k, causal, block_m, block_n):
    """Where one program's loop over keys changes its kind and where it ends: (full_end, kv_end).

    start_m: the first query of the program's tile; the tile has queries start_m to start_m + block_m - 1, but none
        beyond n_q - 1. n_q, n_k: queries and keys. causal: query i sees keys 0 to i + n_k - n_q, else every key.
    kv_end: one more than the last key that any query of the tile sees; 0 if none sees a key.
    full_end: the largest multiple of block_n such that every query of the tile sees every key before it. Tiles of
        keys in [0, full_end) need no mask, those in [full_end, kv_end) do, later ones are not visited.

    >>> kv_loop_bounds(start_m=2, n_q=4, n_k=4, causal=True, block_m=2, block_n=2)
    (2, 4)
    """
    if causal:
        first_sees = min(max(start_m + 1 + n_k - n_q, 0), n_k)
        last_row = min(start_m + block_m, n_q)
        kv_end = min(max(last_row + n_k - n_q, 0), n_k)
    else:
        first_sees = kv_end = n_k
    return first_sees // block_n * block_n, kv_end


def right_bounds(start_m, n_q, n_k, causal, block_m, block_n):
    """From the mask, query by query."""
    queries = range(start_m, min(start_m + block_m, n_q))
    seen = [sum(not causal or key <= query + n_k - n_q for key in range(n_k)) for query in queries]
    return min(seen) // block_n * block_n, max(seen)


def bounds_test(answer, **inputs):
    returned, right = answer(*inputs.values()), right_bounds(**inputs)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return only("type", "the answer did not return two whole numbers", show(returned), "(full_end, kv_end)")
    findings = []
    for name, now, due in zip(("full_end", "kv_end"), returned, right, strict=True):
        if now != due:
            kind = "more" if now > due else "less"
            findings.append(Finding(name, kind, f"{name} is {show(now)}, {kind} than {due}"))
    return Evidence(tuple(findings), show(tuple(returned)), show(right)) if findings else None


def bounds_case(start_m, n_q, n_k, block_m, block_n, causal=True):
    return {"start_m": start_m, "n_q": n_q, "n_k": n_k, "causal": causal, "block_m": block_m, "block_n": block_n}


def draw_bounds(causal, more_queries=False):
    def draw():
        def a_tile(inputs):
            tiles = -(-inputs["n_q"] // inputs["block_m"])
            start_m = inputs.pop("tile") % tiles * inputs["block_m"]
            if more_queries:
                inputs["n_k"] = min(inputs["n_k"], inputs["n_q"])
            names = "n_q", "n_k", "causal", "block_m", "block_n"
            return {"start_m": start_m, **{name: inputs[name] for name in names}}

        sizes = {"n_q": (1, 12), "n_k": (1, 12), "block_m": (1, 4), "block_n": (1, 4)}
        return draw_counts(tile=(0, 11), causal=[causal], **sizes)().map(a_tile)

    return draw


BOUNDS_CALL = "kv_loop_bounds(start_m, n_q, n_k, causal, block_m, block_n)"

BOUNDS = Exercise(
    id="08.kv_loop_bounds",
    title="Where the loop ends, and where it needs a mask",
    points=2,
    minutes=8,
    difficulty="medium",
    answer=kv_loop_bounds,
    hints=(
        "Which query of the tile sees the most keys, and which the fewest? Which of the two decides where the loop "
        "ends, and which where masks begin?",
        "The last query that exists, min(start_m + block_m, n_q) - 1, decides kv_end. The first, start_m, decides "
        "full_end. Query i sees i + 1 + n_k - n_q keys, but at least 0 and at most n_k.",
        "causal: kv_end = min(start_m + block_m, n_q) + n_k - n_q, clipped to 0 and n_k; the first query sees "
        "start_m + 1 + n_k - n_q keys, clipped likewise, and full_end is that rounded down to a multiple of block_n. "
        "Not causal: n_k, and n_k rounded down.",
    ),
    reasoning="A row's visible keys are a prefix, longer for later queries. So the tile's last query decides what must "
    "be visited and its first query what is certain to be visible. Rounding down puts the ragged tail into the masked "
    "part too, and one rule covers both reasons to mask.",
    properties=(
        Property(
            "not causal: every key, a mask for the ragged tail only",
            BOUNDS_CALL,
            bounds_test,
            (bounds_case(0, 4, 4, 2, 2, False), bounds_case(0, 4, 5, 2, 2, False), bounds_case(0, 3, 1, 2, 4, False)),
            draw_bounds(False),
            {"full_end: more": "round_down", "kv_end: less": "tail", "": "tail"},
        ),
        Property(
            "causal, as many queries as keys: the loop ends after the tile's last query",
            BOUNDS_CALL,
            bounds_test,
            (bounds_case(2, 4, 4, 2, 2), bounds_case(0, 8, 8, 2, 2), bounds_case(4, 8, 8, 2, 2)),
            hints={
                "kv_end: more": "skip",
                "full_end kv_end: more": "skip",
                "kv_end: less": "last",
                "full_end: more": "first",
                "": "first",
            },
        ),
        Property(
            "causal, query tiles and key tiles of different sizes",
            BOUNDS_CALL,
            bounds_test,
            (bounds_case(4, 16, 16, 4, 8), bounds_case(4, 12, 12, 4, 2), bounds_case(4, 12, 12, 4, 3)),
            hints={"": "round_down"},
        ),
        Property(
            "causal, more keys than queries",
            BOUNDS_CALL,
            bounds_test,
            (bounds_case(0, 2, 6, 2, 2), bounds_case(2, 4, 9, 2, 3)),
            hints={"": "offset"},
        ),
        Property(
            "causal, any lengths: also a tile that sees no key, and a short last tile",
            BOUNDS_CALL,
            bounds_test,
            (bounds_case(0, 6, 2, 2, 2), bounds_case(4, 5, 9, 4, 2), bounds_case(4, 5, 2, 4, 2)),
            draw_bounds(True, more_queries=True),
            {"": "clip"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "round_down": "full_end is a multiple of block_n, rounded down: a tile of which the first query sees only a "
        "part needs its mask.",
        "tail": "Without a causal mask the loop ends at n_k, and only the last, partly filled tile needs a mask.",
        "skip": "What is the last key that the tile's last query sees? Beyond it nothing is visited.",
        "last": "Query i sees key i as well, and the tile's last query is start_m + block_m - 1.",
        "first": "Before full_end every query must see every key, so the one that sees the fewest decides: the first.",
        "offset": "The last query sees the last key: query i sees the keys up to i + n_k - n_q.",
        "clip": "i + 1 + n_k - n_q can be negative and can exceed n_k, and the tile may end before start_m + block_m. "
        "Clip each of them.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "not causal: every key, a mask for the ragged tail only",
            WrongAnswer(
                "the tail dropped",
                "tail",
                {"first_sees = kv_end = n_k": "first_sees = kv_end = n_k // block_n * block_n"},
            ),
            WrongAnswer("full_end not rounded", "round_down", {"first_sees // block_n * block_n": "first_sees"}),
        ),
        *caught_by(
            "causal, as many queries as keys: the loop ends after the tile's last query",
            WrongAnswer("nothing skipped", "skip", {"min(max(last_row + n_k - n_q, 0), n_k)": "n_k"}),
            WrongAnswer(
                "the diagonal's key left out",
                "last",
                {"max(last_row + n_k - n_q, 0)": "max(last_row - 1 + n_k - n_q, 0)"},
            ),
            WrongAnswer("the last query decides both", "first", {"start_m + 1 + n_k": "start_m + block_m + n_k"}),
        ),
        *caught_by(
            "causal, query tiles and key tiles of different sizes",
            WrongAnswer(
                "the diagonal taken for one tile",
                "round_down",
                {
                    "first_sees // block_n * block_n": (
                        "(max(kv_end - block_m, 0) if causal else first_sees // block_n * block_n)"
                    )
                },
            ),
        ),
        *caught_by(
            "causal, more keys than queries",
            WrongAnswer(
                "aligned at the top left",
                "offset",
                {"start_m + 1 + n_k - n_q": "start_m + 1", "last_row + n_k - n_q": "last_row"},
            ),
        ),
        *caught_by(
            "causal, any lengths: also a tile that sees no key, and a short last tile",
            WrongAnswer("not clipped at 0", "clip", {"max(last_row + n_k - n_q, 0)": "last_row + n_k - n_q"}),
            WrongAnswer(
                "rows beyond n_q counted",
                "clip",
                {
                    "min(start_m + block_m, n_q)": "start_m + block_m",
                    "min(max(last_row + n_k - n_q, 0), n_k)": "max(last_row + n_k - n_q, 0)",
                },
            ),
        ),
    ),
    right_answers=(
        Variant("from the mask", function=lambda *a: right_bounds(*a)),
        Variant("by np.clip", function=lambda *a: _bounds_clipped(*a)),
    ),
)


def _bounds_clipped(start_m, n_q, n_k, causal, block_m, block_n):
    sees = np.array([start_m, min(start_m + block_m, n_q) - 1]) + 1 + n_k - n_q if causal else np.array([n_k, n_k])
    first, last = np.clip(sees, 0, n_k).tolist()
    return [first - first % block_n, last]


@triton.jit
def flash_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om, stride_lh,
    n_q, n_k, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FlashAttention-2, Alg. 1: program (i, h) computes query tile i of head h.

    q, o: [heads, n_q, HEAD_DIM]; k, v: [heads, n_k, HEAD_DIM]; q, k and v float32, or float16. Element [h, n, d] of q
        lies at q_ptr + h * stride_qh + n * stride_qm + d, likewise for k, v and o. lse: float32 [heads, n_q], element
        [h, n] at lse_ptr + h * stride_lh + n.
    scale: positive, multiplies the scores. IS_CAUSAL: query i sees keys 0 to i + n_k - n_q.
    A tile has BLOCK_M queries or BLOCK_N keys, and BLOCK_D columns: a power of two, 16 or more and at least HEAD_DIM.
        Lengths are any from 1 up, HEAD_DIM too, and nothing outside a tensor may be touched.
    Stores softmax(scale q k^T) v in o, in o's dtype, and in lse the natural logarithm of the sum of exp(scores); for
        a query that sees no key 0 and -inf. Statistics and accumulator are float32.
    Each program loads its queries once, and once the tiles of keys and values of which one of them sees a key.

    >>> from course_lib.grading import launched
    >>> q, k, v = np.zeros((1, 2, 4)), np.zeros((1, 3, 4)), np.ones((1, 3, 4))
    >>> sizes = dict(IS_CAUSAL=True, HEAD_DIM=4, BLOCK_M=16, BLOCK_N=16, BLOCK_D=16)
    >>> outputs = {"o_ptr": q.shape, "lse_ptr": (1, 2)}
    >>> arguments = dict(q_ptr=q, k_ptr=k, v_ptr=v, n_q=2, n_k=3, scale=0.5) | sizes
    >>> launched(flash_forward, (1, 1), outputs, **arguments).outputs["lse_ptr"].round(3)
    array([[0.693, 1.099]], dtype=float32)
    """
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask_d = offs_d < HEAD_DIM
    # FA2 Alg. 1, lines 4 and 5
    q_ptrs = q_ptr + head * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_end = n_k
    if IS_CAUSAL:
        kv_end = tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)
    # lines 6 to 11
    for start_n in range(0, kv_end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_n = offs_n < n_k
        k_ptrs = k_ptr + head * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :]
        v_ptrs = v_ptr + head * stride_vh + offs_n[:, None] * stride_vn + offs_d[None, :]
        k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
        v = tl.load(v_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N], times log2(e) for exp2
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        visible = mask_n[None, :]
        if IS_CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - (-inf) is never computed
        alpha = tl.exp2(m_i - m_ref)
        p = tl.exp2(scores - m_ref[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None]
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    # lines 12 to 14
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc / l_safe[:, None]
    o_ptrs = o_ptr + head * stride_oh + offs_m[:, None] * stride_om + offs_d[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_d[None, :])
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(lse_ptr + head * stride_lh + offs_m, lse, mask=mask_m)


def inputs(kind, heads, n_q, n_k, d, dtype="float32"):
    """q [heads, n_q, d], k and v [heads, n_k, d] as NumPy arrays of `dtype`; v is random, always the same.

    kind: "random", or what each query's scores are from key to key: "equal", "falling" or "rising" by 1/4, "large"
    (1000 and 999.75 in turn), "dropping" (0, from key 16 on -1000), "negative" (-1000 and -1000.25 in turn).
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((heads, n, d)) for n in (n_q, n_k, n_k))
    keys = np.arange(n_k)
    scores = {
        "equal": 0.0 * keys, "falling": -keys / 4, "rising": keys / 4, "large": 1000 - keys % 2 / 4,
        "dropping": -1000.0 * (keys >= 16), "negative": -1000 - keys % 2 / 4,
    }  # fmt: skip
    if kind != "random":
        q[:], k[:] = 0.0, 0.0
        q[..., 0], k[..., 0] = d**0.5, scores[kind]
    return tuple(x.astype(dtype) for x in (q, k, v))


def forward_launch(kind, heads, n_q, n_k, d, causal, block_m, block_n, dtype):
    """What `course_lib.grading.launched` takes to run a forward kernel on `inputs`."""
    q, k, v = inputs(kind, heads, n_q, n_k, d, dtype)
    return {
        "grid": (-(-n_q // block_m), heads), "outputs": {"o_ptr": q.shape, "lse_ptr": q.shape[:2]},
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "n_q": n_q, "n_k": n_k, "scale": d**-0.5, "IS_CAUSAL": causal,
        "HEAD_DIM": d, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": max(16, 1 << (d - 1).bit_length()),
    }  # fmt: skip


INVERSE = "the scores are divided by d, not by its root"
BASE_TWO = "the weights are powers of 2, not of e"
HEAD_0 = "every head gets the keys of head 0"
LSE_BASE_TWO = "it is left in units of log2"
LSE_NEGATED = "its sign is turned round"
MAX_ALONE = "the largest score stands alone, without the logarithm of l"


def head_part(q, k, v, causal, block_m, block_n, first_k):
    """The Part of one head's output, with lesson 06's readings and those that only a kernel has."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    (part,) = output_parts(q, k, v, block_m, block_n, causal)

    def weighted(factor, keys=k):
        return reference.attention(q, keys, v, causal=causal, scale=factor)

    def readings():
        scale = q.shape[1] ** -0.5
        more = {INVERSE: weighted(scale**2), BASE_TWO: weighted(scale * np.log(2))}
        if first_k is not k:
            more[HEAD_0] = weighted(scale, first_k.astype(np.float64))
        with np.errstate(all="ignore"):
            return part.readings() | more

    return Part("o", part.expected, part.plain, part.terms, readings, index="row")


def forward_test(answer, **case):
    launch = launched(answer, **forward_launch(**case))
    if wrong := outside(launch) or unwritten(launch):
        return wrong
    q, k, v = inputs(*(case[name] for name in ("kind", "heads", "n_q", "n_k", "d", "dtype")))
    for head in range(case["heads"]):
        part = head_part(q[head], k[head], v[head], case["causal"], case["block_m"], case["block_n"], k[0])
        if wrong := compare(launch.outputs["o_ptr"][head], [part]):
            return wrong
    return None


def lse_part(scores_lse, largest):
    """The Part of log-sum-exps in float64; largest: the largest score of each row."""
    readings = {LSE_BASE_TWO: scores_lse / np.log(2), LSE_NEGATED: -scores_lse, MAX_ALONE: largest}
    plain = scores_lse.astype(np.float32)
    return Part(
        "lse", scores_lse, plain, np.abs(largest[np.isfinite(largest)]).max(initial=1.0), lambda: readings, "row"
    )


def lse_test(answer, **case):
    launch = launched(answer, **forward_launch(**case))
    if wrong := outside(launch) or unwritten(launch):
        return wrong
    q, k, v = (x.astype(np.float64) for x in inputs("random", *(case[n] for n in ("heads", "n_q", "n_k", "d"))))
    for head in range(case["heads"]):
        exact = reference.attention(q[head], k[head], v[head], causal=case["causal"], return_lse=True)[1]
        visible = np.arange(case["n_k"]) <= np.arange(case["n_q"])[:, None] + case["n_k"] - case["n_q"]
        scores = np.where(visible | (not case["causal"]), reference.scores(q[head], k[head]), -np.inf)
        if wrong := compare(launch.outputs["lse_ptr"][head], [lse_part(exact, scores.max(axis=1))]):
            return wrong
    return None


def float16_test(answer, **case):
    """Errors of float16 weights are allowed, once each; those of a float16 accumulator are not."""
    launch = launched(answer, **forward_launch(**case))
    if wrong := outside(launch) or unwritten(launch):
        return wrong
    q, k, v = (
        x[0].astype(np.float64) for x in inputs(*(case[n] for n in ("kind", "heads", "n_q", "n_k", "d", "dtype")))
    )
    weights = reference.stable_softmax(reference.scores(q, k))
    plain = (weights / weights.max(axis=1, keepdims=True)).astype(np.float16) * weights.max(axis=1, keepdims=True) @ v
    return compare(launch.outputs["o_ptr"][0], [Part("o", weights @ v, plain, np.abs(v).max(), index="row")])


def bytes_test(answer, **case):
    launch = launched(answer, **forward_launch(**case))
    sizes = {"block_q": case["block_m"], "block_k": case["block_n"], "dtype_bytes": 4, "causal": case["causal"]}
    due = traffic.flash_attention(case["n_q"], case["n_k"], case["d"], heads=case["heads"], return_lse=True, **sizes)
    names = {name: name.lower() for name in due.by_tensor}
    return compare_bytes(launch, {names[name]: tuple(moved) for name, moved in due.by_tensor.items()})


def forward_case(n_q, n_k, d=16, *, kind="random", heads=1, causal=False, block_m=16, block_n=16, dtype="float32"):
    return {
        "kind": kind, "heads": heads, "n_q": n_q, "n_k": n_k, "d": d, "causal": causal, "block_m": block_m,
        "block_n": block_n, "dtype": dtype,
    }  # fmt: skip


FORWARD_CALL = (
    "from course_lib.exercises.lesson_08 import forward_launch\n"
    "launched(flash_forward, **forward_launch(kind, heads, n_q, n_k, d, causal, block_m, block_n, dtype))"
)


def forward_property(name, *cases, hints, test=forward_test):
    return Property(name, FORWARD_CALL, test, cases, hints=hints)


BOUNDS_HINTS = {": reads outside": "load_mask", ": writes outside": "store_mask"}
P_KEY = "p = tl.exp2(scores - m_ref[:, None])"

FORWARD = Exercise(
    id="08.flash_forward",
    title="FlashAttention in one kernel",
    points=8,
    minutes=25,
    difficulty="hard",
    answer=flash_forward,
    imports=TRITON,
    hints=(
        "Take your loop of lesson 06 and let program_id(0) be its outer loop. Which of its lines become loads with a "
        "mask, and where must a score be hidden that a mask on a load does not hide?",
        "offs_m, offs_n and offs_d are the rows and columns; a mask compares them with n_q, n_k and HEAD_DIM. After "
        "tl.dot(q, tl.trans(k)) set scores to -inf where offs_n >= n_k, and causal where offs_n > offs_m + n_k - n_q. "
        "Then m_new, alpha, p, l_i, acc as in lesson 05, with [:, None] where a row's number meets a tile.",
        "Load q once; m_i = -inf, l_i = 0, acc = 0 in float32. kv_end is your kv_loop_bounds with tl.minimum and "
        "tl.maximum. for start_n in range(0, kv_end, BLOCK_N): load k and v; scores = tl.dot(q, tl.trans(k)) * "
        "(scale * 1.4427); mask; update with tl.exp2, subtracting 0 where m_new is -inf. At the end divide by l_i, or "
        "by 1 where it is 0, store o, and lse = (m_i + tl.log2(l_i)) * 0.6931 or -inf.",
    ),
    reasoning="One program is one round of lesson 06's outer loop. Short slices become masks: a masked load keeps the "
    "program inside its tensors, and -inf in the scores keeps what was not there out of the sums. The scale takes "
    "log2(e) along, since GPUs have an instruction for exp2; so m_i is a score times log2(e), and lse goes back by one "
    "product with ln 2. m_ref is the guard for rows that have seen nothing yet.",
    properties=(
        forward_property(
            "one tile of queries and one of keys: softmax(scale q k^T) v",
            forward_case(16, 16),
            hints={
                f": {UNSCALED}": "scale",
                f": {INVERSE}": "scale_root",
                f": {BASE_TWO}": "base",
                f": {NOT_DIVIDED}": "divide",
                ": unwritten": "unwritten",
                "": "plain",
            },
        ),  # fmt: skip
        forward_property(
            "tiles of keys that leave the max alone",
            forward_case(16, 48, kind="falling"),
            hints={f": {FROM_OWN_MAX}": "own_max", "": "own_max"},
        ),
        forward_property(
            "tiles of keys that raise the max, each of them",
            forward_case(16, 48, kind="rising"),
            hints={
                f": {L_NOT_RESCALED}": "rescale_l",
                f": {ACC_NOT_RESCALED}": "rescale_acc",
                f": {UPSIDE_DOWN}": "upside_down",
                "": "invariant",
            },
        ),  # fmt: skip
        forward_property(
            "lengths that no tile divides",
            forward_case(16, 7),
            forward_case(5, 16),
            forward_case(20, 40),
            forward_case(1, 1),
            hints=BOUNDS_HINTS | {f": {PADDED}": "padded", "": "tail"},
        ),  # fmt: skip
        forward_property(
            "head dimensions that are no power of two",
            forward_case(16, 16, 3),
            forward_case(16, 16, 20),
            hints={"": "head_dim"},
        ),  # fmt: skip
        forward_property(
            "several heads, each with its own keys",
            forward_case(16, 32, heads=2),
            forward_case(32, 16, heads=3),
            hints={f": {HEAD_0}": "heads", "": "strides"},
        ),  # fmt: skip
        forward_property(
            "scores near 1000 do not overflow", forward_case(16, 32, kind="large"), hints={"": "not_shifted"}
        ),
        forward_property(
            "the max falls by 1000 from one tile of keys to the next",
            forward_case(16, 32, kind="dropping"),
            hints={"": "tile_max"},
        ),
        forward_property("all scores strongly negative", forward_case(16, 32, kind="negative"), hints={"": "start"}),
        forward_property(
            "causal, as many queries as keys: query i sees keys 0 to i",
            forward_case(16, 16, causal=True),
            forward_case(40, 40, causal=True),
            hints={
                f": {CAUSAL_IGNORED}": "causal",
                f": {ONE_TOO_MANY}": "off_by_one",
                f": {ONE_TOO_FEW}": "off_by_one",
                f": {MASKED_AS_ZERO}": "mask_value",
                "": "causal",
            },
        ),  # fmt: skip
        forward_property(
            "causal, more keys than queries: the last query sees the last key",
            forward_case(16, 48, causal=True),
            forward_case(32, 64, causal=True),
            hints={"": "offset"},
        ),  # fmt: skip
        forward_property(
            "causal, tiles of different sizes: a tile that some of its rows do not see at all",
            forward_case(32, 32, causal=True, block_m=32),
            forward_case(64, 64, causal=True, block_n=32),
            hints={": nan": "hidden_tile", "": "loop_end"},
        ),  # fmt: skip
        forward_property(
            "causal, more queries than keys: a query that sees no key gets 0, never NaN",
            forward_case(20, 16, causal=True),
            forward_case(50, 13, causal=True),
            hints={": nan": "nothing_seen", "": "large_negative"},
        ),  # fmt: skip
        forward_property(
            "lse is the natural log-sum-exp of the scores, -inf where there are none",
            forward_case(16, 16),
            forward_case(20, 33, heads=2),
            forward_case(20, 5, causal=True),
            hints={
                f": {LSE_BASE_TWO}": "lse_base",
                f": {LSE_NEGATED}": "lse_sign",
                ": unwritten": "lse_place",
                "": "lse",
            },
            test=lse_test,
        ),  # fmt: skip
        forward_property(
            "float16 inputs, float32 sums",
            forward_case(16, 128, kind="equal", dtype="float16"),
            forward_case(16, 64, dtype="float16"),
            hints={"": "precision"},
            test=float16_test,
        ),
        forward_property(
            "q loaded once, k and v once for every tile of queries, o and lse stored once",
            forward_case(40, 56, 20, heads=2),
            hints={"": "again"},
            test=bytes_test,
        ),
        forward_property(
            "causal: tiles that no query of the tile sees are not loaded",
            forward_case(64, 64, causal=True),
            forward_case(40, 56, causal=True, block_n=32),
            hints={"": "skip"},
            test=bytes_test,
        ),  # fmt: skip
    ),
    mistakes={"endless": SHARED_MISTAKES["endless"], "error": SHARED_MISTAKES["error"]}
    | {
        "scale": "The scores are multiplied by `scale`, once, before the softmax.",
        "scale_root": "`scale` is 1/sqrt(d) already. Is it applied twice?",
        "base": "exp(x) = exp2(x log2(e)): with tl.exp2, multiply the scores by 1.4426950408889634 as well.",
        "divide": "After the last tile acc still holds sums: divide by l_i before the store.",
        "unwritten": "Every row below n_q of o, and every element of lse, has to be stored by some program.",
        "plain": "One tile has nothing to carry over: scores, exp(s - max), times v, divided by the sum. Compare your "
        "o with that by hand.",
        "own_max": "Everything in l_i and acc is measured from the running max m_new; the tile's own max only helps "
        "to find it.",
        "rescale_l": "acc follows the new max and l_i does not. Multiply both by alpha.",
        "rescale_acc": "l_i follows the new max and acc does not. Multiply both by alpha.",
        "upside_down": "When the max rises the old sums must shrink: alpha is exp2(m_i - m_new), at most 1.",
        "invariant": "After each tile l_i is the sum of exp(score - m_i) over all keys so far. Which line breaks that?",
        "load_mask": "The last tile reaches beyond the tensor. Each load needs a mask for its rows (offs_m < n_q, "
        "offs_n < n_k), with other=0.0.",
        "store_mask": "The last tile of queries has rows that do not exist: store with mask=offs_m < n_q, o and lse.",
        "padded": "A masked load puts zeros where keys are missing, and a zero key has the score 0, which gets weight. "
        "Hide the scores too: -inf where offs_n >= n_k.",
        "tail": "range(0, kv_end, BLOCK_N) starts every tile, the short one too. Is a length rounded down anywhere?",
        "head_dim": "BLOCK_D columns are computed, HEAD_DIM exist: the mask offs_d < HEAD_DIM belongs to every load "
        "and to the store of o, with other=0.0 so that the padding adds nothing to a dot product.",
        "heads": "program_id(1) is the head. k and v begin at head * stride_kh and head * stride_vh.",
        "strides": "Each tensor has its own strides, v other ones than k: q_ptr goes with stride_qh, and so on.",
        "not_shifted": "exp(1000) is infinite. Every exponent must be a score minus a max, at most 0.",
        "tile_max": "The running max never falls: tl.maximum(m_i, the tile's max).",
        "start": "0 is larger than each of these scores, so a max that starts at 0 never meets them. What is the "
        "largest of no scores?",
        "causal": "Causal: hidden is offs_n > offs_m + n_k - n_q. Rows and keys count from the sequence's beginning, "
        "not the tile's.",
        "off_by_one": "Query i sees key i + n_k - n_q itself, and no later one.",
        "mask_value": "A score of 0 has the weight exp(0 - m), which is not 0. Only -inf has none.",
        "offset": "The last query sees the last key, in the mask and in the end of the loop: + n_k - n_q.",
        "hidden_tile": "A row for which the whole tile is hidden has the tile max -inf, and -inf minus -inf is NaN. "
        "Measure from the running max, and subtract 0 while that is still -inf.",
        "loop_end": "The loop ends after the last key that the tile's last query sees: min(start_m + BLOCK_M, n_q) + "
        "n_k - n_q. BLOCK_M and BLOCK_N need not be alike.",
        "nothing_seen": "A query that sees no key keeps m = -inf and l = 0: subtract 0 instead of that m, and divide "
        "by 1 instead of that l.",
        "large_negative": "Where every score is -1e6 all weights are alike, and the row gets the mean of what it must "
        "not see. Hide with -inf.",
        "lse_base": "With exp2 your m_i is the max times log2(e): (m_i + log2(l_i)) * ln 2 is natural again.",
        "lse_sign": "lse = m + log(l). Which of the two has the wrong sign, or both?",
        "lse_place": "lse is [heads, n_q]: head h begins at h * stride_lh.",
        "lse": "lse = m + log(l): the running max belongs to it, and a row that sees no key has -inf, not NaN.",
        "precision": "m_i, l_i and acc stay in float32 (tl.float32) whatever q is; only p is converted, to v's dtype, "
        "for tl.dot.",
        "again": "Count the loads: q once before the loop, k and v once in each round. A second look at k is what "
        "alpha makes superfluous.",
        "skip": "Which is the last key that the tile's last query sees? Let the loop end there: your kv_loop_bounds.",
    },
    common_hints={name: SHARED_HINTS[name] for name in (": timeout", ": exception")},
    wrong_answers=(
        *caught_by(
            "one tile of queries and one of keys: softmax(scale q k^T) v",
            WrongAnswer("scale missing", "scale", {"(scale * 1.4426950408889634)": "1.4426950408889634"}),
            WrongAnswer(
                "divided by d", "scale_root", {"(scale * 1.4426950408889634)": "(scale * scale * 1.4426950408889634)"}
            ),
            WrongAnswer("exp2 without log2 e", "base", {"(scale * 1.4426950408889634)": "scale"}),
            WrongAnswer("final division missing", "divide", {"o = acc / l_safe[:, None]": "o = acc"}),
        ),
        *caught_by(
            "tiles of keys that leave the max alone",
            WrongAnswer(
                "each tile measured from its own max",
                "own_max",
                {P_KEY: "p = tl.exp2(scores - tl.max(scores, axis=1)[:, None])"},
            ),
        ),
        *caught_by(
            "tiles of keys that raise the max, each of them",
            WrongAnswer("no rescale of l", "rescale_l", {"l_i * alpha + tl": "l_i + tl"}),
            WrongAnswer("no rescale of acc", "rescale_acc", {"acc = acc * alpha[:, None]": "acc = acc"}),
            WrongAnswer(
                "alpha upside down",
                "upside_down",
                {"alpha = tl.exp2(m_i - m_ref)": "alpha = tl.exp2(tl.where(m_i == float('-inf'), 0.0, m_ref - m_i))"},
            ),
        ),
        *caught_by(
            "lengths that no tile divides",
            WrongAnswer(
                "k loaded without its row mask",
                "load_mask",
                {"tl.load(k_ptrs, mask=mask_n[:, None] & mask_d": "tl.load(k_ptrs, mask=mask_d"},
            ),
            WrongAnswer("lse stored without a mask", "store_mask", {", lse, mask=mask_m)": ", lse)"}),
            WrongAnswer(
                "padded keys in the denominator",
                "padded",
                {"visible = mask_n[None, :]\n": "visible = mask_n[None, :] | True\n"},
            ),
            WrongAnswer(
                "last tile dropped",
                "tail",
                {"range(0, kv_end, BLOCK_N)": "range(0, tl.maximum(kv_end // BLOCK_N, 1) * BLOCK_N, BLOCK_N)"},
            ),
        ),
        *caught_by(
            "head dimensions that are no power of two",
            WrongAnswer("columns not masked", "head_dim", {"mask_d = offs_d < HEAD_DIM": "mask_d = offs_d < BLOCK_D"}),
        ),
        *caught_by(
            "several heads, each with its own keys",
            WrongAnswer("all heads on the keys of head 0", "heads", {"k_ptr + head * stride_kh +": "k_ptr +"}),
            WrongAnswer("q's head stride for k", "strides", {"head * stride_kh": "head * stride_qh"}),
            WrongAnswer("k's head stride for v", "strides", {"head * stride_vh": "head * stride_kh"}),
        ),
        *caught_by(
            "scores near 1000 do not overflow",
            WrongAnswer(
                "no max subtracted",
                "not_shifted",
                {"m_new = tl.maximum(m_i, tl.max(scores, axis=1))": "m_new = tl.zeros([BLOCK_M], tl.float32)"},
            ),
        ),
        *caught_by(
            "the max falls by 1000 from one tile of keys to the next",
            WrongAnswer(
                "tile max for running max",
                "tile_max",
                {"tl.maximum(m_i, tl.max(scores, axis=1))": "tl.max(scores, axis=1)"},
            ),
        ),
        *caught_by(
            "all scores strongly negative",
            WrongAnswer(
                "running max from 0",
                "start",
                {'m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)': "m_i = tl.zeros([BLOCK_M], tl.float32)"},
            ),
        ),
        *caught_by(
            "causal, as many queries as keys: query i sees keys 0 to i",
            WrongAnswer(
                "causal ignored", "causal", {"visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)": "visible"}
            ),
            WrongAnswer("one key too many", "off_by_one", {"<= offs_m[:, None] +": "<= 1 + offs_m[:, None] +"}),
            WrongAnswer("one key too few", "off_by_one", {"<= offs_m[:, None] +": "< offs_m[:, None] +"}),
            WrongAnswer(
                "hidden scores set to 0",
                "mask_value",
                {
                    "visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)": (
                        "scores = tl.where(offs_n[None, :] <= offs_m[:, None] + n_k - n_q, scores, 0.0)"
                    )
                },
            ),
        ),
        *caught_by(
            "causal, more keys than queries: the last query sees the last key",
            WrongAnswer("aligned at the top left", "offset", {"<= offs_m[:, None] + n_k - n_q": "<= offs_m[:, None]"}),
        ),
        *caught_by(
            "causal, tiles of different sizes: a tile that some of its rows do not see at all",
            WrongAnswer(
                "each tile from its own max, merged with beta",
                "hidden_tile",
                {
                    'm_ref = tl.where(m_new == float("-inf"), 0.0, m_new)': "m_ij = tl.max(scores, axis=1)",
                    "alpha = tl.exp2(m_i - m_ref)": "alpha = tl.exp2(m_i - m_new)",
                    P_KEY: "p = tl.exp2(scores - m_ij[:, None]) * tl.exp2(m_ij - m_new)[:, None]",
                },
            ),
            WrongAnswer(
                "the loop ends one key tile after its queries begin",
                "loop_end",
                {"tl.minimum(start_m + BLOCK_M, n_q) + n_k": "tl.minimum(start_m + BLOCK_N, n_q) + n_k"},
            ),
        ),
        *caught_by(
            "causal, more queries than keys: a query that sees no key gets 0, never NaN",
            WrongAnswer(
                "no guard for an empty row", "nothing_seen", {'tl.where(m_new == float("-inf"), 0.0, m_new)': "m_new"}
            ),
            WrongAnswer(
                "hidden scores set to -1e6",
                "large_negative",
                {'tl.where(visible, scores, float("-inf"))': "tl.where(visible, scores, -1.0e6)"},
            ),
        ),
        *caught_by(
            "lse is the natural log-sum-exp of the scores, -inf where there are none",
            WrongAnswer("lse in base 2", "lse_base", {" * 0.6931471805599453": ""}),
            WrongAnswer("minus lse", "lse_sign", {"(m_i + tl.log2(l_safe))": "-(m_i + tl.log2(l_safe))"}),
            WrongAnswer("lse without the max", "lse", {"(m_i + tl.log2(l_safe))": "tl.log2(l_safe)"}),
        ),
        *caught_by(
            "float16 inputs, float32 sums",
            WrongAnswer(
                "accumulator in float16",
                "precision",
                {
                    "acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(q.dtype).to(tl.float32)",
                    "o = acc /": "o = acc.to(q.dtype) /",
                },
            ),
        ),
        *caught_by(
            "q loaded once, k and v once for every tile of queries, o and lse stored once",
            WrongAnswer(
                "q loaded in the loop",
                "again",
                {
                    "        offs_n = start_n": (
                        "        q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)\n"
                        "        offs_n = start_n"
                    )
                },
            ),
        ),
        *caught_by(
            "causal: tiles that no query of the tile sees are not loaded",
            WrongAnswer(
                "hidden tiles computed and masked",
                "skip",
                {"tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)": "n_k"},
            ),
        ),
    ),
    right_answers=(
        Variant(
            "natural exponentials and logarithm",
            {
                "(scale * 1.4426950408889634)": "scale",
                "alpha = tl.exp2(": "alpha = tl.exp(",
                "p = tl.exp2(": "p = tl.exp(",
                "(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i + tl.log(l_safe)",
            },
        ),
        Variant(
            "acc handed to tl.dot, sums the other way round",
            {
                'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")': (
                    'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")'
                ),
                "tl.max(scores, axis=1)": "tl.max(scores, 1)",
                "l_i * alpha + tl.sum(p, axis=1)": "tl.sum(p, 1) + alpha * l_i",
            },
        ),
    ),
)


@triton.jit
def lse_epilogue(
    m_ptr, l_ptr, acc_ptr, o_ptr, lse_ptr, n_q, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """What a forward kernel does after its loop: FA2 Alg. 1, lines 12 to 14. Program i has queries from i * BLOCK_M on.

    m, l: float32 [n_q]; acc: float32 [n_q, HEAD_DIM], its rows without a gap; all contiguous. m is the running max in
        units of log2(e), that is, the largest score times log2(e); l the sum of exp(score - max) and acc that of
        exp(score - max) times the key's values. A query that saw no key has m = -inf, l = 0, acc = 0.
    Stores o = acc / l, [n_q, HEAD_DIM], contiguous like acc, in o's dtype, and lse, float32 [n_q], the natural
        logarithm of the sum of exp(score); for a query that saw no key 0 and -inf. BLOCK_D: a power of two, at
        least HEAD_DIM. n_q and HEAD_DIM are any from 1 up, and nothing outside a tensor may be touched.

    >>> from course_lib.grading import launched
    >>> state = dict(m_ptr=np.array([0.0]), l_ptr=np.array([2.0]), acc_ptr=np.array([6.0]))
    >>> outputs, sizes = {"o_ptr": (1,), "lse_ptr": (1,)}, dict(n_q=1, HEAD_DIM=1, BLOCK_M=16, BLOCK_D=16)
    >>> launched(lse_epilogue, (1,), outputs, **state, **sizes).outputs["lse_ptr"].round(3)
    array([0.693], dtype=float32)
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    places = offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    m_i = tl.load(m_ptr + offs_m, mask=mask_m, other=0.0)
    l_i = tl.load(l_ptr + offs_m, mask=mask_m, other=1.0)
    acc = tl.load(acc_ptr + places, mask=mask, other=0.0)
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc / l_safe[:, None]
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + offs_m, lse, mask=mask_m)


def epilogue_state(n_q, d, empty):
    """m, l, acc of n_q queries after a loop over 8 random keys, float32; the first `empty` saw none of them."""
    rng = np.random.default_rng(0)
    scores, values = 3 * rng.standard_normal((n_q, 8)), rng.standard_normal((8, d))
    m = scores.max(axis=1)
    p = np.exp(scores - m[:, None])
    l, acc = p.sum(axis=1), p @ values
    m, l[:empty], acc[:empty] = m * np.log2(np.e), 0.0, 0.0
    m[:empty] = -np.inf
    return m.astype(np.float32), l.astype(np.float32), acc.astype(np.float32)


def epilogue_launch(n_q, d, block_m, empty):
    """What `course_lib.grading.launched` takes to run an epilogue kernel."""
    m, l, acc = epilogue_state(n_q, d, empty)
    return {
        "grid": (-(-n_q // block_m),), "outputs": {"o_ptr": (n_q * d,), "lse_ptr": (n_q,)}, "m_ptr": m, "l_ptr": l,
        "acc_ptr": acc.reshape(-1), "n_q": n_q, "HEAD_DIM": d, "BLOCK_M": block_m,
        "BLOCK_D": max(16, 1 << (d - 1).bit_length()),
    }  # fmt: skip


def epilogue_test(which):
    def test(answer, **case):
        launch = launched(answer, **epilogue_launch(**case))
        if wrong := outside(launch) or unwritten(launch):
            return wrong
        m, l, acc = (x.astype(np.float64) for x in epilogue_state(*(case[n] for n in ("n_q", "d", "empty"))))
        l_safe = np.where(l == 0, 1.0, l)
        if which == "lse":
            part = lse_part(np.where(l == 0, -np.inf, m * np.log(2) + np.log(l_safe)), m * np.log(2))
        else:
            exact = acc / l_safe[:, None]
            part = Part("o", exact, exact.astype(np.float32), np.abs(exact), lambda: {NOT_DIVIDED: acc}, "row")
        returned = launch.outputs[f"{which}_ptr"]
        return compare(returned.reshape(part.expected.shape), [part])

    return test


def epilogue_property(name, *cases, hints, which="lse"):
    call = (
        "from course_lib.exercises.lesson_08 import epilogue_launch\n"
        "launched(lse_epilogue, **epilogue_launch(n_q, d, block_m, empty))"
    )
    cases = tuple({"n_q": n_q, "d": d, "block_m": 16, "empty": empty} for n_q, d, empty in cases)
    return Property(name, call, epilogue_test(which), cases, hints=hints)


EPILOGUE = Exercise(
    id="08.lse_epilogue",
    title="After the loop: o and lse",
    points=2,
    minutes=7,
    difficulty="medium",
    answer=lse_epilogue,
    imports=TRITON,
    hints=(
        "What are acc and l sums of, and from what max are both measured? What is left when they are divided, and "
        "what has to be added to log(l) to get the logarithm of the unshifted sum?",
        "lse = max + log(l). m holds max * log2(e), so add tl.log2(l) to it and go back to natural units by one "
        "factor. A row with l = 0 gets tl.where.",
        "l_safe = tl.where(l_i == 0.0, 1.0, l_i); o = acc / l_safe[:, None]; lse = tl.where(l_i == 0.0, "
        'float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453). Load and store with offs_m < n_q and offs_d < '
        "HEAD_DIM.",
    ),
    reasoning="o needs one division a row, and lse one logarithm. Both m, times log2(e), and log2(l) are there to "
    "add, and ln 2 turns the sum back. The guard replaces l by 1 before log2 and the division, and not after, so that "
    "neither log2(0) nor 0/0 is computed.",
    properties=(
        epilogue_property(
            "o is acc divided by l",
            (16, 16, 0),
            hints={f": {NOT_DIVIDED}": "divide", ": unwritten": "unwritten", "": "divide"},
            which="o",
        ),
        epilogue_property(
            "lse is the natural log-sum-exp",
            (16, 16, 0),
            hints={f": {LSE_BASE_TWO}": "base", f": {LSE_NEGATED}": "sign", f": {MAX_ALONE}": "l", "": "lse"},
        ),
        epilogue_property(
            "any number of queries, any head dimension",
            (5, 3, 0),
            (33, 20, 0),
            hints={": reads outside": "load_mask", ": writes outside": "store_mask", "": "store_mask"},
            which="o",
        ),  # fmt: skip
        epilogue_property("a query that saw no key: o is 0", (16, 16, 3), hints={"": "empty"}, which="o"),
        epilogue_property("a query that saw no key: lse is -inf", (16, 16, 3), hints={"": "empty_lse"}),
    ),
    mistakes={"endless": SHARED_MISTAKES["endless"], "error": SHARED_MISTAKES["error"]}
    | {
        "divide": "acc is a sum of weights exp(score - max) times values, l the sum of the weights: o is acc / l.",
        "unwritten": "Two stores: acc / l in o, and lse. Program i has the BLOCK_M rows from i * BLOCK_M on.",
        "base": "m + log2(l) counts in powers of 2. One factor ln 2 = 0.6931471805599453 makes it natural.",
        "sign": "The sum of exp(score) is exp(max) times l. What is its logarithm?",
        "l": "log(l) is missing, or is it log2 of something that is 1?",
        "lse": "lse = max + log(l). Is each of the two there once, and both in the same units before they are added?",
        "load_mask": "A load whose tile reaches beyond n_q or HEAD_DIM needs a mask for both.",
        "store_mask": "A store needs the same mask as the load: rows below n_q, columns below HEAD_DIM.",
        "empty": "0 / 0 is NaN. Divide by 1 where l is 0.",
        "empty_lse": "A sum of no terms is 0, and its logarithm -inf. Adding a small number to l, or replacing l by 1, "
        "must not change that.",
    },
    common_hints={name: SHARED_HINTS[name] for name in (": timeout", ": exception")},
    wrong_answers=(
        *caught_by(
            "o is acc divided by l",
            WrongAnswer("not divided", "divide", {"o = acc / l_safe[:, None]": "o = acc"}),
            WrongAnswer(
                "o never stored",
                "unwritten",
                {"tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=mask)": "pass"},
            ),
        ),
        *caught_by(
            "lse is the natural log-sum-exp",
            WrongAnswer("base 2", "base", {" * 0.6931471805599453": ""}),
            WrongAnswer("minus lse", "sign", {"(m_i + tl.log2(l_safe))": "-(m_i + tl.log2(l_safe))"}),
            WrongAnswer("the max alone", "l", {"m_i + tl.log2(l_safe)": "m_i"}),
            WrongAnswer("natural log added to base-2 max", "lse", {"tl.log2(l_safe)": "tl.log(l_safe)"}),
        ),
        *caught_by(
            "any number of queries, any head dimension",
            WrongAnswer(
                "acc loaded without a mask",
                "load_mask",
                {"tl.load(acc_ptr + places, mask=mask, other=0.0)": "tl.load(acc_ptr + places)"},
            ),
            WrongAnswer(
                "columns not masked", "load_mask", {" & (offs_d < HEAD_DIM)[None, :]": " & (offs_d < BLOCK_D)[None, :]"}
            ),
            WrongAnswer("lse stored without a mask", "store_mask", {"lse, mask=mask_m)": "lse)"}),
        ),
        *caught_by(
            "a query that saw no key: o is 0",
            WrongAnswer("no guard", "empty", {"tl.where(l_i == 0.0, 1.0, l_i)": "l_i"}),
        ),
        *caught_by(
            "a query that saw no key: lse is -inf",
            WrongAnswer(
                "lse of an empty row is 0",
                "empty_lse",
                {'tl.where(l_i == 0.0, float("-inf"), (m_i': "tl.where(l_i == 0.0, 0.0, (m_i"},
            ),
        ),
    ),
    right_answers=(
        Variant(
            "natural logarithm, the max brought back first",
            {"(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i * 0.6931471805599453 + tl.log(l_safe)"},
        ),
        Variant(
            "multiplied by the reciprocal, -inf left to the max",
            {
                "acc / l_safe[:, None]": "acc * (1.0 / l_safe)[:, None]",
                'tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)': (
                    "(m_i + tl.log2(l_safe)) * 0.6931471805599453"
                ),
            },
        ),
    ),
)


def find_failing_input(kernel):
    """An input on which a kernel of the bug hunt is wrong.

    kernel: its name, "A" to "F".
    Returns a dict: q [heads, n_q, d]; k, v [heads, n_k, d], NumPy arrays of finite numbers, all float32 or all
        float16; causal: True or False; block_q, block_k: 16, 32 or 64. 1 to 4 heads, lengths 1 to 256, d 1 to 64,
        and an exact output that the dtype can hold.
    The kernel is wrong on it if o or lse differs from the exact one by more than the error budget: twice the error of
        plain PyTorch in the same dtype, and rounding.

    >>> sorted(find_failing_input("A"))
    ['block_k', 'block_q', 'causal', 'k', 'q', 'v']
    """
    rng = np.random.default_rng(0)
    n_q, n_k, d, dtype, causal, block_q = 16, 16, 16, np.float32, False, 16
    if kernel == "A":  # rows that do not see a visited tile
        n_q, n_k, causal, block_q = 32, 32, True, 32
    elif kernel == "B":  # a short last tile of keys
        n_k = 24
    elif kernel == "C":  # unequal lengths
        n_k, causal = 32, True
    elif kernel == "D":  # sums beyond float16, though their mean is not
        n_k, dtype = 128, np.float16
    elif kernel == "E":  # a padded head dimension
        d = 24
    q, k, v = (rng.standard_normal((1, n, d)).astype(dtype) for n in (n_q, n_k, n_k))
    if kernel == "D":
        q, v = 0 * q, 0 * v + 1000
    elif kernel == "F":  # all scores far below 0
        q, k = 0 * q + 10, 0 * k - 10
    return {"q": q, "k": k, "v": v, "causal": causal, "block_q": block_q, "block_k": 16}


def outside_contract(given):
    """Why an input is not one that the kernels promise to handle, or None."""
    names = ("q", "k", "v", "causal", "block_q", "block_k")
    if not isinstance(given, dict) or set(given) != set(names):
        return "type", f"the answer did not return a dict with exactly the keys {', '.join(names)}"
    q, k, v = given["q"], given["k"], given["v"]
    for name, x in zip("qkv", (q, k, v), strict=True):
        if not isinstance(x, np.ndarray) or x.ndim != 3:
            return "shape", f"{name} is no NumPy array of three dimensions [heads, length, d]"
        if x.dtype not in (np.float16, np.float32) or x.dtype != q.dtype:
            return "dtype", f"{name} has dtype {x.dtype}: accepted are float32 or float16, the same for all three"
        if not np.isfinite(x).all():
            return "finite", f"{name} is not finite everywhere"
    heads, n_q, d = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[2]) != (heads, d):
        return "shape", f"shapes {q.shape}, {k.shape} and {v.shape} do not belong together"
    if not (1 <= heads <= 4 and 1 <= n_q <= 256 and 1 <= k.shape[1] <= 256 and 1 <= d <= 64):
        return "size", f"shapes {q.shape} and {k.shape}: 1 to 4 heads, lengths 1 to 256 and d 1 to 64 are accepted"
    if given["causal"] not in (True, False):
        return "type", "causal is neither True nor False"
    if not {given["block_q"], given["block_k"]} <= {16, 32, 64}:
        return "size", f"block_q = {given['block_q']!r}, block_k = {given['block_k']!r}: accepted are 16, 32 and 64"
    with np.errstate(over="ignore"):
        scores_fit = np.isfinite(q @ k.transpose(0, 2, 1)).all()
    if not scores_fit:
        return "finite", f"q k^T leaves {q.dtype}: plain attention overflows too"
    return None


def contract_test(answer, kernel):
    given = answer(kernel)
    wrong = outside_contract(given)
    return only(*wrong) if wrong else None


def failing_test(answer, kernel):
    from course_lib.exercises import bug_hunt

    given = answer(kernel)
    if wrong := outside_contract(given):
        return only(*wrong)
    if bug_hunt.error_beyond_budget(kernel, **given):
        return None
    sizes = ", ".join(f"{name} {list(given[name].shape)}" for name in "qkv")
    settings = f"causal={given['causal']}, block_q={given['block_q']}, block_k={given['block_k']}"
    return only("right", f"kernel {kernel} is right on this input: {sizes}, {given['q'].dtype}, {settings}")


def failing_property(kernel):
    return Property(
        f"kernel {kernel} is wrong on its input", "find_failing_input(kernel)", failing_test, ({"kernel": kernel},),
        hints={": right": f"kernel {kernel}", "": "contract"},
    )  # fmt: skip


def _with(**changed):
    """The answer, but for the kernels named here: kernel -> function of what the answer returns."""

    def answer(kernel):
        given = find_failing_input(kernel)
        return changed[kernel](given) if kernel in changed else given

    return answer


FIND = Exercise(
    id="08.find_failing_input",
    title="Six kernels, six inputs",
    points=6,
    minutes=20,
    difficulty="hard",
    answer=find_failing_input,
    imports=TRITON,
    hints=(
        "An ordinary test takes equal lengths that the tiles divide, d = 32, square tiles, scores around 0, float32. "
        "Which of these can you change, one at a time?",
        "Print the kernels with bug_hunt.source and compare each line with your own kernel. Which lines have a mask, a "
        "type, a starting value or a scale that differs? For which sizes or values does that line matter?",
        "A: block_q larger than block_k, causal. B: n_k not a multiple of block_k, not causal. C: n_q and n_k "
        "different, causal. D: float16, and sums of values over 65504. E: d no power of two. F: scores far below 0.",
    ),
    reasoning="Each bug lives in one line that ordinary inputs never exercise: A measures a tile from its own max, "
    "which is -inf for a row that sees nothing of it. B masks loads but not scores. C forgets n_k - n_q. D keeps acc "
    "in the inputs' dtype. E takes the scale from the padded dimension. F starts the max at 0. A test suite for "
    "attention has to leave the ordinary in each of these directions.",
    properties=(
        Property(
            "the inputs are ones that the kernels promise to handle",
            "find_failing_input(kernel)",
            contract_test,
            tuple({"kernel": kernel} for kernel in "ABCDEF"),
            hints={": finite": "finite", ": dtype": "dtype", "": "contract"},
        ),
        *map(failing_property, "ABCDEF"),
    ),
    mistakes={"endless": SHARED_MISTAKES["endless"], "error": SHARED_MISTAKES["error"]}
    | {
        "contract": "Return {'q': ..., 'k': ..., 'v': ..., 'causal': ..., 'block_q': ..., 'block_k': ...} within the "
        "sizes of the docstring, for each of the six names.",
        "finite": "NaN and infinities break right kernels too. Find finite inputs, with scores that the dtype holds.",
        "dtype": "NumPy makes float64 by itself: .astype(np.float32), or np.float16 where that is the point.",
        "kernel A": "Where does A take the max that it subtracts from? Think of a row for which a whole tile is "
        "hidden, and of the tile sizes that make such rows.",
        "kernel B": "Which scores does B hide when it is not causal? Think of the last tile of keys.",
        "kernel C": "C compares keys and queries by their own numbers. When is that not the same as key <= query "
        "+ n_k - n_q?",
        "kernel D": "Look at the dtype of acc, and at what acc holds before the division: a sum over all keys.",
        "kernel E": "E knows two head dimensions. When are they different?",
        "kernel F": "What does F's running max start from, and which scores never reach it?",
    },
    common_hints={name: SHARED_HINTS[name] for name in (": timeout", ": exception")},
    wrong_answers=(
        *caught_by(
            "the inputs are ones that the kernels promise to handle",
            WrongAnswer(
                "NaN in an input", "finite", function=_with(D=lambda x: x | {"v": x["v"] * np.float16(np.nan)})
            ),
            WrongAnswer(
                "float64",
                "dtype",
                function=_with(F=lambda x: {n: a.astype(float) if n in "qkv" else a for n, a in x.items()}),
            ),
            WrongAnswer("a block of 8", "contract", function=_with(A=lambda x: x | {"block_k": 8})),
        ),
        *caught_by(
            "kernel A is wrong on its input",
            WrongAnswer("causal, but square tiles", "kernel A", function=_with(A=lambda x: x | {"block_q": 16})),
        ),
        *caught_by(
            "kernel B is wrong on its input",
            WrongAnswer("a ragged length, but causal", "kernel B", function=_with(B=lambda x: x | {"causal": True})),
        ),
        *caught_by(
            "kernel C is wrong on its input",
            WrongAnswer(
                "causal with equal lengths", "kernel C", function=_with(C=lambda x: x | {n: x[n][:, :16] for n in "kv"})
            ),
        ),
        *caught_by(
            "kernel D is wrong on its input",
            WrongAnswer(
                "float16 with ordinary values", "kernel D", function=_with(D=lambda x: x | {"v": x["v"] / 1000})
            ),
        ),
        *caught_by(
            "kernel E is wrong on its input",
            WrongAnswer(
                "d = 32",
                "kernel E",
                function=_with(E=lambda x: x | {n: np.zeros((1, 16, 32), np.float32) for n in "qkv"}),
            ),
        ),
        *caught_by(
            "kernel F is wrong on its input",
            WrongAnswer("scores far above 0", "kernel F", function=_with(F=lambda x: x | {"k": -x["k"]})),
        ),
    ),
    right_answers=(
        Variant("two heads of everything", function=lambda kernel: _two_heads(kernel)),
        Variant(
            "longer, and F by a scale",
            function=_with(
                A=lambda x: {n: np.tile(a, (1, 2, 1)) if n in "qkv" else a for n, a in x.items()},
                F=lambda x: x | {"q": 4 * x["q"]},
            ),
        ),
    ),
)


def _two_heads(kernel):
    given = find_failing_input(kernel)
    return given | {name: np.repeat(given[name], 2, axis=0) for name in "qkv"}


EXERCISES = (BOUNDS, EPILOGUE, FORWARD, FIND)


QUIZ = [
    {
        "question": "The last tile of keys has 5 keys and 11 empty places. All loads are masked with other=0. "
        "What else is needed?",
        "type": "multiple_choice",
        "answers": [
            option("Nothing: zeros add nothing to a dot product", False, "The score is 0, and exp(0 - m) is a weight."),
            option("-inf for the scores of the 11 places", True, "Then their weights are 0, in l and in acc."),
            option("Division by the number of real keys", False, "The sum l would still count the padded ones."),
        ],
    },
    {
        "question": "Causal, BLOCK_M = 64, BLOCK_N = 16, equal lengths that the tiles divide. How many key tiles of "
        "a query tile need a mask?",
        "type": "multiple_choice",
        "answers": [
            option("1, the one on the diagonal", False, "The diagonal crosses 64 keys, which are 4 tiles of 16."),
            option("All of them", False, "Keys before the tile's first query are seen by all of its queries."),
            option("4", True, "Those between full_end and kv_end: 64 keys."),
            option("None, if hidden tiles are skipped", False, "The tiles on the diagonal are partly hidden."),
        ],
    },
    {
        "question": "When does a loop that measures each tile from the tile's own max give NaN?",
        "type": "multiple_choice",
        "answers": [
            option("When a row sees no key of a visited tile", True, "Its tile max is -inf, and -inf - (-inf) is NaN."),
            option("When the scores are large", False, "Each exponent is a score minus a max, at most 0."),
            option(
                "Whenever the mask is causal",
                False,
                "With equal lengths, square tiles leave each row at least one key of each tile that it visits.",
            ),  # fmt: skip
        ],
    },
    {
        "question": "m_i is kept times log2(e) and l_i is a plain sum. What is the natural log-sum-exp?",
        "type": "multiple_choice",
        "answers": [
            option("m_i + log(l_i)", False, "That adds two different units."),
            option("m_i + log2(l_i)", False, "The units agree, and they are those of base 2."),
            option("(m_i + log2(l_i)) * ln 2", True, "Added in base 2, then turned back by one factor."),
        ],
    },
    {
        "question": "fp32 inputs, relative error 1e-7 in the interpreter. What does that say about a GPU?",
        "type": "multiple_choice",
        "answers": [
            option(
                "The same: the source is the same", False, "The interpreter knows no TF32: it ignores input_precision."
            ),
            option(
                "Nothing about tl.dot's default",
                True,
                "On an Ampere or newer GPU the default is TF32, with 10 bits of mantissa. Ask for ieee, and measure.",
            ),
            option("The GPU is more exact, for it has FMA", False, "Not if the product's inputs are rounded first."),
        ],
    },
]
