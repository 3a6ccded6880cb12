"""Recorded measurements, one JSON file each in data/: what was measured, with GPU, versions, date and command.

`python -m courseware bench` writes them. Notebooks, explorers and exercises read them here, so that nobody has to type
a measured figure.
"""

import datetime
import json
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data"


def record(name):
    """The record data/NAME.json, or None if there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def rows(name, **wanted):
    """The rows of record NAME whose keys have the values of `wanted`; none if there is no such record."""
    found = record(name)
    every = found["rows"] if found else []
    return [row for row in every if all(row.get(key) == value for key, value in wanted.items())]


def provenance(name):
    """GPU, versions and date of record NAME, in one line for a caption."""
    found = record(name)
    if found is None:
        return f"no record {name} is here"
    return f"{found['gpu']}, torch {found['torch']}, triton {found['triton']}, {found['date']}"


def in_words(measured, separator="; "):
    """A row, or another dictionary of what was measured, in one line for the terminal."""
    if isinstance(measured, dict):
        return separator.join(f"{name} {in_words(value, ', ')}" for name, value in measured.items())
    return f"{measured:.4g}" if isinstance(measured, float) else str(measured)


def write(path, measured, *, command, commit=None):
    """Write the dictionary `measured` as a record, with the GPU and the versions of this machine.

    commit: what was measured, where git cannot say.
    """
    with open(path, "w") as file:
        json.dump({**_origin(command, commit), **measured}, file, indent=1)
        file.write("\n")


def _origin(command, commit):
    import torch
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "date": datetime.date.today().isoformat(),
        "commit": commit or head(),
        "command": command,
    }


def head():
    """The commit that git has checked out here, or None."""
    return _output_of("git", "rev-parse", "HEAD")


def _output_of(*command):
    """What a command prints; None if it prints nothing or is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except FileNotFoundError:
        return None
