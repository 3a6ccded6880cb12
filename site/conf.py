"""The course as pages: `make site`.

Sphinx reads the README, docs/ and the notebooks as they are committed, and executes nothing. What a page has that its
source has not is said in `adapt`. A reader's browser asks no other server for anything.
"""

import json
import re
import shutil
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]

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
# Links of the README into the site itself, which is also where other sites' links to it lead.
myst_url_schemes = {"https": None, "site": "{{path}}#{{fragment}}"}

html_theme = "furo"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
mathjax = Path(find_spec("sphinx-mathjax-offline").submodule_search_locations[0], "static/mathjax/tex-svg.js")
mathjax_path = mathjax.name
html_static_path = [str(mathjax), "course.css"]
html_css_files = ["course.css"]

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
notebooks/1*
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
        text = source[0].replace(f"[site]: {HOME}/\n", "[site]: site:notebooks/00_start_here.html\n")
        source[0] = text.replace(f"{HOME}/", "site:") + NAVIGATION
    elif docname.startswith("notebooks/") and source[0].startswith("{"):
        notebook = json.loads(source[0])
        imports = " ".join(re.findall(r"from courseware\.explorers import (.*)", source[0]))
        modules = {alias: module for module, alias in re.findall(r"(\w+) as (\w+)", imports)}
        for cell in notebook["cells"]:
            adapt_cell(cell, modules)
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
        html = getattr(import_module(f"courseware.explorers.{module}"), function)().static_html()
        html = f'<div id="{function.removeprefix("explore").strip("_") or module}">{html}</div>'
        cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": html}, "metadata": {}}]


def add_index(app, error):
    """The first page under the name that a web server looks for."""
    if not error:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app):
    app.connect("source-read", adapt)
    app.connect("build-finished", add_index)
