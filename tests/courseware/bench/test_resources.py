"""The kernels compiled, without a GPU, for every generation the course speaks of: they fit and do not spill."""

import ast
import functools
import inspect
import itertools
import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from course_lib.hardware import GPUS
from course_lib.kernels import forward
from course_lib.kernels.configs import select
from courseware.bench import records
from tests.courseware.bench import compiled as memory
from tools import compiler_records, resources
from tools.compiler_records import BLOCK_SIZES, COLUMNS, chosen_config, kernel_sha256
from tools.resources import ARCHS, DTYPES, LENGTH, Request, Resources, forward_resources

COMMAND = "python -m tools.compiler_records resources"

# sm_89 runs what is shipped for sm_80, in less shared memory.
SHARED_BYTES = {
    arch: min(gpu.shared_bytes_per_block for gpu in GPUS.values() if gpu.compute_capability in capabilities)
    for arch, capabilities in {75: [(7, 5)], 80: [(8, 0), (8, 9)], 90: [(9, 0)], 100: [(10, 0)]}.items()
}
# Compiling takes some seconds each: both ends, the usual ones, and one that is padded, which takes what 128 takes.
HEAD_DIMS = {"float16": (16, 64, 80, 128, 256), "float32": (16, 64, 128, 256)}


def shipped(head_dim, arch, dtype, causal):
    """What a launch on inputs of LENGTH - 1 takes."""
    return select(
        "forward", dtype=getattr(torch, dtype), head_dim=head_dim, causal=causal, capability=divmod(arch, 10),
        n_k=LENGTH - 1, by_descriptor=arch >= 90,
    )  # fmt: skip


# Without the causal mask only where the tiles are others: in the same tiles, that is the same loop and one loop less.
FORWARD = [
    Request(d, arch, dtype, causal)
    for arch, dtype, causal in itertools.product((80, 90, 100), HEAD_DIMS, (True, False))
    for d in HEAD_DIMS[dtype]
    if causal or shipped(d, arch, dtype, False) != shipped(d, arch, dtype, True)
]
FORWARD += [Request(d, 75, dtype, True) for d in (64, 128, 256) for dtype in ("float16", "float32")]
BF16 = [Request(128, arch, "bfloat16", True) for arch in (80, 90, 100)]
BACKWARD = [
    Request(head_dim, arch, dtype, causal=True, kernel=kernel)
    for arch, dtype, head_dims in (
        (75, "float16", (64,)), (80, "float16", (64, 128)), (90, "float16", (32, 64, 128, 256)),
        (100, "float16", (64, 128)), *((arch, "float32", (64, 128, 256)) for arch in (80, 90, 100)),
    )
    for head_dim in head_dims
    for kernel in ("dkdv", "dq")
]  # fmt: skip
# Inputs too short, or too oddly aligned, for descriptors.
BY_POINTER = [Request(64, 90, kernel=kernel, causal=kernel == "dkdv", by_descriptor=False) for kernel in ("dkdv", "dq")]
# The registers are too few for these tiles.
SERIALIZED = Request(128, 90, causal=True, kernel="dkdv", config=(128, 128, 8, 2))
DIFFERENT = [
    Request(64, 90, causal=True),
    Request(64, 90, causal=True, config=(64, 32, 8, 1)),
    Request(64, 90),
    Request(64, 90, tail=False),
    Request(64, 90, by_descriptor=False),
]
RECORDED = Request(32, 80, causal=True, config=chosen_config(80, "float16", 32, True, 16, 16))
EVERY = (*FORWARD, *BF16, *BACKWARD, *BY_POINTER, SERIALIZED, *DIFFERENT, RECORDED)


@functools.cache
def of_arch(arch):
    """Request -> Resources, all that this file asks of one generation: what is compiled is compiled once."""
    return memory.compiled(request for request in EVERY if request.arch == arch)


def compiled(request):
    return of_arch(request.arch)[request]


# What spills is up to the compiler: with other versions, kernels only have to fit.
PINNED = triton.__version__ == "3.7.1"
DIVISION_BYTES = 24  # of stack for the subroutine of a division, once per tile of queries; anything more is a spill


# (kernel, arch, dtype, head_dim): bytes of stack of the shipped configurations that spill. Each fp32 product is six of
# bf16 parts, which take more registers than there are: with 256 columns no tile sizes are without spills. On sm_90 the
# fastest of the tiles that were timed are shipped, even if they spill.
KNOWN_SPILLS = {
    ("forward", 80, "float32", 256): 128,
    ("forward", 90, "float32", 128): 136, ("forward", 90, "float32", 256): 1472,
    ("forward", 100, "float32", 256): 184,
    ("dkdv", 80, "float32", 128): 248, ("dkdv", 80, "float32", 256): 304,
    ("dkdv", 90, "float32", 128): 48, ("dkdv", 90, "float32", 256): 168,
    ("dkdv", 90, "float16", 32): 104, ("dkdv", 90, "float16", 128): 112, ("dkdv", 90, "float16", 256): 320,
    ("dkdv", 100, "float32", 128): 104, ("dkdv", 100, "float32", 256): 264,
    ("dq", 80, "float32", 64): 184, ("dq", 80, "float32", 128): 96, ("dq", 80, "float32", 256): 192,
    ("dq", 90, "float32", 128): 56, ("dq", 90, "float32", 256): 152,
    ("dq", 90, "float16", 64): 40, ("dq", 90, "float16", 256): 56,
    ("dq", 100, "float32", 128): 56, ("dq", 100, "float32", 256): 192,
}  # fmt: skip


def test_what_is_remembered_is_what_the_compiler_says():
    """One kernel of each kind, which is compiled; with other versions, all are."""
    sample = list({request.kernel: request for request in memory.remembered()}.values())
    changed = memory.MODULES.keys() - {request.kernel for request in sample}
    assert not PINNED or not changed, f"{changed} have changed; run: python -m tests.courseware.bench.compiled"
    assert forward_resources(sample) == [memory.remembered()[request] for request in sample]


def test_a_changed_kernel_or_launch_is_not_remembered(monkeypatch):
    read = Path.read_text
    backward = {"dkdv", "dq", "list_dkdv", "list_dq", "hopper_dkdv", "hopper_dq"}
    before = {kernel: memory.fingerprint(kernel) for kernel in memory.MODULES}
    portable = {kernel for kernel in before if not kernel.startswith("hopper")}
    for old, new, changed in (
        ("    # ", "    # Or so: ", set()), ("num_stages=num_stages", "num_stages=1", portable),
        ("desc is not None", "desc is None", {*before}), ("delta[None, :]", "delta[:, None]", backward),
        ("page = load_page", "page = 1 + load_page", {"decode", "merge"}),
    ):  # fmt: skip
        monkeypatch.setattr(Path, "read_text", lambda *of, old=old, new=new, **how: read(*of, **how).replace(old, new))
        found = {kernel for kernel in before if memory.fingerprint.__wrapped__(kernel) != before[kernel]}
        assert found == changed, old


def only(requests, arch, dtype):
    return [request for request in requests if (request.arch, request.dtype) == (arch, dtype)]


@pytest.mark.parametrize("arch, dtype", list(itertools.product((75, 80, 90, 100), ("float16", "float32"))))
def test_shipped_configurations_fit_and_only_known_ones_spill(arch, dtype):
    """What is known to spill must still do so, or the list has rotted."""
    spilling, requests = {}, only(FORWARD + BACKWARD, arch, dtype)
    for request in requests:
        used = compiled(request)
        assert used.shared_bytes <= SHARED_BYTES[request.arch], (request, used)
        assert used.registers <= 255, (request, used)
        assert used.tensor_cores == (request.arch != 75), (request, used)
        assert not used.serialized or not PINNED, (request, used)
        if used.stack_bytes > DIVISION_BYTES:
            key = (request.kernel, request.arch, request.dtype, request.head_dim)
            spilling[key] = max(used.stack_bytes, spilling.get(key, 0))
    known = {key: bound for key, bound in KNOWN_SPILLS.items() if key[1:3] == (arch, dtype)}
    assert not PINNED or spilling.keys() == known.keys(), spilling
    assert not PINNED or all(spilling[key] <= bound for key, bound in known.items()), spilling


def test_bf16_takes_what_fp16_takes():
    for request in BF16:
        half, brain = compiled(replace(request, dtype="float16")), compiled(request)
        assert (half.shared_bytes, half.stack_bytes) == (brain.shared_bytes, brain.stack_bytes)


def test_larger_tiles_would_spill_on_a_t4():
    """sm_75: no tensor cores from this compiler, hence slow; larger tiles spill thousands of bytes a thread."""
    record = records.record("resources")
    rows = [dict(zip(record["columns"], row, strict=True)) for row in record["rows"]]
    large = {"arch": 75, "dtype": "float16", "head_dim": 64, "causal": False, "block_q": 64, "block_k": 64}
    (row,) = [row for row in rows if large.items() <= row.items()]
    assert row["stack_bytes"] > 1000


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="the compiler failed"):
        forward_resources([Request(64, 90, config=(48, 64, 4, 2))])


def test_the_backward_kernels_do_not_spill_without_descriptors():
    for used in map(compiled, BY_POINTER):
        assert used.stack_bytes <= DIVISION_BYTES and not used.serialized or not PINNED


def test_serialized_products_are_noticed():
    assert compiled(SERIALIZED).serialized or not PINNED


def test_a_report_is_of_the_launch():
    """Its configuration is what was launched, and its code depends on everything else in the request."""
    used = list(map(compiled, DIFFERENT))
    assert used[0].config == shipped(64, 90, "float16", True)
    assert used[1].config == (64, 32, 8, 1)
    assert len(set(used)) == len(DIFFERENT)


def test_the_record_is_of_this_kernel():
    record = records.record("resources")
    assert record["kernel_sha256"] == kernel_sha256(), f"the kernel has changed; run: {COMMAND}"
    assert record["columns"] == list(COLUMNS)
    for row in record["rows"]:
        assert tuple(row[4:8]) == chosen_config(*row[:6]), f"launches have changed; delete it and run: {COMMAND}"


def test_the_record_is_complete():
    record = records.record("resources")
    expected = itertools.product(ARCHS, DTYPES, compiler_records.HEAD_DIMS, (False, True), BLOCK_SIZES, BLOCK_SIZES)
    rows = [tuple(row[:6]) for row in record["rows"]]
    missing = set(expected) - set(rows)
    assert not missing, f"{len(missing)} rows are missing; run: {COMMAND}"
    assert len(set(rows)) == len(rows) and rows == sorted(rows)


@pytest.mark.parametrize(
    "function, old, new",
    [
        ("flash_forward_kernel", "l_i == 0.0", "l_i == 1.0"),
        ("attend", "float('-inf')", "-1e6"),
        ("online_softmax_update", "tl.exp2(m_i - m_ref)", "tl.exp2(m_ref - m_i)"),
        ("load_tile", "other=0.0", "other=1.0"),
        ("kv_loop_bounds", "start_m + 1", "start_m + 2"),
        ("visible", "<=", "<"),
    ],
)
def test_a_changed_kernel_has_another_hash(monkeypatch, function, old, new):
    """Each function that the forward kernel reaches, in whichever file it stands."""
    before, getsource = kernel_sha256(), inspect.getsource

    def changed(code):
        source = ast.unparse(ast.parse(textwrap.dedent(getsource(code))))
        if code.__name__ == function:
            assert old in source
            source = source.replace(old, new)
        return source

    monkeypatch.setattr(inspect, "getsource", changed)
    assert kernel_sha256() != before


def test_a_changed_constant_has_another_hash_and_a_changed_comment_has_not(monkeypatch):
    before, getsource = kernel_sha256(), inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda code: getsource(code).replace("    # ", "    # Or so: "))
    assert kernel_sha256() == before
    monkeypatch.setattr(forward, "LN_2", tl.constexpr(0.7))
    assert kernel_sha256() != before


@pytest.fixture
def small_record(tmp_path, monkeypatch):
    """`record(**options)` of two block sizes with an invented compiler; gives the file and what was compiled."""
    compiled = []

    def compile_all(requests):
        if any(request.arch == 90 for request in requests):
            raise RuntimeError("the compiler failed")
        compiled.extend(requests)
        return [Resources(1000 * r.config[0], 0, r.config[1], 0, True, False, r.config) for r in requests]

    monkeypatch.setattr(resources, "forward_resources", compile_all)
    path = tmp_path / "resources.json"

    def record(**options):
        compiled.clear()
        small = {"archs": (80,), "dtypes": ("float16",), "head_dims": (64,), "block_sizes": (16, 32), "jobs": 1}
        compiler_records.record_resources(path, **small | options)
        return json.loads(path.read_text()), list(compiled)

    return record


def test_recording_goes_on_where_it_was(small_record):
    first, compiled = small_record()
    assert len(first["rows"]) == len(compiled) == 2 * 4
    assert first["rows"][0] == [80, "float16", 64, False, 16, 16, 4, 1, 16_000, 0, 16, 0, True]
    assert {request.config for request in compiled} == {
        chosen_config(80, "float16", 64, False, q, k) for q in (16, 32) for k in (16, 32)
    }
    again, compiled = small_record()
    assert again == first and not compiled
    more, compiled = small_record(archs=(80, 75), block_sizes=(16,))
    assert len(compiled) == 2 and {request.arch for request in compiled} == {75}
    assert more["rows"][2:] == first["rows"] and [row[0] for row in more["rows"][:2]] == [75, 75]


def test_recording_starts_afresh_for_another_kernel(small_record, monkeypatch):
    small_record()
    monkeypatch.setattr(compiler_records, "kernel_sha256", lambda: "another")
    record, compiled = small_record(block_sizes=(32,))
    assert record["kernel_sha256"] == "another" and len(record["rows"]) == len(compiled) == 2


def test_what_was_recorded_before_a_failure_stays(small_record, tmp_path):
    with pytest.raises(RuntimeError, match="the compiler failed"):
        small_record(archs=(80, 90))
    assert len(json.loads((tmp_path / "resources.json").read_text())["rows"]) == 8


def test_the_command_records(tmp_path, monkeypatch, capsys):
    """With the compiler: one line a row, the figures that it gives for the same request."""
    path = tmp_path / "resources.json"
    record = compiler_records.record_resources
    monkeypatch.setattr(record, "__kwdefaults__", record.__kwdefaults__ | {"block_sizes": (16,)})
    options = ["--arch", "80", "--head-dim", "32", "--dtype", "float16", "--jobs", "1"]
    compiler_records.main(["resources", "--file", str(path), *options])
    record = json.loads(path.read_text())
    assert record["triton"] == triton.__version__ and record["kernel_sha256"] == kernel_sha256()
    assert len(path.read_text().splitlines()) == 1 + 2 + 1
    used = compiled(RECORDED)
    row = dict(zip(record["columns"], record["rows"][1], strict=True))
    assert (row["shared_bytes"], row["registers"]) == (used.shared_bytes, used.registers) and row["causal"]
    assert "2 of 2 batches" in capsys.readouterr().out
