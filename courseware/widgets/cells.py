"""The source of what a notebook's cells define."""

import inspect
import os
import re
import sys


def source_of(function) -> str | None:
    """The cell that defines it, helpers and all; of a function from a file, the function alone. None: not known."""
    try:
        function = inspect.unwrap(function)
        lines, _ = inspect.findsource(function)
        return inspect.getsource(function) if os.path.exists(inspect.getfile(function)) else "".join(lines)
    except (OSError, TypeError, ValueError):
        return None


def missing_source(name: str) -> str:
    """What is to be said where the source of the function `name` is not known."""
    if magic := cell_magic(name):
        lost = "Python may lose what such a cell defines, or its source, and class would not run it"
        return f"its cell begins with {magic}. {lost}. Run the cell without {magic}."
    return "Python does not know the answer's source, which `restore` and Triton need. Define it with def in a cell."


def cell_magic(name: str) -> str | None:
    """ "%%time" if the newest cell that defines `name` begins with it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    for cell in reversed(getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])):
        if re.search(rf"^(def {name}\b|{name} *=)", cell, re.MULTILINE):
            magic = re.match(r"\s*(%%\w+)", cell)
            return magic and magic[1]
    return None
