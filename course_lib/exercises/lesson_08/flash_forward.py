"""FlashAttention's forward pass in one kernel."""

import numpy as np

from course_lib import bug_hunt, reference, traffic
from course_lib.exercises.common.oracles import attention_output
from course_lib.grading.diagnosis import compare, expected
from course_lib.grading.exercise import Before, Exercise, ExpectedOutput, Slip, each_and_all
from course_lib.grading.kernel_calls import TRITON, compare_bytes, kernel_checks, plain, rounds_products, wrong_accesses
from course_lib.kernels import plain_forward

flash_forward = plain(plain_forward.flash_forward)

SCALE = 0.3  # not the usual 1/sqrt(d), so that a kernel that ignores its argument is noticed
MAKE_INPUTS = """\
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((heads, n, d)) for n in (n_q, n_k, n_k))
"""
# Every query's score with key j is then the j-th of SCORES.
SET_SCORES = f"""\
q[:], k[:] = 0, 0
q[..., 0], k[..., 0] = 1 / {SCALE}, SCORES
"""
ROUND_INPUTS = "q, k, v = (x.astype(np.float16) for x in (q, k, v))\n"
LAUNCH = f"""\
from course_lib import bug_hunt
launched(flash_forward, **bug_hunt.forward_launch(q, k, v, {SCALE}, causal, block_m, block_n))"""


def launch(scores=None, float16=False):
    """The call of a property. scores: those of every query, as an expression in n_k; None if they are random."""
    set_scores = SET_SCORES.replace("SCORES", scores) if scores else ""
    return MAKE_INPUTS + set_scores + (ROUND_INPUTS if float16 else "") + LAUNCH


def case(n_q, n_k, d=16, *, heads=1, causal=False, block_m=16, block_n=16):
    sizes = {"heads": heads, "n_q": n_q, "n_k": n_k, "d": d}
    return sizes | {"causal": causal, "block_m": block_m, "block_n": block_n}


def of_each_head(oracle):
    """The test that every head's output is as in oracle(q, k, v, causal), given the head's inputs."""

    def test(launch, q, k, v, causal, **_):
        if evidence := wrong_accesses(launch):
            return evidence
        for head in range(len(q)):
            parts = oracle(q[head], k[head], v[head], causal)
            if evidence := compare(launch.outputs[f"{parts[0].name}_ptr"][head], parts):
                return evidence
        return None

    return test


@of_each_head
def gives_o(q, k, v, causal):
    return attention_output("o", q, k, v, causal, SCALE)


@of_each_head
def gives_lse(q, k, v, causal):
    def lse(*qkv):
        return reference.attention(*qkv, causal=causal, scale=SCALE, return_lse=True)[1]

    return expected("lse", lse, q, k, v, terms=1.0)


@of_each_head
def gives_o_from_float16(q, k, v, causal):
    """Not causal. float16 weights, each rounded once, are allowed; a float16 accumulator is not."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    weights = reference.stable_softmax(reference.scores(q, k, SCALE))
    largest = weights.max(axis=1, keepdims=True)
    plain = (weights / largest).astype(np.float16) * largest @ v
    return [ExpectedOutput("o", weights @ v, plain, np.abs(v).max())]


def requests_the_closed_form(launch, heads, n_q, n_k, d, causal, block_m, block_n, **_):
    sizes = {"block_q": block_m, "block_k": block_n, "dtype_bytes": 4, "causal": causal}
    expected = traffic.flash_attention(n_q, n_k, d, heads=heads, return_lse=True, **sizes)
    return compare_bytes(launch, {name.lower(): tuple(moved) for name, moved in expected.by_tensor.items()})


LOG2_E = "(scale * 1.4426950408889634)"
LOAD_Q = "q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)"
P = "p = tl.exp2(scores - m_ref[:, None])"
RUNNING_MAX = "tl.maximum(m_i, tl.max(scores, axis=1))"
VISIBLE = "visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)"
KV_END = "tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)"
PRECISION = ', input_precision="ieee")'
DEFAULT_PRECISION = {f"tl.trans(k){PRECISION}": "tl.trans(k))", f"v.dtype), v{PRECISION}": "v.dtype), v)"}
LSE = "(m_i + tl.log2(l_safe))"
check = kernel_checks(launch(), gives_o)

check("one tile of queries and one of keys: softmax(scale q k^T) v", [case(32, 64, block_m=32, block_n=64)]).catches(
    Slip("scale is missing", {LOG2_E: "1.4426950408889634"}),
    Slip("scale is applied twice", {LOG2_E: f"(scale * {LOG2_E[1:]}"}),
    Slip("scale is not the argument", {LOG2_E: "(HEAD_DIM ** -0.5 * 1.4426950408889634)"}, bug_hunt.MISTAKES["E"]),
    Slip("exp2 without log2(e)", {LOG2_E: "scale"}),
    Slip("o is not divided by l", {"o = acc / l_safe[:, None]": "o = acc"}),
)
check("tiles of keys that leave the max alone", [case(16, 48)], call=launch("-np.arange(n_k) / 4")).catches(
    Slip("each tile is measured from its own max", {P: P.replace("m_ref", "tl.max(scores, axis=1)")})
)
check("tiles of keys that raise the max, each of them", [case(16, 48)], call=launch("np.arange(n_k) / 4")).catches(
    Slip("l is not rescaled", {"l_i * alpha + tl": "l_i + tl"}),
    Slip("acc is not rescaled", {"acc = acc * alpha[:, None]": "acc = acc"}),
    Slip(
        "alpha is upside down",
        {"alpha = tl.exp2(m_i - m_ref)": "alpha = tl.exp2(tl.where(m_i == float('-inf'), 0.0, m_ref - m_i))"},
    ),
)
check("lengths that no tile divides", [case(16, 7), case(5, 16), case(20, 40), case(1, 1)]).catches(
    Slip(
        "k is loaded without its row mask",
        {"tl.load(k_ptrs, mask=mask_n[:, None] & mask_d": "tl.load(k_ptrs, mask=mask_d"},
    ),
    Slip("lse is stored without a mask", {", lse, mask=mask_m)": ", lse)"}),
    Slip(
        "padded keys get weight",
        {"visible = mask_n[None, :]\n": "visible = mask_n[None, :] | True\n"},
        bug_hunt.MISTAKES["B"],
    ),
    Slip(
        "the last tile of keys is dropped",
        {"range(0, kv_end, BLOCK_N)": "range(0, tl.maximum(kv_end // BLOCK_N, 1) * BLOCK_N, BLOCK_N)"},
    ),
)
check("head dimensions that are no power of two", [case(16, 16, 3), case(16, 16, 20)]).catches(
    Slip("columns are not masked", {"mask_d = offs_d < HEAD_DIM": "mask_d = offs_d < BLOCK_D"})
)
check("several heads, each with its own keys", [case(16, 32, heads=2), case(32, 16, heads=3)]).catches(
    Slip("every head reads the keys of head 0", {"k_ptr + head * stride_kh +": "k_ptr +"}),
    Slip("q's head stride for k", {"head * stride_kh": "head * stride_qh"}),
    Slip("k's head stride for v", {"head * stride_vh": "head * stride_kh"}),
)
check("scores near 1000 do not overflow", [case(16, 32)], call=launch("1000 - np.arange(n_k) % 2 / 4")).catches(
    Slip("no max is subtracted", {f"m_new = {RUNNING_MAX}": "m_new = tl.zeros([BLOCK_M], tl.float32)"})
)
check(
    "the max falls by 1000 from one tile of keys to the next",
    [case(16, 32)],
    call=launch("-1000.0 * (np.arange(n_k) >= 16)"),
).catches(Slip("the tile's max replaces the running max", {RUNNING_MAX: "tl.max(scores, axis=1)"}))
check("all scores strongly negative", [case(16, 32)], call=launch("-1000 - np.arange(n_k) % 2 / 4")).catches(
    Slip("the running max starts at 0", bug_hunt.MISTAKES["F"])
)
check(
    "causal, as many queries as keys: query i sees keys 0 to i", [case(16, 16, causal=True), case(40, 40, causal=True)]
).catches(
    Slip("causal is ignored", {VISIBLE: "visible"}),
    Slip("one key too many", {"<= offs_m[:, None] +": "<= 1 + offs_m[:, None] +"}),
    Slip("one key too few", {"<= offs_m[:, None] +": "< offs_m[:, None] +"}),
    Slip(
        "hidden scores are set to 0",
        {f"visible = {VISIBLE}": f"scores = tl.where({VISIBLE.removeprefix('visible & ')}, scores, 0.0)"},
    ),
)
check(
    "causal, more keys than queries: the last query sees the last key",
    [case(16, 48, causal=True), case(32, 64, causal=True)],
).catches(
    Slip("aligned at the top left", {"<= offs_m[:, None] + n_k - n_q": "<= offs_m[:, None]"}, bug_hunt.MISTAKES["C"])
)
check(
    "causal, tiles of different sizes: a tile that some of its rows do not see at all",
    [case(32, 32, causal=True, block_m=32), case(64, 64, causal=True, block_n=32)],
).catches(
    Slip("each tile is measured from its own max and merged with beta", bug_hunt.MISTAKES["A"]),
    Slip(
        "the loop ends one key tile after its queries begin",
        {"tl.minimum(start_m + BLOCK_M, n_q) + n_k": "tl.minimum(start_m + BLOCK_N, n_q) + n_k"},
    ),
)
check(
    "causal, more queries than keys: a query that sees no key gets 0, never NaN",
    [case(20, 16, causal=True), case(50, 13, causal=True)],
).catches(
    Slip("-inf minus -inf in an empty row", {'tl.where(m_new == float("-inf"), 0.0, m_new)': "m_new"}),
    Slip(
        "hidden scores are set to -1e6",
        {'tl.where(visible, scores, float("-inf"))': "tl.where(visible, scores, -1.0e6)"},
    ),
)
check(
    "lse is the natural log-sum-exp of the scores, -inf where there are none",
    [case(16, 16), case(20, 33, heads=2), case(20, 5, causal=True)],
    test=gives_lse,
).catches(
    Slip("lse is in base 2", {" * 0.6931471805599453": ""}),
    Slip("lse has the wrong sign", {LSE: f"-{LSE}"}),
    Slip("lse without the max", {LSE: "tl.log2(l_safe)"}),
)
check(
    "float16 inputs, float32 sums", [case(16, 128)], test=gives_o_from_float16, call=launch("0.0", float16=True)
).catches(
    Slip(
        "the accumulator is float16",
        {
            "acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(q.dtype).to(tl.float32)",
            "o = acc /": "o = acc.to(q.dtype) /",
        },
        bug_hunt.MISTAKES["D"],
    )
)
check("float16 inputs with random scores", [case(16, 64)], test=gives_o_from_float16, call=launch(float16=True))
check(
    "q loaded once, k and v once for every tile of queries, o and lse stored once",
    [case(20, 24, 20, heads=2)],
    test=requests_the_closed_form,
).catches(Slip("q is loaded in the loop", {Before("offs_n ="): LOAD_Q}))
check(
    "causal: tiles that no query of the tile sees are not loaded",
    [case(48, 48, causal=True), case(40, 56, causal=True, block_n=32)],
    test=requests_the_closed_form,
).catches(Slip("hidden tiles are computed and masked", {KV_END: "n_k"}))
check(
    "float32 products: nothing is rounded to TF32 on a GPU",
    [case(32, 64, block_m=32, block_n=64)],
    test=rounds_products,
).catches(Slip("input_precision is left out", *each_and_all(DEFAULT_PRECISION)))

EXERCISE = Exercise(__file__, flash_forward, check, points=8, minutes=25, difficulty="hard", imports=TRITON)
