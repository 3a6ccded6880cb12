"""Where Triton kernels run: compiled on a GPU, in Triton's interpreter, or not at all; what is in the way.

Triton decides when it is imported: `TRITON_INTERPRET=1` must be in the environment by then, for `@triton.jit`
reads it as each function is defined, those of Triton's own library included. So `choose` is called before
Triton is imported, by a notebook's first cell and again by `course_lib.kernels`; one process is in one mode.

`doctor` gathers the facts of a machine into a `Facts` and applies `RULES` to it. A rule is a function of the
facts alone, so that the tests can show it any machine.
"""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass

# What the five unpinned requirements in pyproject.toml are called when they are imported.
REQUIRED_MODULES = ("numpy", "matplotlib", "ipywidgets", "jupyterquiz", "hypothesis")

# The Triton that each torch release is built and tested with. Its CUDA wheels require exactly this one;
# its CPU wheels require none, so that pip takes whatever is newest.
TRITON_OF_TORCH = {(2, 11): (3, 6), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}

OLDEST_CAPABILITY = (7, 5)
TENSOR_CORE_CAPABILITY = (8, 0)


def choose() -> str:
    """Decide where kernels run, and prepare the environment for it: "gpu", "interpreter" or "numpy".

    "gpu": compiled, for torch sees a GPU of compute capability 7.5 or newer. "interpreter": on the CPU, and
    TRITON_INTERPRET=1 is now set. "numpy": Triton or torch is not installed, and there is nothing to prepare.
    A TRITON_INTERPRET that is already set wins: 1 interprets in spite of a GPU, and 0 compiles without one,
    which is how the tests read shared memory and registers on a CPU; kernels then cannot be launched.

    Raises RuntimeError, with the fix, when Triton was imported before in the other mode.
    """
    if _version("triton") is None:
        return "numpy"  # and torch, which takes a second to import, is not asked for a GPU
    facts = gather()
    problem = imported_in_the_wrong_mode(facts)
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
    """(major, minor) of the GPU, a torch device or its index, where kernels run compiled; None where interpreted.

    Remembered: the driver takes microseconds to say it, every time.
    """
    if mode() != "gpu":
        return None
    import torch

    return torch.cuda.get_device_capability(device)


def start() -> None:
    """What a notebook's first cell calls: choose, and say it in one line.

    The line names no version, and no machine but a GPU: it is the same on every machine in the same mode, so
    that committed outputs can be compared.
    """
    lines = {
        "gpu": "course_lib is ready. Triton kernels run compiled, on the GPU.",
        "interpreter": "course_lib is ready. Triton kernels run in Triton's interpreter, on the CPU.",
        "numpy": "course_lib is ready for the NumPy lessons. "
        "The Triton lessons cannot run here: `python -m course_lib doctor` says why.",
    }
    print(lines[mode()])


@dataclass(frozen=True)
class Facts:
    """What `doctor` knows of a machine. Versions are as the packages state them; None means not there."""

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
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton_imported() -> str | None:
    language = sys.modules.get("triton.language")
    if language is None:
        return None
    # The environment may have changed since; what `tl.sum` has become has not.
    return "interpreted" if type(language.sum).__name__ == "InterpretedFunction" else "compiled"


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` has to say. level: "error" if something does not work, else "warning"."""

    level: str
    title: str
    fix: str


def missing_requirements(facts: Facts) -> Finding | None:
    if facts.missing:
        return Finding(
            "error",
            f"Not installed: {', '.join(facts.missing)}",
            f"In a clone, run `make lab`, which opens JupyterLab in its own environment. "
            f"Elsewhere: pip install {' '.join(facts.missing)}",
        )


def torch_cannot_be_imported(facts: Facts) -> Finding | None:
    if facts.torch_error:
        return Finding(
            "error",
            f"torch {facts.torch} is installed but fails to import ({facts.torch_error})",
            "Reinstall it: pip install --force-reinstall torch",
        )


def no_triton_for_this_platform(facts: Facts) -> Finding | None:
    if facts.system != "Linux" and not facts.triton:
        return Finding(
            "warning",
            f"There are no Triton wheels for {'macOS' if facts.system == 'Darwin' else facts.system}: "
            "the NumPy lessons run here, the Triton lessons do not",
            "Open the Triton lessons in Colab, or on Linux (on Windows, WSL 2 will do).",
        )


def triton_not_installed(facts: Facts) -> Finding | None:
    absent = [name for name in ("torch", "triton") if getattr(facts, name) is None]
    if facts.system == "Linux" and absent:
        return Finding(
            "warning",
            f"Not installed: {', '.join(absent)}. The NumPy lessons run here, the Triton lessons do not",
            "In a clone: make lab. Elsewhere: pip install torch triton",
        )


def imported_in_the_wrong_mode(facts: Facts) -> Finding | None:
    wanted = {"gpu": "compiled", "interpreter": "interpreted"}.get(facts.mode)
    if facts.triton_imported and wanted and facts.triton_imported != wanted:
        return Finding(
            "error",
            f"Triton was imported before course_lib, and its kernels are {facts.triton_imported}; "
            f"here they must be {wanted}",
            "Restart the kernel and run the notebook's first cell first. In a script, import "
            "course_lib.kernels (or call course_lib.runtime.choose()) before anything that imports triton.",
        )


def numpy_too_new_for_triton(facts: Facts) -> Finding | None:
    if not facts.numpy or not facts.triton:
        return None
    if (3, 4) <= _release(facts.triton) < (3, 7) and _release(facts.numpy) >= (2, 4):
        return Finding(
            # A GPU still has the tracer, which interprets kernels to count their memory accesses.
            "error" if facts.mode == "interpreter" else "warning",
            f"NumPy {facts.numpy} with Triton {facts.triton}: interpreted loops with a run-time bound fail "
            '("only 0-dimensional arrays can be converted")',
            "pip install 'numpy<2.4', or Triton 3.7 or newer with the torch that belongs to it",
        )


def torch_and_triton_mixed(facts: Facts) -> Finding | None:
    if not facts.torch or not facts.triton:
        return None
    belongs = TRITON_OF_TORCH.get(_release(facts.torch))
    if belongs and belongs != _release(facts.triton):
        return Finding(
            "warning",
            f"torch {facts.torch} belongs with Triton {_dotted(belongs)}, and Triton {facts.triton} is "
            "installed: the course's kernels run, torch.compile and FlexAttention may not",
            "In a clone, run `make lab`, which pins the pair. Elsewhere: pip install --force-reinstall torch "
            f"'triton=={_dotted(belongs)}.*'",
        )


def no_compiler(facts: Facts) -> Finding | None:
    if facts.mode == "gpu" and not facts.compiler:
        return Finding(
            "error",
            "No C compiler (gcc or clang): Triton builds a small launcher for each kernel and needs one",
            "Install one (apt-get install gcc), or set CC to its path. TRITON_INTERPRET=1 needs none.",
        )


def compiled_without_gpu(facts: Facts) -> Finding | None:
    if facts.mode == "gpu" and not facts.gpu:
        return Finding(
            "error",
            f"TRITON_INTERPRET={facts.triton_interpret} asks for compiled kernels, and torch sees no GPU",
            "Unset TRITON_INTERPRET, and kernels run in the interpreter.",
        )


def gpu_left_idle(facts: Facts) -> Finding | None:
    if facts.gpu and facts.capability >= OLDEST_CAPABILITY and facts.mode == "interpreter":
        return Finding(
            "warning",
            f"TRITON_INTERPRET={facts.triton_interpret} keeps kernels on the CPU, and {facts.gpu} is idle",
            "Unset TRITON_INTERPRET to use the GPU.",
        )


def gpu_unseen_by_torch(facts: Facts) -> Finding | None:
    if facts.nvidia_smi and facts.torch and not facts.torch_error and not facts.gpu:
        return Finding(
            "warning",
            f"nvidia-smi is installed, but torch {facts.torch} sees no GPU: kernels run on the CPU",
            "If nvidia-smi lists a GPU, install a build of torch for CUDA (one whose version does not end in "
            "+cpu) that the driver is new enough for.",
        )


def gpu_too_old(facts: Facts) -> Finding | None:
    if facts.capability and facts.capability < OLDEST_CAPABILITY:
        return Finding(
            "warning",
            f"{facts.gpu} has compute capability {_dotted(facts.capability)}; Triton needs "
            f"{_dotted(OLDEST_CAPABILITY)} or newer: kernels run on the CPU",
            "Use a newer GPU for timings; every lesson runs without one.",
        )


def gpu_without_fast_code(facts: Facts) -> Finding | None:
    if facts.capability and OLDEST_CAPABILITY <= facts.capability < TENSOR_CORE_CAPABILITY:
        return Finding(
            "warning",
            f"{facts.gpu} has compute capability {_dotted(facts.capability)}: for GPUs before "
            f"{_dotted(TENSOR_CORE_CAPABILITY)} Triton emits no tensor-core instructions. Kernels are right "
            "here, and far slower than the GPU could be",
            "The lessons need nothing. For timings, see the course's records, or use an A100 or newer.",
        )


RULES = (
    missing_requirements,
    torch_cannot_be_imported,
    no_triton_for_this_platform,
    triton_not_installed,
    imported_in_the_wrong_mode,
    numpy_too_new_for_triton,
    torch_and_triton_mixed,
    no_compiler,
    compiled_without_gpu,
    gpu_left_idle,
    gpu_unseen_by_torch,
    gpu_too_old,
    gpu_without_fast_code,
)


def _release(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def diagnose(facts: Facts) -> list[Finding]:
    """What the rules find, errors first."""
    findings = [finding for rule in RULES if (finding := rule(facts))]
    return sorted(findings, key=lambda finding: finding.level != "error")


@dataclass(frozen=True)
class Report:
    """What `doctor` says of a machine: printed or shown by a notebook as text, or as a dict for a program."""

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything that this platform can run does run: warnings do not count."""
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
            "kernels": kernels[facts.mode],
        }
        lines = [f"{name:11} {value}" for name, value in rows.items()]
        for finding in self.findings:
            lines += ["", f"{finding.level}: {finding.title}.", f"  fix: {finding.fix}"]
        if not self.findings:
            lines += ["", "Nothing is in the way."]
        return "\n".join(lines)


def doctor() -> Report:
    """Look at this machine and process, and say what is in the way of the course."""
    facts = gather()
    return Report(facts, tuple(diagnose(facts)))
