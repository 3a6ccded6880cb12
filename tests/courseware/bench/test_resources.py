"""The kernels compiled, without a GPU, for every generation the course speaks of: they fit and hardly spill.

And the records of what the compiler makes of them: complete, of the kernels as they are, and written as they should be.
"""

import inspect
import itertools
import json
import os
import random

import pytest
import triton
import triton.language as tl

from course_lib.hardware import GPUS
from course_lib.kernels import forward
from courseware.bench import records
from tools import compiled as memory
from tools import compiler_records, resources
from tools.compiled import DIFFERENT, EVERY, LAUNCHED, SERIALIZED, shipped
from tools.compiler_records import BLOCK_SIZES, COLUMNS, kernel_sha256, loops_of
from tools.resources import ARCHS, DTYPES, LENGTH, Request, Resources, forward_resources, fused_exponents

COMMAND = "python -m tools.compiler_records resources"

# sm_89 runs what is shipped for sm_80, in less shared memory.
SHARED_BYTES = {
    arch: min(gpu.shared_bytes_per_block for gpu in GPUS.values() if gpu.compute_capability in capabilities)
    for arch, capabilities in {75: [(7, 5)], 80: [(8, 0), (8, 9)], 90: [(9, 0)], 100: [(10, 0)]}.items()
}

# What spills is up to the compiler: with other versions, kernels only have to fit.
PINNED = triton.__version__ == "3.7.1"
DIVISION_BYTES = 24  # of stack for the subroutine of a division, once per tile of queries; anything more is a spill
# (kernel, arch, dtype) -> {head_dim: the most bytes of stack} of the shipped configurations that spill. Each fp32
# product is six of bf16 parts, which take more registers than there are: with 256 columns no tile sizes are without
# spills. On sm_90 the fastest of the tiles that were timed are shipped, even if they spill. "hopper" uses its stack
# once in a query tile, not in the loop.
KNOWN_SPILLS = {
    ("forward", 80, "float32"): {256: 128}, ("forward", 90, "float32"): {128: 136, 256: 1472},
    ("forward", 100, "float32"): {256: 184},
    ("dkdv", 80, "float32"): {128: 248, 256: 304}, ("dkdv", 90, "float32"): {128: 56, 256: 184},
    ("dkdv", 100, "float32"): {128: 104, 256: 264}, ("dkdv", 90, "float16"): {32: 112, 128: 112, 256: 320},
    ("dq", 80, "float32"): {64: 184, 128: 104, 256: 192}, ("dq", 90, "float32"): {128: 56, 256: 152},
    ("dq", 100, "float32"): {128: 56, 256: 192}, ("dq", 90, "float16"): {64: 40, 256: 56},
    ("list_dkdv", 90, "float16"): {128: 264}, ("decode", 90, "float16"): {128: 72},
    ("decode", 80, "float32"): {256: 184}, ("decode", 90, "float32"): {256: 144},
    ("decode", 100, "float32"): {256: 320},
    ("hopper", 90, "float16"): {64: 24, 128: 8}, ("hopper", 90, "bfloat16"): {64: 24, 128: 8},
    ("hopper_dkdv", 90, "float16"): {128: 8}, ("hopper_dkdv", 90, "bfloat16"): {128: 8},
    ("hopper_fused", 90, "float16"): {64: 176, 128: 88}, ("hopper_fused", 90, "bfloat16"): {64: 176, 128: 88},
}  # fmt: skip
HOPPER_REGISTERS = 168  # of 384 threads: what a multiprocessor's 65,536 allow


@pytest.mark.parametrize("arch", (75, 80, 90, 100))
def test_what_is_launched_fits_and_only_known_configurations_spill(arch):
    """What is known to spill must still do so, or the list has rotted."""
    requests = [request for request in LAUNCHED if request.arch == arch]
    spilling, found = {}, memory.compiled(requests)
    for request in requests:
        used, is_hopper, is_merge = found[request], request.kernel.startswith("hopper"), request.kernel == "merge"
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.registers <= (HOPPER_REGISTERS if is_hopper else 255), (request, used)
        assert used.tensor_cores == (arch != 75 and not is_merge), (request, used)
        assert used.config[0] == request.num_splits if is_merge else used.config[0] >= 16, (request, used)
        assert not used.serialized or not PINNED, (request, used)
        if used.stack_bytes > (0 if is_hopper or is_merge else DIVISION_BYTES):
            key = request.kernel, arch, request.dtype, request.head_dim
            spilling[key] = max(used.stack_bytes, spilling.get(key, 0))
    known = {(*key, d): most for key, bounds in KNOWN_SPILLS.items() if key[1] == arch for d, most in bounds.items()}
    assert not PINNED or spilling.keys() == known.keys(), spilling
    assert not PINNED or all(spilling[key] <= most for key, most in known.items()), spilling


def test_no_exponential_is_of_a_fused_multiply_add():
    """Rounded once where a maximum was rounded twice, its argument is wrong by more than 128 for huge scores."""
    assert not [request for request, used in memory.compiled(EVERY).items() if used.fused_exponents]
    fused = "FFMA R5, R4, R7, -R8 ;\n@!P0 FMUL R5, R5, 0.5 ;\nMUFU.EX2 R6, R5 ;\nFMUL R9, R5, R7 ;\nMUFU.EX2 R9, R9 ;"
    assert fused_exponents(fused) == 1 == fused_exponents(fused.replace("@!P0 FMUL R5, R5", "@!P0 FMUL R5, R6")) + 1


def test_a_report_is_of_the_launch():
    """Its configuration is what was launched, and its code depends on everything else in the request."""
    found = memory.compiled(EVERY)
    used = [found[request] for request in DIFFERENT]
    assert used[0].config == shipped(128, 90, "float16", True)
    assert used[1].config == (64, 32, 8, 1)
    assert len(set(used)) == len(DIFFERENT)
    assert found[SERIALIZED].serialized or not PINNED


def test_what_is_remembered_is_what_the_compiler_says():
    """Two kernels, drawn by the seed, are compiled; with other versions, all are. What does not compile says why."""
    each = {request.kernel: request for request in memory.remembered()}
    sample = random.Random(os.environ.get("COURSEWARE_SEED") or 0).sample(list(each.values()), min(2, len(each)))
    changed = memory.MODULES.keys() - each.keys()
    assert not PINNED or not changed, f"{changed} have changed; run: python -m tools.compiled"
    assert forward_resources(sample) == [memory.remembered()[request] for request in sample]
    with pytest.raises(RuntimeError, match="the compiler failed"):
        forward_resources([Request(64, 90, config=(48, 64, 4, 2))])


def test_the_record_is_complete_and_of_this_kernel():
    record = records.record("resources")
    assert record["kernel_sha256"] == kernel_sha256(), f"the kernel has changed; run: {COMMAND}"
    assert record["columns"] == list(COLUMNS)
    expected = itertools.product(ARCHS, DTYPES, compiler_records.HEAD_DIMS, (False, True), BLOCK_SIZES, BLOCK_SIZES)
    rows = [tuple(row[:6]) for row in record["rows"]]
    missing = set(expected) - set(rows)
    assert not missing, f"{len(missing)} rows are missing; run: {COMMAND}"
    assert len(set(rows)) == len(rows) and rows == sorted(rows)
    for row in record["rows"]:
        arch, dtype, head_dim, causal, *launched = row[:8]
        taken = shipped(head_dim, arch, dtype, causal, n_k=LENGTH, block_q=launched[0], block_k=launched[1])
        assert taken == tuple(launched), f"launches have changed; delete it and run: {COMMAND}"


def test_another_kernel_has_another_hash(monkeypatch):
    """Each function that the forward kernel reaches, in whichever file it stands, and each constant. No comment."""
    before, getsource = kernel_sha256(), inspect.getsource
    for old, new, is_another in (
        ("    # ", "    # Or so: ", False), ("l_i == 0.0", "l_i == 1.0", True), ("acc * alpha", "acc + alpha", True),
        ("other=0.0", "other=1.0", True),
    ):  # fmt: skip

        def changed(code, old=old, new=new):
            return getsource(code).replace(old, new)

        monkeypatch.setattr(inspect, "getsource", changed)
        assert (kernel_sha256() != before) == is_another, old
    monkeypatch.setattr(inspect, "getsource", getsource)
    monkeypatch.setattr(forward, "LN_2", tl.constexpr(0.7))
    assert kernel_sha256() != before


def test_recording_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """By the command, with an invented compiler that fails for sm_90, and two block sizes."""
    path, compiled = tmp_path / "resources.json", []

    def compile_all(requests):
        if any(request.arch == 90 for request in requests):
            raise RuntimeError("the compiler failed")
        compiled.extend(requests)
        return [Resources(1000 * r.config[0], 0, r.config[1], 0, True, False, 0, r.config) for r in requests]

    def recorded(*archs, sizes=(16, 32)):
        compiled.clear()
        for name, values in (("ARCHS", archs), ("DTYPES", ["float16"]), ("HEAD_DIMS", [64]), ("BLOCK_SIZES", sizes)):
            monkeypatch.setattr(compiler_records, name, values)
        compiler_records.main(["resources", "--file", str(path)])
        return json.loads(path.read_text())

    monkeypatch.setattr(resources, "forward_resources", compile_all)
    first = recorded(80)
    assert first["kernel_sha256"] == kernel_sha256()
    assert len(first["rows"]) == len(compiled) == 2 * 4 and "2 of 2 batches" in capsys.readouterr().out
    assert first["rows"][0] == [80, "float16", 64, False, 16, 16, 4, 1, 16_000, 0, 16, 0, True]
    assert recorded(80) == first and not compiled
    more = recorded(80, 75, sizes=(16,))
    assert {request.arch for request in compiled} == {75} and more["rows"][2:] == first["rows"]
    monkeypatch.setattr(compiler_records, "kernel_sha256", lambda: "another")
    with pytest.raises(RuntimeError, match="the compiler failed"):
        recorded(80, 90)
    afresh = json.loads(path.read_text())
    assert afresh["kernel_sha256"] == "another" and len(afresh["rows"]) == 8, "what came before the failure stays"


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
    (longest,) = loops_of(SASS.replace("HGMMA.64x64x16.F32", "FFMA"))
    assert longest["instructions"] == 12 and longest["products"] == 0
