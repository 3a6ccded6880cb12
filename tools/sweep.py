"""Times every block size, number of warps and number of stages of the shipped kernels: where `configs` comes from.

    python -m tools.sweep forward --json sweep-h100.json
    python -m tools.sweep dispatch --json dispatch-h200.json

The second times the portable kernels beside Hopper's, from small calls to large ones: where `prefers_hopper` and
`prefers_hopper_backward` come from. Both need a GPU and take minutes, and check what runs before it is timed.
"""

import argparse
import itertools
import sys
from functools import partial

import torch

from course_lib import masks
from courseware.bench import records, timing
from courseware.bench.accuracy import check_answers
from courseware.bench.timing import compile_ahead

CHOICES = {
    "block_q": (16, 32, 64, 128, 256), "block_k": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)
}  # fmt: skip
# (length, how many heads) of what is dispatched.
CALLS = [(n, 2**i) for n in (512, 1024, 2048, 4096, 8192) for i in range(1, 8) if n * 2**i <= 2**17]
LENGTH = 4096
KERNELS = {"forward": ("forward",), "backward": ("dkdv", "dq"), "variants": ("forward", "dkdv", "dq")}
# fp32 sums that one thread can hold: as many as it can have registers, although some are then spilled.
MAX_SUMS_PER_THREAD = 256


def candidates(kernel, head_dim):
    """The configurations worth trying: tensor cores can multiply their tiles, and threads can hold their sums."""
    for block_q, block_k, num_warps, num_stages in itertools.product(*CHOICES.values()):
        threads = 32 * num_warps
        if kernel == "forward":
            # No more than one warp for every 16 query rows.
            fits = block_q >= 16 * num_warps and block_q * head_dim <= 2**15 or num_warps == 4 and block_q < 64
        else:
            sums = 2 * block_k * head_dim if kernel == "dkdv" else block_q * head_dim
            fits = 32 <= min(block_q, block_k) and sums + block_q * block_k <= MAX_SUMS_PER_THREAD * threads
        if fits:
            yield block_q, block_k, num_warps, num_stages


def _inputs(head_dim):
    """A batch of the paper's setting at the sweep's length: q, k, v and a gradient of the output."""
    heads, batch = timing.HIDDEN_DIM // head_dim, timing.TOKENS // LENGTH
    return timing.random_inputs(batch, heads, LENGTH, head_dim, torch.float16)


def _launcher(kernel, inputs, causal):
    """A function from a configuration to a callable that returns [o] or (dq, dk, dv), None for what is not computed.

    causal: None for a causal mask whose tiles come from a list.
    """
    from course_lib.kernels.backward import flash_backward
    from course_lib.kernels.forward import flash_forward
    from course_lib.kernels.masked_attention import Variant, variant_backward, variant_forward

    q, k, v, do = inputs
    how = {"causal": causal, "scale": q.shape[-1] ** -0.5}
    variant = Variant(masks.causal(), (), None, None, 0.0, None), how["scale"]

    def forward(config=None, store_lse=True):
        if causal is None:
            return variant_forward(q, k, v, *variant, config)
        return flash_forward(q, k, v, store_lse=store_lse, config=config, **how)

    if kernel == "forward":
        return lambda config: lambda: [forward(config, store_lse=False)[0]]
    saved = (q, k, v, *forward(), do)
    which = {"need_dq": kernel == "dq", "need_dkdv": kernel == "dkdv"}

    def backward(config):
        configs = {"config_dkdv": config, "config_dq": config}
        if causal is None:
            return variant_backward(*saved, None, *variant, **configs, **which)[:3]
        return flash_backward(*saved, **configs, **which, **how)

    return lambda config: lambda: backward(config)


def sweep_rows(which, head_dims):
    """Time every candidate at one length. The row of one that does not run holds the reason instead.

    which: of KERNELS. The times of the backward's kernels include delta, which is the same for all. "variants" take
    their tiles from a list, which is a causal mask's; their row has null for causal.
    """
    cases = list(itertools.product(KERNELS[which], head_dims, (None,) if which == "variants" else (False, True)))
    compile_ahead(_compile_one, [(*case, config) for case in cases for config in candidates(*case[:2])])
    rows = []
    for kernel, head_dim, causal in cases:
        inputs = _inputs(head_dim)
        launcher = _launcher(kernel, inputs, causal)
        calls, outcomes = {}, {}
        for config in candidates(kernel, head_dim):
            call = launcher(config)
            try:
                answer = call()
            except Exception as reason:  # noqa: BLE001 - a compiler can raise anything
                outcomes[config] = {"error": f"{type(reason).__name__}: {reason}".splitlines()[0][:200]}
                continue
            check_answers({config: answer}, inputs[:3] if kernel == "forward" else inputs, causal is not False)
            calls[config] = call
        times_ms = timing.median_ms(calls, rounds=7)
        mask = masks.causal() if causal is None else None
        taken, by_descriptor = timing.shipped(kernel, *inputs, causal=causal, mask=mask)
        best = min(times_ms, key=times_ms.get)
        print(
            f"{kernel} d={head_dim} causal={causal}: fastest {best} {times_ms[best]:.3f} ms; shipped "
            f"{tuple(taken)} {times_ms.get(taken, float('nan')):.3f} ms; {len(outcomes)} of "
            f"{len(calls) + len(outcomes)} do not run",
            flush=True,
        )
        batch, heads = inputs[0].shape[:2]
        for config, ms in times_ms.items():
            outcomes[config] = {"ms": ms}
            if kernel == "forward":
                outcomes[config]["tflops"] = timing.tflops(ms, LENGTH, head_dim, heads, batch, causal is not False)
        rows += [
            {
                **dict(zip(CHOICES, config, strict=True)), "tma": by_descriptor, "head_dim": head_dim, "n": LENGTH,
                "causal": causal, "dtype": "float16", "batch": batch, "heads": heads, "shipped": config == taken,
                **({} if which == "forward" else {"kernel": kernel}), **outcomes[config],
            }
            for config in candidates(kernel, head_dim)
        ]  # fmt: skip
    return rows


def dispatch_rows(head_dims):
    """The milliseconds of each kernel that `flash_attention` chooses among, for CALLS. Wrong answers are not timed."""
    from course_lib.kernels.backward import flash_backward
    from course_lib.kernels.forward import flash_forward
    from course_lib.kernels.hopper.backward import hopper_backward
    from course_lib.kernels.hopper.forward import hopper_forward

    rows = []
    for head_dim, causal, (n, heads) in itertools.product(head_dims, (False, True), CALLS):
        *qkv, do = timing.random_inputs(1, heads, n, head_dim, torch.float16)
        how = {"causal": causal, "scale": head_dim**-0.5}
        saved = *qkv, *flash_forward(*qkv, store_lse=True, **how), do
        calls = {
            "forward": {
                "portable": lambda qkv=qkv, how=how: flash_forward(*qkv, store_lse=False, **how)[0],
                "hopper": lambda qkv=qkv, how=how: hopper_forward(*qkv, store_lse=False, **how)[0],
            },
            "backward": {
                "portable": partial(flash_backward, *saved, **how),
                "seven products": partial(hopper_backward, *saved, **how),
                "five products": partial(hopper_backward, *saved, fused=True, **how),
            },
        }  # fmt: skip
        for which, inputs in (("forward", qkv), ("backward", [*qkv, do])):
            ms = timing.compare(calls[which], inputs, causal, checked=calls[which])["ms"]
            rows.append({"pass": which, "head_dim": head_dim, "causal": causal, "n": n, "heads": heads, "ms": ms})
        print(rows[-2:], flush=True)
    return rows


def _compile_one(job):
    kernel, head_dim, causal, config = job
    try:
        _launcher(kernel, _inputs(head_dim), causal)(config)()
    except Exception:  # noqa: BLE001 - it is raised again, and recorded, where the call is timed
        pass


def main():
    parser = argparse.ArgumentParser("python -m tools.sweep", description=__doc__.splitlines()[0])
    parser.add_argument(
        "which",
        choices=(*KERNELS, "dispatch"),
        help="the forward, the backward's two, the variants' three; who is chosen",
    )
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    records.add_options(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.which == "dispatch":
        rows = dispatch_rows(options.head_dim)
    else:
        rows = sweep_rows(options.which, options.head_dim)
    records.save(options, "tools.sweep", sys.argv[1:], {"rows": rows})


if __name__ == "__main__":
    main()
