"""Builds the notebooks from their text twins: `python -m tools.authoring stamp`, `glossary` and `build`.

A maintainer edits `notebooks/source/NN_name.md` (MyST, read by jupytext). `stamp` writes into it what is the
same in every lesson, and `build` executes it into `notebooks/NN_name.ipynb`. The same text gives the same
notebook, byte for byte: the id of a cell comes from its content, and nothing that changes from run to run is kept.
This module works in a clone only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from courseware import SYMBOLS, TERMS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCE = NOTEBOOKS / "source"

# Without the version of Python, which nothing reads and which differs between the machines that build.
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TEXT_METADATA = {
    "jupytext": {
        "text_representation": {"extension": ".md", "format_name": "myst"},
        "notebook_metadata_filter": "-jupytext.text_representation.jupytext_version",
    },
    "kernelspec": NOTEBOOK_METADATA["kernelspec"],
}

# Folded, in JupyterLab and in Colab.
BOOTSTRAP_METADATA = {"tags": ["bootstrap"], "jupyter": {"source_hidden": True}, "cellView": "form"}

# A widget's id is random, and no second build reproduces it.
WIDGET = "application/vnd.jupyter.widget-view+json"

CELL_TIMEOUT_S = 120

# What the README says once the course is published; the site's first page leaves out the first line.
PUBLISHED = """\
**[Read it in the browser]({pages})**: its explorers move there, too.
In Colab there is nothing to install either: open a lesson and follow its badge. For a clone of the
[repository]({repository}), `git clone {repository}`.
"""

GLOSSARY_PAGE = """\
# Glossary

One word for one thing, in every lesson and in the library. The last column is the lesson that introduces
it. `make stamp` writes this page from `courseware/glossary.toml`: edit that file, not this page.

## Terms

| term | meaning | lesson |
|---|---|---|
{terms}

## Symbols and names in code

| symbol | meaning | lesson |
|---|---|---|
{symbols}
"""


def repository() -> str | None:
    """Where the course is published, such as "https://github.com/someone/course". Only pyproject.toml states it.

    None until it is published: then no page has a link that leads nowhere.
    """
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {}).get("Repository")


def pages(repository: str) -> str:
    """Where GitHub publishes the pages of a repository."""
    owner, name = repository.split("/")[-2:]
    return f"https://{owner.lower()}.github.io/{name}/"


def bootstrap_source(repository: str | None) -> str:
    """The first code cell of every notebook: finds the course's packages, then picks GPU or CPU.

    repository: pip installs from this address after `git+`; https, or file:// in tests. In Colab, the repository from
    which the notebook was opened goes first, so that a fork installs itself. The cell needs nothing but Python, and
    leaves torch and triton as they are. Where it finds no course, it says in one sentence what to do: the method of
    Stop is what IPython shows in place of a traceback.
    """
    advice = f"run pip install git+{repository}, then this cell again"
    if not repository:
        advice = "open the notebook in a clone, or in Colab from its repository on GitHub"
    return textwrap.dedent(f"""\
        # @title Setup: finds the course in a folder above, or installs it in Colab
        import socket
        import subprocess
        import sys
        from contextlib import suppress
        from importlib.util import find_spec
        from pathlib import Path
        from urllib.parse import unquote
        from urllib.request import urlopen

        Stop = type("Stop", (Exception,), {{"_render_traceback_": lambda self: [str(self)]}})
        homes = [str(home) for home in Path.cwd().parents if (home / "courseware/__init__.py").is_file()]
        sys.path[:0] = homes[:1]
        if not find_spec("courseware") and find_spec("google") and find_spec("google.colab"):
            source = "{repository or ""}"
            with suppress(OSError, ValueError):  # Colab knows where this notebook is from, unless it is a copy.
                server = f"http://{{socket.gethostbyname(socket.gethostname())}}:9000/api/sessions"
                opened = unquote(urlopen(server, timeout=5).read().decode())
                source = "/".join(opened[opened.index("https://github.com/") :].split("/")[:5])
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", f"git+{{source}}"], capture_output=True)
        if not find_spec("courseware"):
            raise Stop("The course is not installed: {advice}.")
        from courseware import start

        start()""")


def badge(name: str, repository: str | None) -> str:
    """The line under the title: a link to the glossary, and once published one that opens notebook `name` in Colab.

    Colab opens the repository's main branch. The link to the glossary is relative, which works in JupyterLab, in
    working copies and on GitHub, but not in Colab.
    """
    if not repository:
        return "[Glossary](glossary.md)"
    colab = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({image})]({colab}/blob/main/notebooks/{name}.ipynb) [Glossary](glossary.md)"


def glossary() -> str:
    """The page notebooks/glossary.md: every term and symbol of `courseware.GLOSSARY`, with a link to its lesson."""
    lessons = {path.stem[:2]: path.stem for path in SOURCE.glob("[0-9]*.md")}

    def table(entries, form):
        for name, (lesson, meaning) in entries:
            link = f"[{lesson}]({lessons[lesson]}.ipynb)" if lesson else "kernels"
            yield f"| {form.format(name)} | {meaning} | {link} |"

    terms = table(sorted(TERMS.items(), key=lambda entry: entry[0].lower()), "{}")
    return GLOSSARY_PAGE.format(terms="\n".join(terms), symbols="\n".join(table(SYMBOLS.items(), "`{}`")))


def stamp(text: str, name: str, repository: str | None) -> str:
    """The twin `text` of notebook `name` with the badge, first code cell and header that every lesson has.

    A missing badge is inserted under the title, a missing code cell after the title's cell. Everything else keeps its
    meaning and takes the form in which jupytext writes it.
    """
    notebook = jupytext.reads(text, fmt="md:myst")

    title = notebook.cells[0]
    lines = [line for line in title.source.splitlines() if not line.endswith("[Glossary](glossary.md)")]
    body = "\n".join(lines[1:]).strip("\n")
    title.source = "\n\n".join(filter(None, [lines[0], badge(name, repository), body]))

    bootstrap = nbformat.v4.new_code_cell(bootstrap_source(repository), metadata=BOOTSTRAP_METADATA)
    others = [cell for cell in notebook.cells[1:] if "bootstrap" not in cell.metadata.get("tags", [])]
    notebook.cells = [title, bootstrap, *others]

    notebook.metadata = nbformat.from_dict(TEXT_METADATA)
    return jupytext.writes(notebook, fmt="md:myst")


def stamp_notebook(name: str) -> None:
    """Take over what `stamp` writes, the first two cells, from the twin into the notebook, which is not run again."""
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell, twin in zip(notebook.cells[:2], read_text(SOURCE / f"{name}.md").cells, strict=False):
        cell.update(source=twin.source, id=twin.id)
    write(notebook, path)


def stamp_readme(text: str, repository: str | None) -> str:
    """The README `text`, with what it says of the published course between PUBLISHED's marks: nothing until then."""
    said = PUBLISHED.format(pages=pages(repository), repository=repository) if repository else ""
    return re.sub(r"(?s)(<!-- published -->\n).*?(<!-- /published -->)", rf"\g<1>{said}\g<2>", text)


def publish_at(repository: str) -> None:
    """Write the address into pyproject.toml."""
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
        raise ValueError(
            f"repository is {repository!r}; it must be an address such as https://github.com/someone/course"
        )
    path = ROOT / "pyproject.toml"
    text = re.sub(r"(?m)^\[project\.urls\]\n(\w+ = .*\n)*\n", "", path.read_text("utf-8"))
    table = f'[project.urls]\nHomepage = "{pages(repository)}"\nRepository = "{repository}"\n\n'
    path.write_text(text.replace("[tool.hatch", f"{table}[tool.hatch", 1), "utf-8")


def notebook_metadata(notebook: NotebookNode) -> NotebookNode:
    """NOTEBOOK_METADATA, and as the title that a page made of the notebook has, its first heading."""
    heading, *_ = notebook.cells[0].source.splitlines()
    return nbformat.from_dict({**NOTEBOOK_METADATA, "title": heading.removeprefix("# ")})


def read_text(path: Path) -> NotebookNode:
    """The notebook that a twin describes, not executed.

    The id of a cell is made from its content, so that editing one cell leaves the ids of all others as they were.
    """
    notebook = jupytext.read(path, fmt="md:myst")
    notebook.metadata = notebook_metadata(notebook)
    seen = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def kernel_environment(scratch: Path, gpu: bool = False) -> dict[str, str]:
    """Environment variables for a kernel whose outputs are compared or committed.

    The kernel writes to `scratch`, the learner's progress and IPython's history included. Unless gpu is true, it sees
    no GPU, so that its outputs are those of a CPU on every machine.
    """
    fixed = {
        "COURSEWARE_PROGRESS": str(scratch / "progress.json"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    } | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | fixed


def execute(notebook: NotebookNode, cwd: Path, scratch: Path, gpu: bool = False) -> None:
    """Executes `notebook` in place, from top to bottom in a fresh kernel, and keeps only what reproduces.

    Raises RuntimeError if a cell raises, runs for more than CELL_TIMEOUT_S or kills the kernel. The message has the
    cell's number (from 0, markdown cells included), its source and the traceback.
    """
    started = [None]
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
        resources={"metadata": {"path": str(cwd)}},
    )
    try:
        client.execute(env=kernel_environment(scratch, gpu))
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise RuntimeError(f"cell {started[-1]}: {error}") from None

    notebook.metadata = notebook_metadata(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = without_widgets(merge_streams(cell.outputs))


def without_widgets(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """`outputs` without widgets: of one that brings HTML along for a page without a kernel, the HTML stays."""
    kept = [output for output in outputs if WIDGET not in output.get("data", {}) or "text/html" in output.data]
    for output in kept:
        output.get("data", {}).pop(WIDGET, None)
    return kept


def merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """`outputs` with adjacent pieces of one stream joined, because where they are cut depends on timing."""
    merged = []
    for output in outputs:
        stream = output.get("name")
        if stream and merged and merged[-1].get("name") == stream:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def build(name: str) -> None:
    """Executes the twin of notebook `name` and writes the notebook. Raises what `execute` raises."""
    notebook = read_text(SOURCE / f"{name}.md")
    with tempfile.TemporaryDirectory() as scratch:
        execute(notebook, cwd=NOTEBOOKS, scratch=Path(scratch))
    write(notebook, NOTEBOOKS / f"{name}.ipynb")


def write(notebook: NotebookNode, path: Path) -> None:
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.authoring", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    stamper = commands.add_parser("stamp", help="write the first code cell, and where the course is published")
    stamper.add_argument("--repository", help="publish it there from now on: https://github.com/someone/course")
    commands.add_parser("glossary", help="write notebooks/glossary.md from courseware/glossary.toml")
    builder = commands.add_parser("build", help="execute the text twins into notebooks")
    builder.add_argument("names", nargs="*", metavar="NAME", help="such as 05_online_softmax; all by default")
    arguments = parser.parse_args()

    if arguments.command == "stamp":
        if arguments.repository:
            try:
                publish_at(arguments.repository)
            except ValueError as error:
                parser.error(str(error))
        for path in SOURCE.glob("*.md"):
            path.write_text(stamp(path.read_text("utf-8"), path.stem, repository()), encoding="utf-8")
            if (NOTEBOOKS / f"{path.stem}.ipynb").exists():
                stamp_notebook(path.stem)
        readme = ROOT / "README.md"
        readme.write_text(stamp_readme(readme.read_text("utf-8"), repository()), encoding="utf-8")
        return
    if arguments.command == "glossary":
        (NOTEBOOKS / "glossary.md").write_text(glossary(), encoding="utf-8")
        return
    known = sorted(path.stem for path in SOURCE.glob("*.md"))
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such notebook: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in arguments.names or known:
        print(f"notebooks/{name}.ipynb", flush=True)
        try:
            build(name)
        except RuntimeError as error:
            sys.exit(f"notebooks/source/{name}.md, {error}")


if __name__ == "__main__":
    main()
