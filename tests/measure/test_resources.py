"""The kernels compiled, without a GPU, for every generation the course speaks of: they fit and do not spill."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import triton

from course_lib.hardware import GPUS
from course_lib.kernels.flash import chosen_config
from course_lib.measure import resources
from course_lib.measure.resources import Request, Resources, forward_resources

RECORD = Path(resources.__file__).parents[1] / "data" / "resources.json"
COMMAND = "python -m course_lib.measure.resources --record course_lib/data/resources.json"

# sm_89 runs what is shipped for sm_80, in less shared memory.
SHARED_BYTES = {
    arch: min(gpu.shared_bytes_per_block for gpu in GPUS.values() if gpu.compute_capability in capabilities)
    for arch, capabilities in {75: [(7, 5)], 80: [(8, 0), (8, 9)], 90: [(9, 0)], 100: [(10, 0)]}.items()
}
# Compiling takes a second or two each: both ends, the usual ones, and one that is padded.
HEAD_DIMS = (16, 64, 80, 128, 256)


# What spills is this compiler's doing; other versions only have to fit.
PINNED = triton.__version__ == "3.7.1"


def stack_limit_bytes(request, used):
    """A division's subroutine takes up to 24 bytes, once a tile of queries: no spill of the loop's.

    The causal kernel's second pass, which runs only where a value is NaN or infinite, does spill: without tensor cores
    much, and with head_dim 256 on sm_90 what it needs to write the tile once more. Compiled without that pass, the
    kernel stays within 24 bytes too.
    """
    if not request.causal:
        return 24
    if not used.tensor_cores:
        return 2048
    return 64 if (request.arch, request.head_dim) == (90, 256) else 24


@pytest.mark.parametrize("dtype", ("float16", "float32"))
@pytest.mark.parametrize("arch", (80, 90, 100))
def test_shipped_configurations_fit_and_do_not_spill(arch, dtype):
    requests = [
        Request(head_dim, arch, dtype, causal) for head_dim, causal in itertools.product(HEAD_DIMS, (False, True))
    ]
    for request, used in zip(requests, forward_resources(requests), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.stack_bytes <= stack_limit_bytes(request, used) or not PINNED, (request, used)
        assert used.registers <= 255, (request, used)
        # IEEE fp32 products are no tensor-core work.
        assert used.tensor_cores == (dtype == "float16"), (request, used)
        assert not used.serialized or not PINNED, (request, used)


def test_bf16_takes_what_fp16_takes():
    for arch in (80, 90, 100):
        half, brain = forward_resources([Request(128, arch, dtype, True) for dtype in ("float16", "bfloat16")])
        assert (half.shared_bytes, half.stack_bytes) == (brain.shared_bytes, brain.stack_bytes)


def test_a_t4_gets_a_configuration_that_does_not_spill():
    """sm_75: no tensor cores from this compiler, hence slow; larger tiles spill thousands of bytes a thread."""
    shipped = [Request(d, 75, dtype, True) for d in (64, 128, 256) for dtype in ("float16", "float32")]
    for request, used in zip(shipped, forward_resources(shipped), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[75], (request, used)
        assert used.stack_bytes <= stack_limit_bytes(request, used) or not PINNED, (request, used)
        assert not used.tensor_cores
    (large,) = forward_resources([Request(64, 75, config=(64, 64, 4, 1))])
    assert large.stack_bytes > 1000


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="the compiler failed"):
        forward_resources([Request(64, 90, config=(48, 64, 4, 2))])


@pytest.mark.parametrize("arch", (75, 80, 90, 100))
def test_the_backward_kernels_fit_and_do_not_spill(arch):
    head_dims = {75: (64,), 90: (32, 64, 128, 256)}.get(arch, (64, 128))
    requests = [
        Request(head_dim, arch, causal=True, kernel=kernel)
        for head_dim, kernel in itertools.product(head_dims, ("dkdv", "dq"))
    ]
    if arch == 90:  # of what is too short or too oddly placed for descriptors
        requests += [Request(64, 90, kernel=kernel, causal=kernel == "dkdv", tma=False) for kernel in ("dkdv", "dq")]
    for request, used in zip(requests, forward_resources(requests), strict=True):
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        # On an H100 the fastest of the sweep hold a little more than the registers do. Elsewhere only a division may.
        stack_limit = 24 if arch != 90 else 256 if request.head_dim <= 128 else 512
        assert used.stack_bytes <= stack_limit or not PINNED, (request, used)
        assert used.tensor_cores == (arch != 75), (request, used)
        assert not used.serialized or not PINNED, (request, used)


def test_products_that_wait_for_each_other_are_noticed():
    """Its registers hold too little."""
    (used,) = forward_resources([Request(128, 90, causal=True, kernel="dkdv", config=(128, 64, 8, 2))])
    assert used.serialized or not PINNED


def test_the_record_is_of_this_kernel():
    record = json.loads(RECORD.read_text())
    assert record["kernel_sha256"] == resources.kernel_sha256(), f"the kernel has changed; run: {COMMAND}"
    assert record["columns"] == list(resources.COLUMNS)
    for row in record["rows"]:
        assert tuple(row[4:8]) == chosen_config(*row[4:6]), f"launches have changed; delete it and run: {COMMAND}"


def test_the_record_is_complete():
    record = json.loads(RECORD.read_text())
    expected = itertools.product(
        resources.ARCHS, resources.DTYPES, resources.HEAD_DIMS, (False, True), *[resources.BLOCK_SIZES] * 2
    )
    rows = [tuple(row[:6]) for row in record["rows"]]
    missing = set(expected) - set(rows)
    assert not missing, f"{len(missing)} rows are missing; run: {COMMAND}"
    assert len(set(rows)) == len(rows) and rows == sorted(rows)


def test_a_changed_kernel_has_another_hash(tmp_path, monkeypatch):
    for name in ("primitives.py", "flash_forward.py"):
        shutil.copy(resources.KERNELS / name, tmp_path)
    before = resources.kernel_sha256()
    monkeypatch.setattr(resources, "KERNELS", tmp_path)
    assert resources.kernel_sha256() == before

    def replaced(name, old, new):
        path = tmp_path / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        changed = resources.kernel_sha256() != before
        path.write_text(text)
        return changed

    assert replaced("flash_forward.py", "tl.dot(", "tl.DOT(")
    assert replaced("flash_forward.py", "NO_KEY = ", "NO_KEY = 1 + ")
    assert replaced("primitives.py", "tl.dot(", "tl.DOT(")
    assert not replaced("flash_forward.py", "def default_config", "# A comment.\ndef default_config")


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
        resources.record(path, **small | options)
        return json.loads(path.read_text()), list(compiled)

    return record


def test_recording_goes_on_where_it_was(small_record):
    first, compiled = small_record()
    assert len(first["rows"]) == len(compiled) == 2 * 4
    assert first["rows"][0] == [80, "float16", 64, False, 16, 16, 4, 1, 16_000, 0, 16, 0, True]
    assert {request.config for request in compiled} == {chosen_config(q, k) for q in (16, 32) for k in (16, 32)}
    again, compiled = small_record()
    assert again == first and not compiled
    more, compiled = small_record(archs=(80, 75), block_sizes=(16,))
    assert len(compiled) == 2 and {request.arch for request in compiled} == {75}
    assert more["rows"][2:] == first["rows"] and [row[0] for row in more["rows"][:2]] == [75, 75]


def test_recording_starts_afresh_for_another_kernel(small_record, monkeypatch):
    small_record()
    monkeypatch.setattr(resources, "kernel_sha256", lambda: "another")
    record, compiled = small_record(block_sizes=(32,))
    assert record["kernel_sha256"] == "another" and len(record["rows"]) == len(compiled) == 2


def test_what_was_recorded_before_a_failure_stays(small_record, tmp_path):
    with pytest.raises(RuntimeError, match="the compiler failed"):
        small_record(archs=(80, 90))
    assert len(json.loads((tmp_path / "resources.json").read_text())["rows"]) == 8


def test_the_command_records(tmp_path, monkeypatch, capsys):
    """With the compiler: one line a row, the figures that it gives for the same request."""
    path = tmp_path / "resources.json"
    monkeypatch.setattr(resources.record, "__kwdefaults__", resources.record.__kwdefaults__ | {"block_sizes": (16,)})
    options = ["--arch", "80", "--head-dim", "32", "--dtype", "float16", "--jobs", "1"]
    resources.main(["--record", str(path), *options])
    record = json.loads(path.read_text())
    assert record["triton"] == triton.__version__ and record["kernel_sha256"] == resources.kernel_sha256()
    assert len(path.read_text().splitlines()) == 1 + 2 + 1
    (used,) = forward_resources([Request(32, 80, causal=True, config=chosen_config(16, 16))])
    row = dict(zip(record["columns"], record["rows"][1], strict=True))
    assert (row["shared_bytes"], row["registers"]) == (used.shared_bytes, used.registers) and row["causal"]
    assert "2 of 2 batches" in capsys.readouterr().out
