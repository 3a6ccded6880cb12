"""Recorded measurements, one JSON file each in data/: what was measured, with GPU, versions, date and command.

records.toml lists them, with what writes each. Notebooks, explorers and exercises read them here, so that nobody has to
type a measured figure; and everything that records anything writes it here.
"""

import datetime
import json
import shlex
import subprocess
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data"
KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def record(name):
    """The record data/NAME.json, or None if it is not there. Raises ValueError for a name that records.toml lacks."""
    if name not in KINDS and not any(name == f"{kind}-{gpu}" for kind, of in KINDS.items() for gpu in of["gpus"]):
        raise ValueError(f"records.toml lists no record {name}")
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


def add_options(parser):
    """The options that `save` takes, of a command that measures."""
    parser.add_argument("--json", metavar="FILE", help="write the record here, in the form of courseware/data/")
    parser.add_argument("--commit", help="the commit measured, where the files come without their git history")


def save(options, program, words, measured):
    """Write the dictionary `measured` as a record, with this machine's GPU and versions, if --json asks for it.

    program, words: the command, `python -m program words`.
    """
    import torch
    import triton

    if options.json is None:
        return
    # The record names its file, not where one machine keeps it.
    words = [Path(word).name if word == options.json else word for word in words]
    origin = {
        "gpu": torch.cuda.get_device_name(),
        "driver": _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "date": today(),
        "commit": options.commit or head(),
        "command": shlex.join(["python", "-m", *program.split(), *words]),
    }
    write(options.json, origin | measured)


def write(path, contents):
    """Write a record, its rows in a line each. The file is replaced at once, so that it is never half written."""
    path = Path(path)
    text = json.dumps({key: value for key, value in contents.items() if key != "rows"}, indent=1)
    if "rows" in contents:
        lines = ",\n".join(f"  {json.dumps(row)}" for row in contents["rows"])
        text = f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}'
    scratch = path.with_suffix(".tmp")
    scratch.write_text(f"{text}\n", encoding="utf-8")
    scratch.replace(path)


def today():
    return datetime.date.today().isoformat()


def head():
    """The commit that git has checked out here, or None."""
    return _output_of("git", "rev-parse", "HEAD")


def _output_of(*command):
    """What a command prints; None if it prints nothing or is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except FileNotFoundError:
        return None
