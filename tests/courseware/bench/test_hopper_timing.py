"""What lesson 15 says of its records, and of kernels that the interpreter refuses."""

from itertools import pairwise

import pytest
import torch

from course_lib.hardware import GPUS
from course_lib.kernels.hopper import forward
from courseware.bench import records
from courseware.bench.hopper_ladder import interpreted, rungs
from courseware.explorers import hopper
from courseware.simulators import sm_simulator
from courseware.simulators.gluon_emulator import GluonError

LENGTHS = 1024, 4096, 16_384
FULL, CAUSAL = 0, 1


def gain(name, n, causal, over=None, head_dim=128):
    kept = [rung.name for rung in rungs().values() if rung.kept]
    speeds = hopper.speeds(n, head_dim)
    return speeds[name][causal] / speeds[over or kept[kept.index(name) - 1]][causal]


def test_the_kept_rungs():
    for n in LENGTHS:
        for causal in (FULL, CAUSAL):
            assert 1.15 < gain("a warp that fetches", n, causal) < 1.45  # about a third, not two thirds
            assert 0.97 < gain("groups take turns", n, causal) < 1.05
        assert 1.03 < gain("next scores first", n, FULL) < 1.15 and 0.97 < gain("next scores first", n, CAUSAL) < 1.06
    assert 1.1 < gain("programs stay", 1024, FULL) < 1.2 and gain("programs stay", 16_384, FULL) < 1.03
    assert gain("programs stay", 1024, CAUSAL) > 0.98 and gain("programs stay", 16_384, CAUSAL) < 0.8
    assert gain("tiles in pairs", 16_384, CAUSAL) * gain("programs stay", 16_384, CAUSAL) > 1
    assert gain("a warp that fetches", 4096, FULL, head_dim=64) < 1.02  # nothing, with d = 64


def test_pairs_gain_in_the_order_that_tiles_say_and_less():
    counted, measured = [], []
    for n in LENGTHS:
        most = [max(hopper.key_tiles_of_programs(n, 16 * 16_384 // n, 132, paired)) for paired in (False, True)]
        counted.append(most[0] / most[1])
        measured.append(gain("tiles in pairs", n, CAUSAL))
    order = sorted(range(3), key=counted.__getitem__)
    assert order == sorted(range(3), key=measured.__getitem__)
    assert all(1 < clock < count for clock, count in zip(measured, counted, strict=True))


def test_the_rejected_rungs():
    last = [rung.name for rung in rungs().values() if rung.kept][-1]
    for n in LENGTHS:
        assert gain("tiles of 64 keys", n, FULL, last) < 0.97 and gain("tiles of 64 keys", n, CAUSAL, last) < 0.98
        assert gain("wait below the softmax", n, FULL, last) < 1.02
        assert gain("exponentials by polynomial", n, FULL, last) < 0.98
    assert gain("maximum as a tree", 4096, FULL, last) == pytest.approx(1, abs=0.024)


def test_shares_of_the_tensor_cores_and_the_clock():
    """With d = 128: busier in each of the simulator's rungs but by less than it promises, and slower, the busier."""
    shares, clocks = [], []
    for name in sm_simulator.RUNGS:
        shares.append(hopper.tensor_share(name, 128))
        assert shares[-1] < sm_simulator.predict(name).tensor_share
        clocks.append(hopper.speeds(4096)[name][FULL] / shares[-1])
    assert all(a < b for a, b in pairwise(shares)) and all(a > b for a, b in pairwise(clocks))
    assert 0.8 < shares[-1] < 0.9


def test_what_three_programs_mend_and_what_they_do_not():
    """With d = 64: the share of the first rung comes out, and those of the others are far too large."""
    over = [hopper.simulated(name, 64).tensor_share / hopper.tensor_share(name, 64) for name in sm_simulator.RUNGS]
    assert 1 < over[0] < 1.15 and min(over[1:]) > 1.5
    assert sm_simulator.predict("one group", 64).tensor_share < hopper.tensor_share("one group", 64)


def test_what_the_compiler_makes_of_the_rungs():
    kept = [rung.name for rung in rungs().values() if rung.kept]
    assert {row["rung"] for row in records.rows("hopper-rungs")} == set(kept)
    for head_dim, programs in ((64, 3), (128, 1)):
        assert hopper.programs("one group", head_dim) == programs
        assert all(hopper.programs(name, head_dim) == 1 for name in kept[1:])
    (last,) = records.rows("hopper-rungs", rung=kept[-1], head_dim=128)
    assert (last["registers"], last["stack_bytes"], last["num_warps"]) == (168, 0, 12)
    assert last["shared_bytes"] < GPUS["H100"].shared_bytes_per_block


def test_beside_the_peers():
    ahead = []
    for row in records.rows(hopper.RECORD, dtype="float16") + records.rows(hopper.RECORD, dtype="bfloat16"):
        tflops = row["tflops"]
        assert tflops["ours"] > max(tflops["portable"], tflops["sdpa_flash"])
        ratio = tflops["ours"] / tflops["sdpa_cudnn"]
        assert ratio > 1 if row["head_dim"] == 128 else 0.95 < ratio < 1.07
        ahead.append(tflops["sdpa_cudnn"] > tflops["portable"])
    assert len(ahead) == 24 and sum(ahead) > 18  # cuDNN is faster than the portable kernel in most of them


def test_the_backward_beside_its_peers():
    rows = records.rows(hopper.BACKWARD_RECORD)
    over = {
        (row["head_dim"], row["n"], row["dtype"], row["causal"]): {
            peer: row["tflops"]["ours"] / row["tflops"][peer] for peer in ("portable", "sdpa_cudnn")
        }
        for row in rows
    }
    assert len(over) == len(rows) == 24
    for (head_dim, n, *_), ratios in over.items():
        assert ratios["portable"] > (1.1 if head_dim == 128 else 1)
        assert ratios["portable"] < 1.2 or head_dim == 128  # less
        if head_dim == 128:
            assert 0.9 < ratios["sdpa_cudnn"] < 1.1
            assert ratios["sdpa_cudnn"] > 1 or n > 1024
            assert ratios["sdpa_cudnn"] < 1 or n < 16_384


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("        fence_async_shared()\n        tma", "        tma", "without fence_async_shared"),
        ("(STAGES, 2), barriers(STAGES, 2)", "(STAGES, 3), barriers(STAGES, 3)", "deadlock"),
    ],
)
def test_an_edit_is_interpreted_on_any_machine(old, new, said):
    q = torch.randn(1, 1, 512, 64, generator=torch.Generator().manual_seed(0)).half()
    o, _ = interpreted({})(q, q, q, causal=False, scale=0.125, store_lse=False)
    assert torch.isfinite(o).all()
    with pytest.raises(GluonError, match=said):
        interpreted({old: new})(q, q, q, causal=False, scale=0.125, store_lse=False)
    with pytest.raises(ValueError, match="occurs 0 times"):
        interpreted({"no such line": ""})
    assert forward.hopper_forward is not interpreted({})
