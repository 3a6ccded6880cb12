"""The builder of notebooks: the same text gives the same notebook, and a broken cell stops the build."""

import runpy
import shutil
import sys

import nbformat
import pytest

from tools import authoring

URL = "https://github.com/someone/some-course"

TEXT = """\
---
kernelspec:
  name: python3
  display_name: Python 3
---

# Tiny

One line.

```{code-cell}
for number in range(3):
    print(number, flush=True)
```

```{code-cell}
:tags: [explorer, nbval-ignore-output]

import ipywidgets

ipywidgets.IntSlider()
```

```{code-cell}
:tags: [exercise]
:exercise: 00.softmax_scale

hash("differs unless PYTHONHASHSEED is set")
```

```{code-cell}
import matplotlib.pyplot as plt

_ = plt.plot([1, 2])
```
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course: `course("01_tiny", text)` gives it a text."""
    monkeypatch.setattr(authoring, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(authoring, "SOURCE", tmp_path / "notebooks" / "source")
    authoring.SOURCE.mkdir(parents=True)
    return lambda name, text: (authoring.SOURCE / f"{name}.md").write_text(text, encoding="utf-8")


def ids(course, text):
    course("01_tiny", text)
    return [cell.id for cell in authoring.read_text(authoring.SOURCE / "01_tiny.md").cells]


def test_a_second_build_changes_nothing(course):
    course("01_tiny", TEXT)
    path = authoring.NOTEBOOKS / "01_tiny.ipynb"
    authoring.build("01_tiny")
    first = path.read_bytes()
    authoring.build("01_tiny")
    assert path.read_bytes() == first
    assert sorted(authoring.NOTEBOOKS.iterdir()) == [path, authoring.SOURCE]

    notebook = nbformat.reads(first.decode(), as_version=4)
    nbformat.validate(notebook)
    printed, explorer, exercise, figure = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert [output.text for output in printed.outputs] == ["0\n1\n2\n"]
    assert explorer.outputs == [] and explorer.execution_count == 2
    assert exercise.metadata == {"tags": ["exercise"], "exercise": "00.softmax_scale"}
    assert "image/png" in figure.outputs[0].data
    assert notebook.metadata == authoring.NOTEBOOK_METADATA | {"title": "Tiny"}


def test_only_neighbouring_pieces_of_one_stream_are_joined():
    def piece(name, text):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"text/plain": "<Figure>"})
    rest = [figure, figure, piece("stdout", "c"), piece("stderr", "d")]
    joined = authoring.merge_streams([piece("stdout", "a"), piece("stdout", "b"), *rest])
    assert joined == [piece("stdout", "ab"), *rest]


def test_editing_one_cell_keeps_the_other_ids_and_equal_cells_have_different_ones(course):
    before = ids(course, TEXT)
    after = ids(course, TEXT.replace("range(3)", "range(4)"))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True, True]
    inserted = ids(course, TEXT.replace("One line.", "One line.\n\n```{code-cell}\n1\n```"))
    assert inserted == [before[0], inserted[1], *before[1:]]
    twins = ids(course, TEXT + "\n```{code-cell}\n1\n```\n\n```{code-cell}\n1\n```\n")
    assert len(set(twins)) == len(twins)


@pytest.mark.parametrize(
    "code, said", [("import os; os._exit(1)", "Kernel died"), ("import time; time.sleep(60)", "timed out")]
)
def test_a_broken_cell_stops_the_build(course, monkeypatch, code, said):
    monkeypatch.setattr(authoring, "CELL_TIMEOUT_S", 5)
    course("01_tiny", f"# Tiny\n\n```{{code-cell}}\n1 + 1\n```\n\nText.\n\n```{{code-cell}}\n{code}\n```\n")
    with pytest.raises(RuntimeError, match=f"(?s)cell 3: .*{said}"):
        authoring.build("01_tiny")
    assert not (authoring.NOTEBOOKS / "01_tiny.ipynb").exists()


def test_the_command_names_a_broken_notebook_and_refuses_an_unknown_one(course, monkeypatch, capsys):
    course("01_tiny", "# Tiny\n\n```{code-cell}\n1 / 0\n```\n")
    monkeypatch.setattr(sys, "argv", ["authoring", "build", "01_tiny"])
    with pytest.raises(SystemExit, match="(?s)01_tiny.md, cell 1: .*1 / 0.*ZeroDivisionError"):
        authoring.main()
    monkeypatch.setattr(sys, "argv", ["authoring", "build", "02_tiny"])
    with pytest.raises(SystemExit):
        authoring.main()
    assert "no such notebook: 02_tiny; there are 01_tiny" in capsys.readouterr().err


def test_stamp_adds_badge_and_first_cell_and_keeps_the_rest(course):
    course("01_tiny", TEXT)
    before = authoring.read_text(authoring.SOURCE / "01_tiny.md").cells
    stamped = authoring.stamp(TEXT, "01_tiny", URL)
    course("01_tiny", stamped)
    title, bootstrap, *rest = authoring.read_text(authoring.SOURCE / "01_tiny.md").cells
    address = "https://colab.research.google.com/github/someone/some-course/blob/main/notebooks/01_tiny.ipynb"
    assert title.source == f"# Tiny\n\n{authoring.badge('01_tiny', URL)}\n\nOne line." and f"]({address})" in stamped
    assert (bootstrap.source, bootstrap.metadata) == (authoring.bootstrap_source(URL), authoring.BOOTSTRAP_METADATA)
    assert [(c.source, c.metadata) for c in rest] == [(c.source, c.metadata) for c in before[1:]]
    elsewhere = authoring.stamp(TEXT, "01_tiny", "https://github.com/old/old")
    assert authoring.stamp(elsewhere, "01_tiny", URL) == authoring.stamp(stamped, "01_tiny", URL) == stamped


def test_until_it_is_published_no_page_has_a_link_that_leads_nowhere(course):
    stamped, published = (authoring.stamp(TEXT, "01_tiny", address) for address in (None, URL))
    assert "](http" not in stamped and "git+{source}" in stamped and "open the notebook in a clone, or in" in stamped
    assert authoring.stamp(published, "01_tiny", None) == stamped
    readme = (authoring.ROOT / "README.md").read_text("utf-8")
    assert authoring.stamp_readme(readme, authoring.repository()) == readme, "run `make stamp`"
    assert ".github.io" in authoring.stamp_readme(readme, URL)
    assert ".github.io" not in authoring.stamp_readme(readme, None)


def test_the_sites_first_page_says_where_the_notebooks_are():
    adapt = runpy.run_path(str(authoring.ROOT / "site/conf.py"))["adapt"]
    readme = (authoring.ROOT / "README.md").read_text("utf-8")
    for address in (URL, None):
        adapt(None, "README", source := [authoring.stamp_readme(readme, address)])
        assert (f"`git clone {URL}`" in source[0]) == bool(address)
        assert "Read it in the browser" not in source[0] and "<!-- /published -->\n" in source[0]


def test_the_address_reaches_every_page_without_a_build(course, tmp_path, monkeypatch):
    """As the workflow does it, for somebody else's repository, and then for another."""
    shutil.copy(authoring.ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(authoring, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("<!-- published -->\n<!-- /published -->\n")
    course("01_tiny", authoring.stamp(TEXT, "01_tiny", None))
    authoring.write(authoring.read_text(authoring.SOURCE / "01_tiny.md"), authoring.NOTEBOOKS / "01_tiny.ipynb")
    before = nbformat.read(authoring.NOTEBOOKS / "01_tiny.ipynb", as_version=4)
    for address in ("https://github.com/Some-one/course.x", URL):
        monkeypatch.setattr(sys, "argv", ["authoring", "stamp", "--repository", address])
        authoring.main()
        assert authoring.repository() == address
        texts = [path.read_text("utf-8") for path in tmp_path.rglob("*.*") if path.is_file()]
        assert len(texts) == 4 and all(address.split("/")[-1] in text for text in texts)
    notebook = nbformat.read(authoring.NOTEBOOKS / "01_tiny.ipynb", as_version=4)
    assert not any("course.x" in text or "Some-one" in text for text in texts)
    assert f"[Read it in the browser]({authoring.pages(URL)})" in (tmp_path / "README.md").read_text("utf-8")
    assert notebook.cells[2:] == before.cells[2:]
    assert [c.id for c in notebook.cells] == [c.id for c in authoring.read_text(authoring.SOURCE / "01_tiny.md").cells]
    monkeypatch.setattr(sys, "argv", ["authoring", "stamp", "--repository", "someone/course"])
    with pytest.raises(SystemExit):
        authoring.main()


def test_in_a_notebook_the_first_cell_s_failure_is_one_sentence():
    *_, stop = [line for line in authoring.bootstrap_source(URL).splitlines() if line.startswith("Stop = ")]
    exec(stop, namespace := {})
    assert namespace["Stop"]("one sentence.")._render_traceback_() == ["one sentence."]  # which IPython calls
