"""Decides where Triton kernels run, on a GPU or in Triton's interpreter, and diagnoses what is in the way.

Triton reads TRITON_INTERPRET from the environment whenever `@triton.jit` defines a function, including those of its
own library. So the decision must be made before Triton is imported: a notebook's first cell calls `choose`, and
`course_lib.kernels` calls it again. A process stays in one mode.

`doctor` gathers the facts of a machine into a `Facts` and applies `RULES` to it. A rule is a function of the facts
alone, so that tests can show it any machine; what is said where it applies stands in doctor.toml.
"""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

# The unpinned requirements in pyproject.toml, by the names under which they are imported.
REQUIRED_MODULES = ("numpy", "matplotlib", "ipywidgets", "hypothesis")

# The Triton that each torch release is built and tested with. Its CUDA wheels require exactly this one. Its CPU
# wheels require none, so pip installs the newest.
TRITON_OF_TORCH = {(2, 11): (3, 6), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}

OLDEST_CAPABILITY = (7, 5)
TENSOR_CORE_CAPABILITY = (8, 0)
# How Triton must have been imported for kernels to run in a mode.
WANTED = {"gpu": "compiled", "interpreter": "interpreted"}


def choose() -> str:
    """Decide where kernels run, and prepare the environment for it: "gpu", "interpreter" or "numpy".

    "gpu": compiled, because torch sees a GPU of compute capability 7.5 or newer. "interpreter": on the CPU;
    TRITON_INTERPRET=1 is now set. "numpy": Triton or torch is not installed, and there is nothing to prepare.
    If TRITON_INTERPRET is already set, it decides: 1 interprets even where there is a GPU, and 0 compiles even where
    there is none. The tests use 0 to read shared memory and registers on a CPU; no kernel can be launched then.

    Raises RuntimeError, with the fix, if Triton has already been imported in the other mode.
    """
    if _version("triton") is None:
        return "numpy"  # and torch, which takes a second to import, is not asked for a GPU
    facts = gather()
    problem = finding("imported_in_the_wrong_mode", facts)
    if problem:
        raise RuntimeError(f"{problem.title}. {problem.fix}")
    if facts.mode == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    return facts.mode


@functools.cache
def mode() -> str:
    """What `choose` decided in this process."""
    return choose()


def device() -> str:
    """The torch device that kernels' tensors belong on: "cuda" or "cpu"."""
    return "cuda" if mode() == "gpu" else "cpu"


@functools.cache
def capability(device) -> tuple[int, int] | None:
    """(major, minor) of a GPU, given as a torch device or its index. None where kernels are interpreted.

    Cached, because each query of the driver takes microseconds.
    """
    if mode() != "gpu":
        return None
    import torch

    return torch.cuda.get_device_capability(device)


@functools.cache
def multiprocessors(device) -> int:
    """How many multiprocessors a GPU has, given as a torch device or its index. 1 where kernels are interpreted."""
    if mode() != "gpu":
        return 1
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def environment(*, interpreting: bool) -> dict[str, str]:
    """For a process that this one starts: it imports from the same places, and interprets kernels or compiles them."""
    path = os.pathsep.join(str(entry) for entry in sys.path if entry)
    return os.environ | {"TRITON_INTERPRET": str(int(interpreting)), "PYTHONPATH": path}


def start() -> None:
    """What a notebook's first cell calls: `choose`, and print one line that says where kernels run.

    The line names neither versions nor the machine, so that tests can compare committed outputs anywhere. A page that
    Voila makes of a notebook does without it, and without the badge.
    """
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):
        from IPython.display import HTML, display

        display(HTML('<style>a[href*="colab"] { display: none }</style>'))
        mode()
        return
    lines = {
        "gpu": "course_lib is ready. Triton kernels run compiled, on the GPU.",
        "interpreter": "course_lib is ready. Triton kernels run in Triton's interpreter, on the CPU.",
        "numpy": "course_lib is ready for the NumPy lessons. "
        "The Triton lessons cannot run here: `python -m course_lib doctor` says why.",
    }
    print(lines[mode()])


@dataclass(frozen=True)
class Facts:
    """What `doctor` knows of a machine. Versions are as the packages state them; None means not installed."""

    python: str
    system: str  # platform.system(): "Linux", "Darwin", "Windows"
    machine: str  # platform.machine(): "x86_64", "aarch64", "arm64"
    missing: tuple[str, ...]  # of REQUIRED_MODULES
    numpy: str | None
    torch: str | None
    torch_error: str | None  # why an installed torch cannot be imported
    triton: str | None
    triton_imported: str | None  # "compiled" or "interpreted", once this process has imported Triton
    triton_interpret: str | None  # the environment variable
    nvidia_smi: bool  # the NVIDIA driver's command is on the path
    gpu: str | None  # name of the first GPU that torch can use
    capability: tuple[int, int] | None  # its compute capability
    compiler: str | None  # path of the C compiler that Triton would call
    cxx_compiler: str | None  # path of the C++ compiler with which CUDA kernels run on the CPU
    cuda_core: str | None  # the package with which CUDA kernels are compiled for a GPU

    @property
    def mode(self) -> str:
        """Where kernels run on this machine; see `choose`."""
        if not self.triton or not self.torch or self.torch_error:
            return "numpy"
        if self.triton_interpret:
            # The same words that Triton takes for true.
            interpreted = self.triton_interpret.lower() in ("1", "true", "on", "yes", "y")
        else:
            interpreted = self.capability is None or self.capability < OLDEST_CAPABILITY
        return "interpreter" if interpreted else "gpu"


def gather() -> Facts:
    """The facts of this machine and process. Imports torch, to ask it for a GPU, but never Triton."""
    torch_error = gpu = capability = None
    if importlib.util.find_spec("torch"):
        try:
            import torch

            if torch.cuda.is_available():
                gpu = torch.cuda.get_device_name(0)
                capability = torch.cuda.get_device_capability(0)
        except (ImportError, OSError, RuntimeError) as error:
            torch_error = f"{type(error).__name__}: {error}"
    return Facts(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        missing=tuple(name for name in REQUIRED_MODULES if importlib.util.find_spec(name) is None),
        numpy=_version("numpy"),
        torch=_version("torch"),
        torch_error=torch_error,
        triton=_version("triton"),
        triton_imported=_triton_imported(),
        triton_interpret=os.environ.get("TRITON_INTERPRET"),
        nvidia_smi=shutil.which("nvidia-smi") is not None,
        gpu=gpu,
        capability=capability,
        # Where Triton looks: CC, then gcc, then clang.
        compiler=os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        cxx_compiler=cxx_compiler(),
        cuda_core=_version("cuda-core"),
    )


def cxx_compiler() -> str | None:
    """Path of the C++ compiler with which CUDA kernels run on the CPU; None if there is none, and outside Linux."""
    if platform.system() != "Linux":
        return None
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton_imported() -> str | None:
    language = sys.modules.get("triton.language")
    if language is None:
        return None
    # Not what the environment says: it may have changed since Triton was imported.
    return "interpreted" if type(language.sum).__name__ == "InterpretedFunction" else "compiled"


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
    "triton_not_installed": lambda facts: facts.system == "Linux" and None in (facts.torch, facts.triton),
    "imported_in_the_wrong_mode": lambda facts: (
        facts.triton_imported and facts.mode != "numpy" and facts.triton_imported != WANTED[facts.mode]
    ),
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
        "wanted": WANTED.get(facts.mode),
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
        return {
            "healthy": self.healthy,
            "mode": self.facts.mode,
            "facts": asdict(self.facts),
            "findings": [asdict(finding) for finding in self.findings],
        }

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
    facts = gather()
    return Report(facts, tuple(diagnose(facts)))
