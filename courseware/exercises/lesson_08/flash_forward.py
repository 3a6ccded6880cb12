"""FlashAttention's forward pass in one kernel."""

import functools

import numpy as np

from course_lib import reference, traffic
from course_lib.kernels import plain_forward
from courseware.checks import Exercise, case_of, compare, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, compare_bytes, kernel_checks, plain, wrong_accesses
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.oracles import attention_output, output_from_float16
from courseware.exercises.common.precision import keeps_float32, rounds_products

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
# The scores of query i are all 1000 i.
FAR_APART = f"""\
q[:], k[:] = 0, 0
q[..., 0], k[..., 0] = 1000 / {SCALE} * np.arange(n_q), 1
"""
ROUND_INPUTS = "q, k, v = (x.astype(np.float16) for x in (q, k, v))\n"
LAUNCH = f"""\
from courseware import bug_hunt
launched(flash_forward, **bug_hunt.forward_launch(q, k, v, {SCALE}, causal, block_m, block_n))"""


def launch(scores=None, float16=False):
    """The call of a property. scores: those of every query, as an expression in n_k; None if they are random."""
    set_scores = SET_SCORES.replace("SCORES", scores) if scores else ""
    return MAKE_INPUTS + set_scores + (ROUND_INPUTS if float16 else "") + LAUNCH


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
    def lse(*qkv):  # float16 inputs come as float64 and float32, in which nothing is rounded to float16
        return reference.attention(*qkv, causal=causal, scale=SCALE, return_lse=True)[1]

    return expected("lse", lse, q, k, v, terms=1.0)


def means_of_nothing(launch, q, k, v, **_):
    """What a finite number in place of -inf makes of the queries that see no key: all their weights are alike."""
    empty, mean = launch.outputs["o_ptr"][0][: max(q.shape[1] - k.shape[1], 0)], v[0].mean(axis=0)
    times = empty @ mean / (mean @ mean)
    is_mean = len(empty) > 0 and times.all() and np.abs(empty - times[:, None] * mean).max() <= 1e-4
    if not is_mean:  # NaN is none
        return ""
    return "a query that sees no key gets a mean of all values here: are its scores a finite number, and not -inf?"


def lse_of_one_head(q, k, **_):
    return reference.logsumexp(reference.scores(np.float64(q[0]), np.float64(k[0]), SCALE))


@of_each_head
def gives_o_from_float16(q, k, v, causal):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return output_from_float16("o", q, k, v, np.abs(v).max(), causal=causal, scale=SCALE)


def requests_the_closed_form(launch, heads, n_q, n_k, d, causal, block_m, block_n, **_):
    sizes = {"block_q": block_m, "block_k": block_n, "dtype_bytes": 4, "causal": causal}
    expected = traffic.flash_attention(n_q, n_k, d, heads=heads, return_lse=True, **sizes)
    return compare_bytes(launch, {name.lower(): tuple(moved) for name, moved in expected.by_tensor.items()})


case = case_of("n_q n_k d heads causal block_m block_n", d=16, heads=1, causal=False, block_m=16, block_n=16)
causal = functools.partial(case, causal=True)
NEAR_1000 = launch("1000 - np.arange(n_k) % 2 / 4")
check = kernel_checks(launch(), gives_o, case)

check("all scores 0: o is the mean of the values", [(16, 16), (16, 32)], call=launch("0.0"))
check("one tile of queries and one of keys: softmax(scale q k^T) v", [case(32, 64, block_m=32, block_n=64)])
check("tiles of keys that leave the max alone", [(16, 48)], call=launch("-np.arange(n_k) / 4"))
check("tiles of keys that raise the max, each of them", [(16, 48)], call=launch("np.arange(n_k) / 4"), credit=3)
check("lengths that no tile divides", [(20, 40), (16, 7), (5, 16), (1, 1)])
check("head dimensions that are no power of two", [(16, 16, 3), (16, 16, 20)])
check("several heads, each with its own keys", [case(16, 32, heads=2), case(32, 16, heads=3)])
check("scores near 1000 do not overflow", [(16, 32)], call=NEAR_1000)
check("the max falls by 1000 from one tile to the next", [(16, 32)], call=launch("-1000.0 * (np.arange(n_k) >= 16)"))
check("all scores strongly negative", [(16, 32), (16, 23)], call=launch("-1000 - np.arange(n_k) % 2 / 4"), credit=5)
check("causal, as many queries as keys: query i sees keys 0 to i", [causal(16, 16), causal(40, 40)])
check("causal, more keys than queries: the last query sees the last key", [causal(16, 48), causal(32, 64)])
check(
    "causal, tiles of different sizes: a tile that some of its rows do not see at all",
    [causal(32, 32, block_m=32), causal(64, 64, block_n=32)],
)
check(
    "causal, more queries than keys: a query that sees no key gets 0, never NaN",
    [causal(20, 16), causal(50, 13)],
    test=explain(gives_o, means_of_nothing),
    credit=6,
)
check(
    "lse is the natural log-sum-exp of the scores, -inf where there are none",
    [(16, 16), case(20, 33, heads=2), causal(20, 5)],
    test=gives_lse,
)
check("all scores 0: lse is the logarithm of n_k", [(16, 32)], test=gives_lse, call=launch("0.0"))
check("all scores -4e6", [(16, 32)], test=gives_lse, call=launch("-4e6"))
check("rows 1000 apart, each with its own maximum", [(16, 32)], test=gives_lse, call=MAKE_INPUTS + FAR_APART + LAUNCH)
check("causal, hidden scores far above the visible ones", [causal(16, 16)], call=launch("200.0 * np.arange(n_k)"))
check("lse keeps the digits of float32", [(16, 32)], test=keeps_float32(lse_of_one_head), call=NEAR_1000)
check("float16 inputs, float32 sums", [(16, 128)], test=gives_o_from_float16, call=launch("0.0", float16=True))
check("float16 inputs: scores and lse are float32", [(16, 64)], test=gives_lse, call=launch(float16=True))
check("float16 inputs with random scores", [(16, 64)], test=gives_o_from_float16, call=launch(float16=True))
check(
    "q loaded once, k and v once for every tile of queries, o and lse stored once",
    [case(20, 24, 20, heads=2)],
    test=requests_the_closed_form,
)
check(
    "causal: tiles that no query of the tile sees are not loaded",
    [causal(48, 48), causal(40, 56, block_n=32), causal(40, 16)],
    test=requests_the_closed_form,
)
check("float32 products: nothing is rounded to TF32 on a GPU", [(16, 32)], test=rounds_products(gives_o))
compiles(check, 20, 40, 20, 2, True)

EXERCISE = Exercise(__file__, flash_forward, check, points=8, minutes=25, difficulty="hard", imports=TRITON)
