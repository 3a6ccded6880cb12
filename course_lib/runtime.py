"""Decides where kernels run, on a GPU or in an interpreter, and gathers the facts on which that depends.

Triton reads TRITON_INTERPRET from the environment whenever `@triton.jit` defines a function, including those of its
own library. So the decision must be made before Triton is imported: `course_lib.kernels` calls `choose`, and so does a
notebook's first cell. A process stays in one mode.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

# The unpinned requirements in pyproject.toml, by the names under which they are imported.
REQUIRED_MODULES = ("numpy", "matplotlib", "ipywidgets", "hypothesis")

OLDEST_CAPABILITY = (7, 5)
TENSOR_CORE_CAPABILITY = (8, 0)
# How Triton must have been imported for kernels to run in a mode.
WANTED = {"gpu": "compiled", "interpreter": "interpreted"}

# What pip says where `make lab` installs torch and Triton behind JupyterLab. It is locked as long as pip runs.
INSTALL_LOG = Path(sys.prefix) / "install-triton.log"

# What stands in for "gluon" and "cuda" where there is no GPU, and makes "triton"'s own interpreter faster: the name of
# a module. Whoever has emulators enters them here; importing `courseware` does.
emulators: dict[str, str] = {}


def choose() -> str:
    """Decide where kernels run, and prepare the environment for it: "gpu", "interpreter" or "numpy".

    "gpu": compiled, because torch sees a GPU of compute capability 7.5 or newer. "interpreter": on the CPU;
    TRITON_INTERPRET=1 is now set. "numpy": Triton or torch is not installed, and there is nothing to prepare.
    If TRITON_INTERPRET is already set, it decides: 1 interprets even where there is a GPU, and 0 compiles even where
    there is none. The tests use 0 to read shared memory and registers on a CPU; no kernel can be launched then.

    Raises RuntimeError, with the fix, if Triton has already been imported in the other mode.
    """
    if _version("triton") is None or installing():
        return "numpy"  # and torch, which takes a second to import, is not asked for a GPU
    facts = gather()
    if facts.wrong_mode:
        raise RuntimeError("{}. {}".format(*facts.wrong_mode))
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


def emulator(name: str):
    """The module that `emulators` names. Raises RuntimeError if there is none."""
    if name not in emulators:
        raise RuntimeError(f"without a GPU, {name} kernels need an emulator: import courseware first")
    return importlib.import_module(emulators[name])


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


def start():
    """What the first cell of a lesson calls whose copy is older than the package courseware."""
    raise RuntimeError(
        "This copy of the lesson is of the time when the checks were part of course_lib; they are in courseware now. "
        "Your answers are safe: run `make lab` once, which says how to put the new version beside this copy (`fresh`), "
        'and there restore("05.merge_states") brings back an answer that has passed.'
    )


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
    installing: str | None  # see `installing`

    @property
    def mode(self) -> str:
        """Where kernels run on this machine; see `choose`."""
        if not self.triton or not self.torch or self.torch_error or self.installing:
            return "numpy"
        if self.triton_interpret:
            # The same words that Triton takes for true.
            interpreted = self.triton_interpret.lower() in ("1", "true", "on", "yes", "y")
        else:
            interpreted = self.capability is None or self.capability < OLDEST_CAPABILITY
        return "interpreter" if interpreted else "gpu"

    @property
    def wrong_mode(self) -> tuple[str, str] | None:
        """What is wrong, and how to fix it, if this process has imported Triton in another mode than kernels need."""
        wanted = WANTED.get(self.mode)
        if not (self.triton_imported and wanted) or self.triton_imported == wanted:
            return None
        return (
            f"Triton was imported before course_lib, and its kernels are {self.triton_imported}; here they must be "
            f"{wanted}",
            "Restart the kernel and run the notebook's first cell first. In a script, import course_lib.kernels (or "
            "call course_lib.runtime.choose()) before anything that imports triton.",
        )


def gather() -> Facts:
    """The facts of this machine and process. Imports torch, unless it is in pieces, to ask for a GPU; never Triton."""
    torch_error = gpu = capability = None
    under_way = installing()
    if not under_way and importlib.util.find_spec("torch"):
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
        installing=under_way,
    )


def installing() -> str | None:
    """How far the installation of torch and Triton behind JupyterLab has come; None if it is over, or not needed."""
    try:
        with open(INSTALL_LOG, encoding="utf-8") as log:
            import fcntl  # which only systems have that may have the log

            lines = log.read().splitlines()
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # pip still writes
    except OSError:
        return None
    else:
        return None if _version("triton") else f"stopped ({(lines or ['at once'])[-1]}); `make lab` goes on with it"
    found = re.findall(r"(?:Downloading|Using cached) (\S+-\d\S*?)-\S+\.whl \(([\d.]+) ([kMG])B\)", "\n".join(lines))
    sizes_mb = [float(size) * {"k": 1e-3, "M": 1, "G": 1e3}[unit] for _, size, unit in found]
    if any(line.startswith("Installing collected packages") for line in lines):
        return f"{sum(sizes_mb):,.0f} MB are here and are being unpacked"
    if not found:
        return "looking for packages"
    return f"{sum(sizes_mb[:-1]):,.0f} MB of about 2,500 are here; now {found[-1][0]}, {sizes_mb[-1]:,.0f} MB"


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
