"""What the first cell of a notebook prints; and the doctor's rules, on machines that we do not have."""

import json
import tomllib
from dataclasses import replace

import pytest

from course_lib.runtime import Facts
from courseware import doctor
from courseware.doctor import diagnose
from tests.course_lib.test_runtime import ROOT, python


def test_start_prints_one_line_without_versions():
    result = python("-c", "from courseware import start; start()")
    assert result.stdout == "The course is ready. Triton kernels run in Triton's interpreter, on the CPU.\n"
    assert result.stderr == ""


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


GPU = Facts(
    python="3.11.9",
    system="Linux",
    machine="x86_64",
    missing=(),
    numpy="2.4.6",
    torch="2.13.0+cu130",
    torch_error=None,
    triton="3.7.1",
    triton_imported=None,
    triton_interpret=None,
    nvidia_smi=True,
    gpu="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    compiler="/usr/bin/gcc",
    cxx_compiler="/usr/bin/g++",
    cuda_core="1.2.2",
)
LAPTOP = replace(GPU, torch="2.13.0+cpu", nvidia_smi=False, gpu=None, capability=None, cuda_core=None)
MACBOOK = replace(
    LAPTOP, system="Darwin", machine="arm64", torch="2.13.0", triton=None, compiler="/usr/bin/clang", cxx_compiler=None
)


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        (GPU, "gpu"),
        (LAPTOP, "interpreter"),
        (MACBOOK, "numpy"),
        (replace(GPU, torch=None), "numpy"),
        (replace(GPU, triton=None), "numpy"),
        (replace(GPU, torch_error="OSError: libcudart.so.13"), "numpy"),
        (replace(GPU, capability=(7, 5)), "gpu"),
        (replace(GPU, capability=(6, 0)), "interpreter"),
        (replace(GPU, triton_interpret="1"), "interpreter"),
        (replace(GPU, triton_interpret="0"), "gpu"),
        (replace(LAPTOP, triton_interpret="0"), "gpu"),
        (replace(LAPTOP, triton_interpret=""), "interpreter"),
    ],
)
def test_mode_follows_from_the_facts(facts, mode):
    assert facts.mode == mode


@pytest.mark.parametrize("facts", [GPU, LAPTOP], ids=["gpu", "laptop"])
def test_a_good_machine_has_no_findings(facts):
    assert diagnose(facts) == []


# For each rule: machines that it complains about, with the level and a piece of the fix; machines that it accepts.
CASES = {
    "missing_requirements": (
        [
            (
                replace(LAPTOP, missing=("ipywidgets", "hypothesis")),
                "error",
                "pip install ipywidgets hypothesis",
            )
        ],
        [],
    ),
    "torch_cannot_be_imported": (
        [(replace(GPU, torch_error="OSError: libcudart.so.13"), "error", "--force-reinstall torch")],
        [],
    ),
    "no_triton_for_this_platform": (
        [(MACBOOK, "warning", "Colab"), (replace(MACBOOK, system="Windows"), "warning", "WSL 2")],
        [replace(LAPTOP, triton=None), replace(MACBOOK, system="Windows", triton="3.7.1")],
    ),
    "triton_not_installed": (
        [
            (replace(LAPTOP, triton=None), "warning", "pip install torch triton"),
            (replace(LAPTOP, torch=None), "warning", "pip install torch triton"),
        ],
        [MACBOOK],
    ),
    "imported_in_the_wrong_mode": (
        [
            (replace(LAPTOP, triton_imported="compiled"), "error", "Restart the kernel"),
            (replace(GPU, triton_imported="interpreted"), "error", "Restart the kernel"),
        ],
        [replace(LAPTOP, triton_imported="interpreted"), replace(GPU, triton_imported="compiled")],
    ),
    "numpy_too_new_for_triton": (
        [
            (replace(LAPTOP, triton="3.4.0", torch="2.8.0"), "error", "numpy<2.4"),
            (replace(LAPTOP, triton="3.6.0", torch="2.11.0"), "error", "numpy<2.4"),
            (replace(LAPTOP, triton="3.6.0", torch="2.11.0", numpy="2.10.0"), "error", "numpy<2.4"),
        ],
        [
            replace(LAPTOP, triton="3.6.0", torch="2.11.0", numpy="2.3.5"),
            replace(LAPTOP, triton="3.3.1", torch="2.7.1"),
            replace(LAPTOP, triton="3.10.0", torch="2.16.0"),
            replace(LAPTOP, numpy=None, missing=("numpy",)),
        ],
    ),
    "numpy_too_new_for_tracing": (
        [(replace(GPU, triton="3.6.0", torch="2.11.0"), "warning", "numpy<2.4")],
        [replace(LAPTOP, triton="3.6.0", torch="2.11.0")],
    ),
    "torch_and_triton_mixed": (
        [
            (replace(LAPTOP, triton="3.9.0"), "warning", "triton==3.7.*"),
            (replace(LAPTOP, triton="3.6.0", numpy="2.3.5"), "warning", "triton==3.7.*"),
            (replace(LAPTOP, torch="2.11.0"), "warning", "triton==3.6.*"),
            (replace(LAPTOP, torch="2.14.1"), "warning", "triton==3.8.*"),
            (replace(LAPTOP, torch="2.15.0"), "warning", "triton==3.9.*"),
        ],
        [
            replace(LAPTOP, torch="2.11.0", triton="3.6.0", numpy="2.3.5"),
            replace(LAPTOP, torch="2.14.0", triton="3.8.0"),
            replace(LAPTOP, torch="2.15.0", triton="3.9.1"),
            replace(LAPTOP, torch="2.99.0a0+git1234567"),
        ],
    ),
    "no_compiler": (
        [(replace(GPU, compiler=None), "error", "apt-get install gcc")],
        [replace(LAPTOP, compiler=None)],
    ),
    "no_cxx_compiler": (
        [
            (replace(LAPTOP, cxx_compiler=None), "warning", "apt-get install g++"),
            (replace(GPU, cxx_compiler=None), "warning", "set CXX to its path"),
        ],
        [MACBOOK],
    ),
    "no_cuda_core": (
        [(replace(GPU, cuda_core=None), "warning", "'cuda-core[cu13]'")],
        [LAPTOP, replace(LAPTOP, triton_interpret="0"), replace(GPU, cuda_core=None, triton_interpret="1")],
    ),
    "compiled_without_gpu": (
        [(replace(LAPTOP, triton_interpret="0"), "error", "Unset TRITON_INTERPRET")],
        [replace(GPU, triton_interpret="0"), replace(LAPTOP, triton_interpret="1")],
    ),
    "gpu_left_idle": (
        [(replace(GPU, triton_interpret="1"), "warning", "Unset TRITON_INTERPRET")],
        [replace(LAPTOP, triton_interpret="1"), replace(GPU, capability=(7, 0), triton_interpret="1")],
    ),
    "gpu_unseen_by_torch": (
        [(replace(LAPTOP, nvidia_smi=True), "warning", "build of torch for CUDA")],
        [replace(LAPTOP, nvidia_smi=True, torch=None)],
    ),
    "gpu_too_old": (
        [(replace(GPU, gpu="Tesla P100-PCIE-16GB", capability=(6, 0)), "warning", "without one")],
        [replace(GPU, capability=(7, 5))],
    ),
    "gpu_without_fast_code": (
        [(replace(GPU, gpu="Tesla T4", capability=(7, 5)), "warning", "records")],
        [replace(GPU, capability=(8, 0)), replace(GPU, capability=(7, 0)), replace(GPU, capability=(12, 0))],
    ),
}


def test_every_rule_has_cases_and_something_to_say():
    said = tomllib.loads((ROOT / "courseware/doctor.toml").read_text())
    assert CASES.keys() == doctor.RULES.keys() == said.keys()
    assert all(texts.keys() == {"level", "title", "fix"} for texts in said.values())


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_complains_when_it_should_and_only_then(rule):
    broken, sound = CASES[rule]
    for facts, level, fix in broken:
        finding = doctor.finding(rule, facts)
        assert finding is not None, facts
        assert finding.level == level
        assert fix in finding.fix
        assert finding in diagnose(facts)
    for facts in [GPU, LAPTOP, *sound]:
        assert doctor.finding(rule, facts) is None, facts


def test_health_is_the_absence_of_errors_and_errors_come_first():
    warned = replace(GPU, gpu="Tesla T4", capability=(7, 5))
    assert doctor.Report(warned, tuple(diagnose(warned))).healthy
    broken = replace(warned, torch="2.14.0", compiler=None)
    report = doctor.Report(broken, tuple(diagnose(broken)))
    assert not report.healthy
    assert [finding.level for finding in report.findings] == ["error", "warning", "warning"]
    assert report.as_dict()["healthy"] is False
    for finding in report.findings:
        assert finding.title in repr(report) and finding.fix in repr(report)


def test_report_names_what_it_found():
    assert repr(doctor.Report(GPU, ())).splitlines() == [
        "python       3.11.9 on Linux x86_64",
        "numpy        2.4.6",
        "torch        2.13.0+cu130",
        "triton       3.7.1",
        "GPU          NVIDIA H100 80GB HBM3, compute capability 9.0",
        "C compiler   /usr/bin/gcc",
        "C++ compiler /usr/bin/g++",
        "cuda-core    1.2.2",
        "kernels      run compiled, on NVIDIA H100 80GB HBM3",
        "",
        "Nothing is in the way.",
    ]
    macbook = repr(doctor.Report(MACBOOK, tuple(diagnose(MACBOOK))))
    assert "triton       not installed\nGPU          none" in macbook
    assert "warning: There are no Triton wheels for macOS" in macbook


def test_doctor_as_json():
    result = python("-m", "courseware", "doctor", "--json")
    report = json.loads(result.stdout)
    assert report["mode"] == "interpreter"
    assert report["facts"]["system"] == "Linux" and report["facts"]["gpu"] is None
    assert report["facts"]["numpy"].count(".") == 2
    assert report["healthy"] == (result.returncode == 0) == all(f["level"] != "error" for f in report["findings"])


def test_doctors_exit_status_tells_that_something_does_not_work():
    result = python("-m", "courseware", "doctor", TRITON_INTERPRET="0")
    assert result.returncode == 1
    assert "error: TRITON_INTERPRET=0 requests compiled kernels, but torch sees no GPU." in result.stdout


def test_doctor_reports_what_start_refuses():
    code = "import triton; from courseware import doctor; r = doctor.doctor(); print(r.healthy); print(r)"
    healthy, _, report = python("-c", code).stdout.partition("\n")
    assert healthy == "False" and "error: Triton was imported before course_lib" in report
