"""Attention in CUDA C++, with each score split over the lanes of a warp."""

import numpy as np
from hypothesis import strategies as st

from course_lib.kernels.cuda import launches
from courseware.checks import Exercise, case_of, expected, single_finding
from courseware.checks.cuda_calls import compare_output, compare_sectors, cuda_checks
from courseware.exercises.common.oracles import attention_output


def solve():
    """CUDA C++ of a kernel that writes softmax(Q K^T / sqrt(d)) V to output, and nowhere keeps the scores of a row.

    Its signature: extern "C" __global__ void solve(
        const float* Q, const float* K, const float* V, float* output, int M, int N, int d)
    Q, output: [M, d]. K, V: [N, d]. All row after row; M and N at least 1, and 1 <= d <= 128.
    Launched with ceil(M / 16) blocks of 32 x 16 threads: threadIdx.x is the lane, and threadIdx.y the warp. Warp w of
        block b has row 16 b + w, which may be beyond the last one.
    A block goes through the keys in tiles of 16. It copies a tile of K and a tile of V to shared memory, where all of
        its warps use them. A thread's own variables hold at most 1,024 floats, however large N is (so none of
        them has room for N scores), and there is no dynamic shared memory. No header may be included: CUDA's own
        functions need none, but INFINITY and FLT_MAX come from headers (section 5).
    Q is read and output written once, K and V once for each block, in requests for 32 consecutive elements.
    The scores are split over the lanes of a warp: lane i multiplies elements i, i + 32, i + 64 and so on of a query and
        a key, and shuffles add up the 32 sums. So a warp reads each element of a tile of K and of V, and of its row of
        Q, at most once from shared memory: 16 + 16 + 1 rows, or 33 ceil(d / 32) load requests for each warp and tile.

    >>> Q = K = V = np.ones((1, 2), np.float32)
    >>> output = np.full((1, 2), np.nan, np.float32)
    >>> run_cuda(solve(), "solve", 1, (32, 16), Q=Q, K=K, V=V, output=output, M=1, N=1, d=2).findings
    []
    >>> output
    array([[1., 1.]], dtype=float32)
    """
    return r"""
    extern "C" __global__ void solve(
        const float* Q, const float* K, const float* V, float* output, int M, int N, int d) {
      __shared__ float k_tile[16][128], v_tile[16][128];
      const float infinity = __int_as_float(0x7f800000), scale = 1.0f / sqrtf(d);
      const int lane = threadIdx.x, warp = threadIdx.y;
      const long long row = (long long)blockIdx.x * 16 + warp;

      // A lane's columns of the query and of the output, at most four.
      float q[4], acc[4], m = -infinity, l = 0.0f;
      for (int i = 0; i < 4; i++) {
        const int c = lane + 32 * i;
        q[i] = row < M && c < d ? Q[row * d + c] : 0.0f;
        acc[i] = 0.0f;
      }

      for (int start = 0; start < N; start += 16) {
        const long long key = start + warp;  // each warp copies one row of both tiles
        for (int c = lane; c < d; c += 32) {
          k_tile[warp][c] = key < N ? K[key * d + c] : 0.0f;
          v_tile[warp][c] = key < N ? V[key * d + c] : 0.0f;
        }
        __syncthreads();  // the tiles are complete

        for (int j = 0; j < 16; j++) {
          float score = 0.0f;
          for (int i = 0; i < 4; i++) {
            if (lane + 32 * i < d) score += q[i] * k_tile[j][lane + 32 * i];
          }
          for (int apart = 16; apart > 0; apart /= 2) score += __shfl_xor_sync(0xffffffff, score, apart);
          score = start + j < N ? score * scale : -infinity;

          const float m_new = fmaxf(m, score), alpha = expf(m - m_new), p = expf(score - m_new);
          m = m_new;
          l = l * alpha + p;
          for (int i = 0; i < 4; i++) {
            if (lane + 32 * i < d) acc[i] = acc[i] * alpha + p * v_tile[j][lane + 32 * i];
          }
        }
        __syncthreads();  // all warps are done with the tiles
      }

      for (int i = 0; i < 4; i++) {
        const int c = lane + 32 * i;
        if (row < M && c < d) output[row * d + c] = acc[i] / l;
      }
    }
    """


MAX_STACK_BYTES = 4096
INPUTS = """\
rng = np.random.default_rng(seed)
Q, K, V = (rng.standard_normal((rows, d)).astype(np.float32) for rows in (M, N, N))
"""
# The scores grow from key to key, so that the max moves in every tile, and the first of them are very negative.
LARGE = "Q, K = abs(Q), (K + 20 * np.arange(N)[:, None] - 400).astype(np.float32)"
LAUNCH = """\
output = np.full_like(Q, np.nan)
run_cuda(solve(), "solve", -(-M // 16), (32, 16), Q=Q, K=K, V=V, output=output, M=M, N=N, d=d)"""


def changed(inputs):
    return f"{INPUTS}{inputs}\n{LAUNCH}"


def gives_attention(report, Q, K, V, output, **_):
    return compare_output(report, output, *attention_output("output", Q, K, V))


def gives_the_mean(report, Q, V, output, **_):
    rows = np.ones((len(Q), 1))
    return compare_output(report, output, *expected("output", lambda v: rows.astype(v.dtype) * v.mean(axis=0), V))


def reads_once_a_block(report, Q, K, V, output, M, N, d, **_):
    plain = launches.plain_counts(M, N, d).by_tensor
    enough = {name: (0, sectors) if name == "output" else (sectors, 0) for name, (_, sectors) in plain.items()}
    blocks = -(-M // 16)
    least = {"Q": Q.nbytes, "K": blocks * K.nbytes, "V": blocks * V.nbytes, "output": output.nbytes}
    return gives_attention(report, Q, K, V, output) or compare_sectors(report, enough, least)


def keeps_no_row_of_scores(report, Q, K, V, output, **_):
    evidence = gives_attention(report, Q, K, V, output)
    if evidence or report.stack_bytes <= MAX_STACK_BYTES:
        return evidence
    text = f"the variables of a thread take {report.stack_bytes:,} bytes, where {MAX_STACK_BYTES:,} are enough"
    return single_finding("variables", text)


def compare_shared_loads(report, enough, least_bytes=0):
    """None if no more than `enough` requests loaded from shared memory, and no fewer than least_bytes."""
    count, moved = report.shared.loads.requests, report.shared.loads.bytes
    if moved < least_bytes:
        return single_finding(
            "too few", f"{moved:,} bytes are loaded from shared memory, and {least_bytes:,} have to be"
        )
    if count <= enough:
        return None
    text = f"{count} requests load from shared memory, where {enough} are enough"
    return single_finding(f"loads {count / enough:.2g} times", text)


def loads_each_row_once(report, Q, K, V, output, M, N, d, **_):
    warps, tiles, requests_of_a_row = 16 * -(-M // 16), -(-N // 16), -(-d // 32)
    of_a_row = warps * tiles * requests_of_a_row
    # A warp needs all 32 rows of both tiles, but for the one of each that its own lanes have copied.
    least_bytes = 30 * 4 * d * warps * tiles
    evidence = gives_attention(report, Q, K, V, output) or compare_shared_loads(report, 33 * of_a_row, least_bytes)
    if evidence is None or evidence.returned:
        return evidence
    rows = report.shared.loads.requests / of_a_row
    text = f"a warp's loads for one tile are those of {rows:.4g} rows; 16 of keys, 16 of values and 1 of Q are enough"
    return evidence.with_account(text)


check = cuda_checks(INPUTS + LAUNCH, gives_attention, case_of("M N d seed", seed=0))

check(
    "all scores 0, one tile of keys: output is the mean of V",
    [(16, 16, 32)],
    call=changed("Q[:] = 0"),
    test=gives_the_mean,
)
check("one tile of keys, one element for each lane", [(16, 16, 32)])
check("several tiles of keys", [(16, 32, 32), (16, 48, 32)])
check("several blocks", [(32, 16, 32)], credit=2)
check("any d up to 128", [(16, 16, 40), (16, 16, 5), (16, 32, 128)])
check("any number of keys", [(16, 20, 32), (16, 1, 8), (16, 39, 40)])
check("any number of queries", [(5, 16, 32), (20, 33, 32), (1, 1, 1)])
check("scores of hundreds, the largest in the last tile", [(16, 16, 4), (16, 40, 8)], call=changed(LARGE))
check("a later key scores far less", [(16, 20, 1)], call=changed("Q[:], K[:] = 1, -20 * np.arange(N)[:, None]"))
check(
    "all scores -4e6: the mean of V", [(16, 20, 1)], call=changed("Q[:], K[:] = 1, -4e6"), test=gives_the_mean, credit=4
)
check(
    "Q is read once, K and V once for each block, 32 columns at a time",
    [(16, 32, 32), (40, 20, 70)],
    test=reads_once_a_block,
)
check("the scores of a row are nowhere kept", [(1, 1100, 1)], test=keeps_no_row_of_scores)
# All rows and keys exist, so that it does not matter whether an answer skips those that do not.
check("from shared memory, at most 33 rows per warp and tile", [(16, 32, 64), (32, 16, 40)], test=loads_each_row_once)
check(
    "any Q, K and V",
    [(17, 18, 33, 1), st.tuples(*(st.integers(1, most) for most in (33, 50, 70)), st.integers(2, 999))],
)

EXERCISE = Exercise(__file__, solve, check, points=6, minutes=35, difficulty="hard")
