"""The course as pages: `make site`.

Sphinx reads the README, docs/ and the notebooks as they are committed, and executes nothing. What a page has that its
source has not is said in `adapt`. A reader's browser asks no other server for anything.
"""

import ast
import json
import re
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = html_title = "FlashAttention from First Principles"
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", "notebooks/*"]
# Only to spare Sphinx the walk through .venv and .git.
exclude_patterns = [".*"]

extensions = ["myst_nb"]
nb_execution_mode = "off"
nb_merge_streams = True
# A widget would need a kernel, and scripts from elsewhere.
nb_mime_priority_overrides = [("*", "application/vnd.jupyter.widget-view+json", None)]
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath", "html_image"]

html_theme = "furo"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
mathjax = Path(find_spec("sphinx-mathjax-offline").submodule_search_locations[0], "static/mathjax/tex-svg.js")
mathjax_path = mathjax.name
html_static_path = [str(mathjax), "course.css", "course.js"]
html_css_files = ["course.css"]
html_js_files = [("course.js", {"defer": "defer"})]

NAVIGATION = """
```{toctree}
:hidden:
:glob:
:caption: "Part I: the mathematics"

notebooks/0[0-5]_*
```

```{toctree}
:hidden:
:glob:
:caption: "Part II: the machine"

notebooks/0[6-9]_*
notebooks/1[01]_*
```

```{toctree}
:hidden:
:glob:
:caption: "Part III: beyond"

notebooks/1[2-9]_*
```

```{toctree}
:hidden:
:caption: Beside the lessons

notebooks/glossary
notebooks/block_size_explorer
docs/from_other_libraries
docs/tested
docs/instructors
docs/maintainers
```
"""


def adapt(app, docname, source):
    """Change what Sphinx read of a document, in place."""
    if docname == root_doc:
        # Its reader has found the site already, but not yet the notebooks.
        source[0] = re.sub(r"(<!-- published -->\n)\*\*.*\n", r"\1", source[0]) + NAVIGATION
    elif docname.startswith("notebooks/") and source[0].startswith("{"):
        notebook = json.loads(source[0])
        imports = " ".join(re.findall(r"from courseware\.explorers import (.*)", source[0]))
        modules = {alias: module for module, alias in re.findall(r"(\w+) as (\w+)", imports)}
        for cell in notebook["cells"]:
            adapt_cell(cell, modules)
        notebook["cells"] = list(with_folds(notebook["cells"]))
        source[0] = json.dumps(notebook)


def adapt_cell(cell, modules):
    """The badge as text, the first code cell folded, and a moving explorer for the picture of one.

    modules: alias -> the module of courseware.explorers that the notebook calls so.
    """
    text = "".join(cell["source"])
    cell["source"] = re.sub(r"!\[(Open in Colab)\]\([^)]*\)", r"\1", text)
    tags = cell["metadata"].setdefault("tags", [])
    if "bootstrap" in tags:
        tags.append("hide-cell")
    if "explorer" in tags:
        module, _, call = text.splitlines()[-1].partition(".")
        module, function = modules.get(module, module), call.removesuffix("()")
        explorer = getattr(import_module(f"courseware.explorers.{module}"), function)()
        html = explorer.static_html(function.removeprefix("explore").strip("_") or module)
        cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": html}, "metadata": {}}]


def with_folds(cells):
    """The cells, and below each check the hints and the answer, which here no call can show."""
    exercise = None
    for cell in cells:
        yield cell
        exercise = cell["metadata"].get("exercise", exercise)
        if exercise and "check" in cell["metadata"].get("tags", ()):
            number, name = exercise.split(".")
            path = ROOT / f"courseware/exercises/lesson_{number}/{name}.py"
            _, *parts = re.split("(?m)^## ", path.with_suffix(".md").read_text("utf-8").partition("## Misc")[0])
            *hints, reasoning = [part.partition("\n")[::2] for part in parts]
            solution = "Solution", f"```python\n{answer(path, name)}\n```\n\n{reasoning[1]}"
            folds = [f"<details><summary>{title}</summary>\n\n{text}\n</details>" for title, text in [*hints, solution]]
            yield {"cell_type": "markdown", "id": f"folds-{name}", "metadata": {}, "source": "\n\n".join(folds)}
            exercise = None


def answer(path, name):
    """The source of an exercise's answer, without its docstring, which stands in the exercise already.

    It is a function of the file, or of a module that the file imports; of a kernel, `name = plain(module.name)` is what
    stands there. Nothing is imported, because kernels need torch and Triton.
    """
    text = path.read_text("utf-8")
    tree, imported = ast.parse(text), {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            (first, *_), lines = node.body, text.splitlines()
            told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            begin, end = (first.lineno - 1, first.end_lineno) if told else (node.lineno, node.lineno)
            return "\n".join(lines[node.lineno - 1 : begin] + lines[end : node.end_lineno])
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            (kernel,) = node.value.args
            imported[name] = f"{imported[kernel.value.id]}.{kernel.attr}"
    module, _, name = imported[name].rpartition(".")
    return answer(ROOT / f"{module.replace('.', '/')}.py", name)


def add_index(app, error):
    """The first page under the name that a web server looks for."""
    if not error:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app):
    app.connect("source-read", adapt)
    app.connect("build-finished", add_index)
