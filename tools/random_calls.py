"""Calls of the Gluon kernels with random shapes on a GPU of compute capability 9.0, forward and backward.

    python -m tools.random_calls 1000

Every answer keeps the error budget against float64, and a second call gives the same bits. A call that takes longer
than TIME_LIMIT_S, because its warps wait for each other, ends the process.
"""

import faulthandler
import random
import sys

import torch

from course_lib.kernels.hopper.backward import hopper_backward
from course_lib.kernels.hopper.forward import hopper_flash_attention
from courseware.bench.accuracy import check_attention, check_gradients

TIME_LIMIT_S = 60  # the first call of a kind compiles for seconds
LENGTHS = 512, 3000  # that the shapes are drawn from
HEAD_DIMS = range(40, 129, 8)


def drawn(rng):
    """(q, k, v, causal): random numbers of a random shape, dtype, layout and number of heads that share keys."""
    batch, kv_heads, group_size = rng.randint(1, 3), rng.randint(1, 3), rng.choice((1, 1, 2, 4))
    head_dim, dtype = rng.choice(HEAD_DIMS), rng.choice((torch.float16, torch.bfloat16))
    n_q, n_k = rng.randint(*LENGTHS), rng.randint(*LENGTHS)
    tokens_first = rng.random() < 0.5
    made = []
    for heads, n in ((kv_heads * group_size, n_q), (kv_heads, n_k), (kv_heads, n_k)):
        shape = (batch, n, heads, head_dim) if tokens_first else (batch, heads, n, head_dim)
        x = torch.randn(shape, device="cuda", dtype=dtype)
        made.append(x.transpose(1, 2) if tokens_first else x)
    return *made, rng.random() < 0.5


def main(number):
    rng = random.Random(0)
    torch.manual_seed(0)
    for i in range(number):
        q, k, v, causal = drawn(rng)
        faulthandler.dump_traceback_later(TIME_LIMIT_S, exit=True)
        o, lse = hopper_flash_attention(q, k, v, causal=causal, return_lse=True)
        again, lse_again = hopper_flash_attention(q, k, v, causal=causal, return_lse=True)
        do, dlse = torch.randn_like(o), torch.randn_like(lse) if rng.random() < 0.5 else None
        saved, how = (q, k, v, o, lse, do, dlse), {"causal": causal, "scale": q.shape[-1] ** -0.5}
        gradients, gradients_again = hopper_backward(*saved, **how), hopper_backward(*saved, **how)
        fused = hopper_backward(*saved, **how, fused=True)
        torch.cuda.synchronize()
        faulthandler.cancel_dump_traceback_later()
        what = f"call {i}: q {list(q.shape)}, k {list(k.shape)}, {q.dtype}, causal={causal}"
        different = ((o != again).any(-1) | (lse != lse_again)).nonzero().tolist()
        rows = f"{len(different)} rows, (batch, head, row) {different[:9]}"
        assert not different, f"{what}: a second call differs in {rows}"
        for name, *pair in zip(("dq", "dk", "dv"), gradients, gradients_again, strict=True):
            assert torch.equal(*pair), f"{what}: {name} of a second call differs"
        try:
            check_attention((o, lse), q, k, v, causal=causal)
            for each in (gradients, fused):
                check_gradients(each, q, k, v, do, dlse, causal=causal)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
    print(f"{number} calls agree with float64, and a second call of each with the first, bit for bit")


if __name__ == "__main__":
    main(int(sys.argv[1]))
