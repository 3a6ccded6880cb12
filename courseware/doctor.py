"""What a machine can run, and how to fix what it cannot: `python -m courseware doctor`, and a notebook's first cell.

`runtime.gather` collects the facts of a machine, and `RULES` are applied to them. A rule is a function of the facts
alone, so that tests can show it any machine; what is said where it applies stands in doctor.toml.
"""

import argparse
import importlib
import json
import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib import runtime
from course_lib.runtime import OLDEST_CAPABILITY, TENSOR_CORE_CAPABILITY, Facts

# The Triton that each torch release is built and tested with. Its CUDA wheels require exactly this one. Its CPU
# wheels require none, so pip installs the newest.
TRITON_OF_TORCH = {(2, 11): (3, 6), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}


def start() -> None:
    """What a notebook's first cell calls: settle where kernels run, and say so in one line.

    The line names neither versions nor the machine, so that tests can compare committed outputs anywhere. A page that
    Voila makes of a notebook does without it, and without the badge.
    """
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):
        from IPython.display import HTML, display

        display(HTML('<style>a[href*="colab"] { display: none }</style>'))
        runtime.mode()
        return
    if runtime.mode() == "numpy":  # which may have changed since this process asked
        importlib.invalidate_caches()
        runtime.mode.cache_clear()
    lines = {
        "gpu": "The course is ready. Triton kernels run compiled, on the GPU.",
        "interpreter": "The course is ready. Triton kernels run in Triton's interpreter, on the CPU.",
        "numpy": "The course is ready for the NumPy lessons. "
        "The Triton lessons cannot run here: `python -m courseware doctor` says why.",
    }
    progress = runtime.mode() == "numpy" and runtime.installing()
    if progress:
        lines["numpy"] = (
            "The course is ready for the NumPy lessons, 00 to 06. torch and Triton, for the others, are being "
            f"installed: {progress}. To see how far that is, run this cell again."
        )
    print(lines[runtime.mode()])


@dataclass(frozen=True)
class Finding:
    """One finding of the doctor. level: "error" if something does not work, otherwise "warning"."""

    level: str
    title: str
    fix: str


def _release(version: str | None) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(map(int, version.split(".")[:2])) if version else None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _numpy_is_too_new(facts: Facts) -> bool:
    return bool(facts.numpy and facts.triton) and (
        (3, 4) <= _release(facts.triton) < (3, 7) and _release(facts.numpy) >= (2, 4)
    )


# Name of a finding in doctor.toml -> whether it is to be said of a machine.
RULES = {
    "missing_requirements": lambda facts: facts.missing,
    "torch_cannot_be_imported": lambda facts: facts.torch_error,
    "no_triton_for_this_platform": lambda facts: facts.system != "Linux" and not facts.triton,
    "triton_being_installed": lambda facts: facts.installing,
    "triton_not_installed": lambda facts: (
        facts.system == "Linux" and None in (facts.torch, facts.triton) and not facts.installing
    ),
    "imported_in_the_wrong_mode": lambda facts: facts.wrong_mode,
    "numpy_too_new_for_triton": lambda facts: _numpy_is_too_new(facts) and facts.mode == "interpreter",
    # With a GPU, only the tracer interprets kernels.
    "numpy_too_new_for_tracing": lambda facts: _numpy_is_too_new(facts) and facts.mode != "interpreter",
    "torch_and_triton_mixed": lambda facts: (
        facts.triton and TRITON_OF_TORCH.get(_release(facts.torch), _release(facts.triton)) != _release(facts.triton)
    ),
    "no_compiler": lambda facts: facts.mode == "gpu" and not facts.compiler,
    "no_cxx_compiler": lambda facts: facts.system == "Linux" and not facts.cxx_compiler,
    "no_cuda_core": lambda facts: facts.mode == "gpu" and facts.gpu and not facts.cuda_core,
    "compiled_without_gpu": lambda facts: facts.mode == "gpu" and not facts.gpu,
    "gpu_left_idle": lambda facts: facts.gpu and facts.capability >= OLDEST_CAPABILITY and facts.mode == "interpreter",
    "gpu_unseen_by_torch": lambda facts: facts.nvidia_smi and facts.torch and not facts.torch_error and not facts.gpu,
    "gpu_too_old": lambda facts: facts.capability and facts.capability < OLDEST_CAPABILITY,
    "gpu_without_fast_code": lambda facts: (
        facts.capability and OLDEST_CAPABILITY <= facts.capability < TENSOR_CORE_CAPABILITY
    ),
}


def finding(name: str, facts: Facts) -> Finding | None:
    """What doctor.toml says of this machine under the name of a rule; None if the rule does not apply."""
    if not RULES[name](facts):
        return None
    absent = [package for package in ("torch", "triton") if getattr(facts, package) is None]
    words = asdict(facts) | {
        "missing": ", ".join(facts.missing),
        "packages": " ".join(facts.missing),
        "absent": ", ".join(absent),
        "platform": "macOS" if facts.system == "Darwin" else facts.system,
        "wrong_mode": facts.wrong_mode,
        "belongs": _dotted(TRITON_OF_TORCH.get(_release(facts.torch), ())),
        "capability": facts.capability and _dotted(facts.capability),
        "oldest": _dotted(OLDEST_CAPABILITY),
        "tensor_cores_from": _dotted(TENSOR_CORE_CAPABILITY),
    }
    texts = tomllib.loads(Path(__file__).with_name("doctor.toml").read_text(encoding="utf-8"))[name]
    return Finding(**{key: " ".join(text.format(**words).split()) for key, text in texts.items()})


def diagnose(facts: Facts) -> list[Finding]:
    """What the rules find, errors first."""
    findings = filter(None, (finding(name, facts) for name in RULES))
    return sorted(findings, key=lambda found: found.level != "error")


@dataclass(frozen=True)
class Report:
    """The doctor's report on a machine: text when printed or shown in a notebook, a dict for a program."""

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything that can run on this platform does run; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)

    def as_dict(self) -> dict:
        return {"healthy": self.healthy, "mode": self.facts.mode} | asdict(self)

    def __repr__(self) -> str:
        facts = self.facts
        kernels = {
            "gpu": f"run compiled, on {facts.gpu}",
            "interpreter": "run in Triton's interpreter, on the CPU",
            "numpy": "cannot run",
        }
        rows = {
            "python": f"{facts.python} on {facts.system} {facts.machine}",
            "numpy": facts.numpy or "not installed",
            "torch": facts.torch or "not installed",
            "triton": facts.triton or "not installed",
            "GPU": f"{facts.gpu}, compute capability {_dotted(facts.capability)}" if facts.gpu else "none",
            "C compiler": facts.compiler or "none",
            "C++ compiler": facts.cxx_compiler or "none",
            "cuda-core": facts.cuda_core or "not installed",
            "kernels": kernels[facts.mode],
        }
        lines = [f"{name:12} {value}" for name, value in rows.items()]
        for finding in self.findings:
            lines += ["", f"{finding.level}: {finding.title}.", f"  fix: {finding.fix}"]
        if not self.findings:
            lines += ["", "Nothing is in the way."]
        return "\n".join(lines)


def doctor() -> Report:
    """Examine this machine and process, and report what is in the way of the course."""
    facts = runtime.gather()
    return Report(facts, tuple(diagnose(facts)))


def main(argv: list[str]) -> int:
    """`python -m courseware doctor`."""
    parser = argparse.ArgumentParser(
        prog="python -m courseware doctor",
        description="Say what this machine can run, what is in the way, and how to fix it. "
        "Exits with 1 if something does not work; warnings do not count.",
    )
    parser.add_argument("--json", action="store_true", help="write the report as JSON")
    arguments = parser.parse_args(argv)
    report = doctor()
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report)
    return 0 if report.healthy else 1
