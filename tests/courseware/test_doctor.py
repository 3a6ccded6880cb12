"""What the first cell of a notebook prints; and the doctor's rules, on machines that we do not have."""

import fcntl
import functools
import json
import sys
import tomllib
from dataclasses import replace

import pytest

from course_lib import runtime
from course_lib.runtime import Facts
from courseware import doctor
from courseware.doctor import diagnose
from tests.course_lib.test_runtime import ROOT, python


@pytest.mark.parametrize("absent", ["torch", "triton"])
def test_without_torch_or_triton_the_numpy_lessons_start(absent, tmp_path):
    # To Python, `absent` looks as if it were not installed.
    code = f"""
import importlib.metadata, importlib.util, sys
real_version, real_find_spec = importlib.metadata.version, importlib.util.find_spec

def version(name):
    if name == "{absent}":
        raise importlib.metadata.PackageNotFoundError(name)
    return real_version(name)

importlib.metadata.version = version
importlib.util.find_spec = lambda name, *rest: None if name == "{absent}" else real_find_spec(name, *rest)
from course_lib import runtime
from courseware import start
start()
print(runtime.mode(), runtime.device())
"""
    result = python("-c", code)
    assert result.stdout.startswith("The course is ready for the NumPy lessons."), result.stderr
    assert result.stdout.endswith("numpy cpu\n")


def test_what_follows_behind_jupyterlab_is_told(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"
    monkeypatch.setattr(runtime, "INSTALL_LOG", log)
    version = runtime._version
    monkeypatch.setattr(runtime, "_version", lambda distribution: None)

    def told(*lines, running=True):
        log.write_text("\n".join(lines))
        with open(log) as written:
            fcntl.flock(written, fcntl.LOCK_EX if running else fcntl.LOCK_UN)
            return runtime.installing()

    torch = "Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (915.7 MB)"
    metadata = "Downloading sympy-1.14.0-py3-none-any.whl.metadata (12 kB)"
    downloads = metadata, "Using cached numpy-2.4-x.whl (9.5 MB)", torch
    assert runtime.installing() is None and told() == "looking for packages"
    assert told(*downloads) == "10 MB of about 2,500 are here; now torch-2.13.0, 916 MB"
    unpacking = "Installing collected packages: torch", "  Uninstalling setuptools-65.5.0:"
    assert told(*downloads, *unpacking) == "925 MB are here and are being unpacked"
    assert told("ERROR: no space", running=False) == "stopped (ERROR: no space); `make lab` goes on with it"
    monkeypatch.setattr(runtime, "_version", version)
    assert told("Successfully installed torch-2.13.0", running=False) is None
    runtime.mode.cache_clear()  # what this process has settled on
    with open(log) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        doctor.start()
        assert "are being installed: looking for" in capsys.readouterr().out, (
            "Triton is there, but torch may be in pieces"
        )
        with monkeypatch.context() as in_pieces:
            in_pieces.setattr(runtime.importlib.util, "find_spec", lambda name: name)
            in_pieces.setitem(sys.modules, "torch", None)
            assert runtime.gather().torch_error is None, "nobody is told to reinstall it"
    doctor.start()  # which asks again
    assert "run in Triton's interpreter" in capsys.readouterr().out or runtime.mode() == "gpu"


GPU = Facts(
    python="3.11.9", system="Linux", machine="x86_64", missing=(), numpy="2.4.6", torch="2.13.0+cu130",
    torch_error=None, triton="3.7.1", triton_imported=None, triton_interpret=None, nvidia_smi=True,
    gpu="NVIDIA H100 80GB HBM3", capability=(9, 0), compiler="/usr/bin/gcc", cxx_compiler="/usr/bin/g++",
    cuda_core="1.2.2", installing=None,
)  # fmt: skip
LAPTOP = replace(GPU, torch="2.13.0+cpu", nvidia_smi=False, gpu=None, capability=None, cuda_core=None)
MACBOOK = replace(LAPTOP, system="Darwin", machine="arm64", torch="2.13.0", triton=None, cxx_compiler=None)
gpu, laptop, macbook = (functools.partial(replace, facts) for facts in (GPU, LAPTOP, MACBOOK))
T4 = gpu(gpu="Tesla T4", capability=(7, 5))


def test_mode_follows_from_the_facts():
    for facts in (GPU, T4, laptop(triton_interpret="0")):
        assert facts.mode == "gpu"
    for facts in (LAPTOP, gpu(capability=(6, 0)), gpu(triton_interpret="1"), laptop(triton_interpret="")):
        assert facts.mode == "interpreter"
    for facts in (MACBOOK, gpu(torch=None), gpu(torch_error="OSError: libcudart.so.13")):
        assert facts.mode == "numpy"


# For each rule: machines that it complains about, with a piece of the fix; machines that it accepts.
CASES = {
    "missing_requirements": ([(laptop(missing=("ipywidgets", "hypothesis")), "pip install ipywidgets hypothesis")], []),
    "torch_cannot_be_imported": ([(gpu(torch_error="OSError: libcudart.so.13"), "--force-reinstall torch")], []),
    "no_triton_for_this_platform": (
        [(MACBOOK, "Colab"), (macbook(system="Windows"), "WSL 2")],
        [laptop(triton=None), macbook(system="Windows", triton="3.7.1")],
    ),
    "triton_being_installed": (
        [(laptop(installing="looking for packages"), "Nothing to do")],
        [LAPTOP, laptop(triton=None)],
    ),
    "triton_not_installed": (
        [(laptop(triton=None), "pip install torch triton"), (laptop(torch=None), "")],
        [MACBOOK, laptop(triton=None, installing="looking for packages")],
    ),
    "imported_in_the_wrong_mode": (
        [(laptop(triton_imported="compiled"), "Restart the kernel"), (gpu(triton_imported="interpreted"), "")],
        [laptop(triton_imported="interpreted"), gpu(triton_imported="compiled")],
    ),
    "numpy_too_new_for_triton": (
        [
            (laptop(triton="3.4.0", torch="2.8.0"), "numpy<2.4"),
            (laptop(triton="3.6.0", torch="2.11.0", numpy="2.10.0"), "numpy<2.4"),
        ],
        [
            laptop(triton="3.6.0", torch="2.11.0", numpy="2.3.5"),
            laptop(triton="3.10.0", torch="2.16.0"),
            laptop(numpy=None, missing=("numpy",)),
        ],
    ),
    "numpy_too_new_for_tracing": (
        [(gpu(triton="3.6.0", torch="2.11.0"), "numpy<2.4")],
        [laptop(triton="3.6.0", torch="2.11.0")],
    ),
    "torch_and_triton_mixed": (
        [
            (laptop(triton="3.9.0"), "triton==3.7.*"),
            (laptop(triton="3.6.0", numpy="2.3.5"), "triton==3.7.*"),
            (laptop(torch="2.14.1"), "triton==3.8.*"),
        ],
        [
            laptop(torch="2.11.0", triton="3.6.0", numpy="2.3.5"),
            laptop(torch="2.15.0", triton="3.9.1"),
            laptop(torch="2.99.0a0+git1234567"),
        ],
    ),
    "no_compiler": ([(gpu(compiler=None), "apt-get install gcc")], [laptop(compiler=None)]),
    "no_cxx_compiler": (
        [(laptop(cxx_compiler=None), "apt-get install g++"), (gpu(cxx_compiler=None), "set CXX to its path")],
        [MACBOOK],
    ),
    "no_cuda_core": (
        [(gpu(cuda_core=None), "'cuda-core[cu13]'")],
        [LAPTOP, laptop(triton_interpret="0"), gpu(cuda_core=None, triton_interpret="1")],
    ),
    "compiled_without_gpu": (
        [(laptop(triton_interpret="0"), "Unset TRITON_INTERPRET")],
        [gpu(triton_interpret="0"), laptop(triton_interpret="1")],
    ),
    "gpu_left_idle": (
        [(gpu(triton_interpret="1"), "Unset TRITON_INTERPRET")],
        [laptop(triton_interpret="1"), gpu(capability=(7, 0), triton_interpret="1")],
    ),
    "gpu_unseen_by_torch": (
        [(laptop(nvidia_smi=True), "build of torch for CUDA")],
        [laptop(nvidia_smi=True, torch=None)],
    ),
    "gpu_too_old": ([(gpu(gpu="Tesla P100-PCIE-16GB", capability=(6, 0)), "without one")], [T4]),
    "gpu_without_fast_code": (
        [(T4, "records")],
        [gpu(capability=(8, 0)), gpu(capability=(7, 0)), gpu(capability=(12, 0))],
    ),
}


def test_every_rule_has_cases_and_something_to_say():
    said = tomllib.loads((ROOT / "courseware/doctor.toml").read_text())
    assert CASES.keys() == doctor.RULES.keys() == said.keys()
    assert all(texts.keys() == {"level", "title", "fix"} for texts in said.values())
    assert {rule for rule, texts in said.items() if texts["level"] == "error"} == {
        "missing_requirements", "torch_cannot_be_imported", "imported_in_the_wrong_mode", "numpy_too_new_for_triton",
        "no_compiler", "compiled_without_gpu",
    }  # fmt: skip
    assert diagnose(GPU) == diagnose(LAPTOP) == []


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_complains_when_it_should_and_only_then(rule):
    broken, sound = CASES[rule]
    for facts, fix in broken:
        finding = doctor.finding(rule, facts)
        assert fix in finding.fix and finding in diagnose(facts), facts
    for facts in [GPU, LAPTOP, *sound]:
        assert doctor.finding(rule, facts) is None, facts


def test_a_report_has_the_facts_then_errors_then_warnings():
    assert doctor.Report(T4, tuple(diagnose(T4))).healthy
    broken = replace(T4, torch="2.14.0", compiler=None)
    report = doctor.Report(broken, tuple(diagnose(broken)))
    assert not report.healthy and report.as_dict()["healthy"] is False
    assert [finding.level for finding in report.findings] == ["error", "warning", "warning"]
    for finding in report.findings:
        assert finding.title in repr(report) and finding.fix in repr(report)
    lines = repr(doctor.Report(GPU, ())).splitlines()
    assert lines[0] == "python       3.11.9 on Linux x86_64"
    assert lines[-3:] == ["kernels      run compiled, on NVIDIA H100 80GB HBM3", "", "Nothing is in the way."]
    assert "GPU          NVIDIA H100 80GB HBM3, compute capability 9.0" in lines
    macbook = repr(doctor.Report(MACBOOK, tuple(diagnose(MACBOOK))))
    assert "triton       not installed\nGPU          none" in macbook and "warning: There are no Triton" in macbook


def test_doctor_as_json_with_an_exit_status_that_tells_that_something_does_not_work():
    result = python("-m", "courseware", "doctor", "--json", TRITON_INTERPRET="0")
    report = json.loads(result.stdout)
    assert report["facts"]["system"] == "Linux" and report["facts"]["numpy"].count(".") == 2
    assert (report["mode"], report["healthy"], result.returncode) == ("gpu", False, 1)
    assert "TRITON_INTERPRET=0 requests compiled kernels" in str(report["findings"])


def test_doctor_reports_what_start_refuses():
    code = "import triton; from courseware import doctor; r = doctor.doctor(); print(r.healthy); print(r)"
    healthy, _, report = python("-c", code).stdout.partition("\n")
    assert healthy == "False" and "error: Triton was imported before course_lib" in report
