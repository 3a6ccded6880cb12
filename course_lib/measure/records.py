"""Recorded measurements, one JSON file each in data/: what was measured, with GPU, versions, date and command.

`bench` and its like write them; notebooks, explorers and exercises read them here, so that a figure that was measured
is never typed.
"""

import json
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
