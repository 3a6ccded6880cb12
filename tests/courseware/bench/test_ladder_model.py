"""The counts of the rungs against the record, the ladder, sums by hand and the tracer."""

import json
import os
import subprocess
import sys
from itertools import product

import pytest
import torch
import triton

from course_lib import runtime
from courseware.bench import ladder_model, records, triton_ladder
from courseware.tracer import trace
from tools.compiler_records import loops_of

RUNGS = {rung.name: rung for rung in triton_ladder.RUNGS}
SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], [R4] ;
        /*0020*/                   STL.64 [R1], R8 ;
        /*0030*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/              @!P0 BRA 0x10 ;
        /*0060*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*0070*/                   LDL R8, [R1] ;
        /*0080*/               @P0 BRA 0x60 ;
        /*0090*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*00a0*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], !UPT ;
        /*00b0*/               @P1 BRA 0x0 ;
        /*00c0*/                   BRA 0xc0 ;
"""


def test_loops_are_those_with_the_fewest_products():
    first, last = loops_of(SASS)
    assert first == {
        "instructions": 5, "products": 1, "unit": "wgmma", "barriers": 1, "copies_ahead": 1, "spilled_bytes": 8
    }  # fmt: skip
    assert (last["instructions"], last["spilled_bytes"], last["copies_ahead"]) == (3, 4, 0)


def test_a_loop_without_products_is_the_longest():
    (loop,) = loops_of(SASS.replace("HGMMA.64x64x16.F32", "FFMA"))
    assert loop["instructions"] == 12 and loop["products"] == 0


def test_every_rung_was_compiled_with_both_masks_at_both_lengths():
    found = [(row["rung"], row["n"], row["causal"]) for row in records.rows("rungs")]
    assert sorted(found) == sorted(product(RUNGS, (1024, 4096), (False, True)))


def test_what_the_record_says_is_what_the_rungs_launch():
    for row in records.rows("rungs"):
        config = RUNGS[row["rung"]].options["config"]
        if config and row["rung"] != "keys outermost":
            assert (row["block_q"], row["block_k"], row["num_warps"]) == config[:3], row
        if row["rung"] not in ("keys outermost", "persistent"):
            assert row["programs"] == ladder_model.ROWS // row["block_q"], row
    (flash1,) = records.rows("rungs", rung="keys outermost", n=4096, causal=True)
    assert flash1["programs"] == 64


COMPILE = """
import json, torch
from courseware.bench import triton_ladder
from tools import resources
from tools.compiler_records import loops_of
q = torch.empty(4, 16, 4096, 128, dtype=torch.float16, device="meta")
for rung in triton_ladder.RUNGS:
    if rung.name in ("fused scale", "prefetch"):
        with resources.compiling_for(90) as launches:
            rung.launch(q, q, q, causal=False)
        used = resources.resources_of(*launches[-1])
        print(json.dumps([rung.name, used.registers, loops_of(resources.instructions_of(launches[-1][0]))]))
"""


@pytest.mark.skipif(triton.__version__ != "3.7.1", reason="what is counted is up to the compiler")
def test_another_compiler_counts_what_the_lesson_says():
    """Triton 3.7.1, by which the gains were predicted, fits three programs of "fused scale" into an SM's registers."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    fused, prefetch = map(json.loads, run.stdout.splitlines())
    assert fused[1] <= 168 < records.rows("rungs", rung="fused scale", n=4096, causal=False)[0]["registers"]
    assert fused[2][0]["instructions"] == 337 and fused[2][0]["copies_ahead"] == 0  # triton_ladder.toml: "1310" clocks
    assert prefetch[2][0]["copies_ahead"] > 0


def test_counts_by_hand():
    plain = ladder_model.counts_of("plain", 4096, False)
    # 2^18 rows by 32; 128 tiles of 32 keys; 4 * 32 * 32 * 128 FLOPs at 62 % of 80 % of 4096.
    assert (plain["programs"], plain["tiles"], plain["wait_clocks"], plain["warps"]) == (8192, 128, 1000, 4)
    assert plain["product_clocks"] == pytest.approx(524288 / (0.62 * 0.8 * 4096))
    causal = ladder_model.counts_of("mask the ends only", 4096, True)
    (row,) = records.rows("rungs", rung="mask the ends only", n=4096, causal=True)
    first, last = (loop["instructions"] for loop in row["loops"])
    assert causal["tiles"] == 32.5
    assert causal["instructions"] == pytest.approx((31.5 * first + last) / 32.5)
    assert ladder_model.counts_of("visit every tile", 4096, True)["tiles"] == 64
    assert ladder_model.counts_of("keys outermost", 4096, False)["tiles"] == 64 * 64
    assert ladder_model.counts_of("prefetch", 4096, False)["wait_clocks"] == 0


def test_the_bytes_of_the_suspects_are_what_the_tracer_counts():
    shape = 1, 1, ladder_model.SUSPECTS_N, ladder_model.HEAD_DIM
    q, k, v = (torch.randn(shape).to(runtime.device(), torch.float16) for _ in "qkv")
    for letter, kernel in ladder_model.suspects().items():
        with trace() as traced:
            triton_ladder.run(RUNGS[ladder_model.SUSPECTS[letter]], q, k, v, causal=True)
        for name in "qkv":
            assert traced.by_tensor[name][0] == kernel[f"{name}_bytes"], (letter, name)


def test_the_verdicts_that_the_lesson_speaks_of():
    found = {letter: ladder_model.find_the_waste(kernel) for letter, kernel in ladder_model.suspects().items()}
    verdicts = [verdict for verdict, _ in found.values()]
    assert verdicts == ["waits", "computes", "reads", "nothing", "reads"]
    assert 3.5 < found["E"][1] < 4, "nearly three times its tiles' bytes are spilled"
