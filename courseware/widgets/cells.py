"""The source of what a notebook's cells define."""

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable


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
    magic = re.match(r"\s*(%%\w+)", _newest_cell(name))
    return magic and magic[1]


def syntax_error(name: str) -> str | None:
    """What is to be said if the newest cell that defines `name` is no Python, so that the one before is still there."""
    try:
        ast.parse(getattr(shell(), "transform_cell", str)(_newest_cell(name)))
    except SyntaxError as error:
        where = f"a syntax error in line {error.lineno}"
        return f"the cell above has {where}, so Python still has the {name} from before. Mend it, then run both again."
    return None


def _newest_cell(name):
    cells = getattr(getattr(shell(), "history_manager", None), "input_hist_raw", [])
    defining = re.compile(rf"^(def {name}\b|{name} *=)", re.MULTILINE)
    return next(filter(defining.search, reversed(cells)), "")


def shell():
    """IPython's shell; None outside a notebook."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def explain_unknown_names(explain: Callable[[], None]) -> None:
    """From now on, call explain() below each NameError of a notebook's cell: after a restart, all names are gone."""

    def handle(here, kind, error, traceback, tb_offset=None):
        here.showtraceback((kind, error, traceback), tb_offset=tb_offset)
        if kind is NameError:
            explain()

    if here := shell():
        here.set_custom_exc((NameError,), handle)
