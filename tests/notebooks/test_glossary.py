"""The glossary: one home in the library, one page, and lessons that link to it and use its words."""

import re

import nbformat
import pytest

import course_lib
from course_lib import authoring

LESSONS = {path.stem[:2]: path.stem for path in authoring.SOURCE.glob("[0-9]*.md")}


def uses(text, name):
    """Whether `name` stands in `text` as a word of its own, with or without an ending."""
    ending = "" if len(name) <= 2 else r"(s|ed|es|d)?"
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}{ending}(?![A-Za-z0-9_])", text, re.IGNORECASE) is not None


def text_of(number):
    """A lesson's words, formulas and code, with the formulas' l as the library writes it."""
    notebook = authoring.read_text(authoring.SOURCE / f"{LESSONS[number]}.md")
    text = " ".join(cell.source for cell in notebook.cells if "bootstrap" not in cell.metadata.get("tags", []))
    return re.sub(r"\s+", " ", text.replace(r"\ell", "l").replace("*", "").replace("$", " "))


def test_the_page_is_what_the_library_says():
    page = (authoring.NOTEBOOKS / "glossary.md").read_text(encoding="utf-8")
    assert page == authoring.glossary(), "run `make stamp`"


@pytest.mark.parametrize("name", sorted(path.stem for path in authoring.NOTEBOOKS.glob("*.ipynb")))
def test_every_notebook_links_to_it_under_the_title(name):
    title = nbformat.read(authoring.NOTEBOOKS / f"{name}.ipynb", as_version=4).cells[0]
    assert "(glossary.md)" in title.source


@pytest.mark.parametrize("name", course_lib.GLOSSARY)
def test_every_term_is_used_by_the_lesson_that_introduces_it(name):
    lesson, meaning = course_lib.GLOSSARY[name]
    assert "|" not in name + meaning and "\n" not in meaning, "the page is a table"
    if lesson:
        assert uses(text_of(lesson), name), f"{name!r} is not in lesson {lesson}"


def test_no_name_is_symbol_and_term():
    assert not set(course_lib.SYMBOLS) & set(course_lib.TERMS)


def test_what_counts_as_a_use():
    assert uses("Tiles, and a tile.", "tile") and uses("what is rescaled", "rescale") and uses("B_r rows", "B_r")
    assert not uses("textile tiling", "tile") and not uses("ml", "l") and not uses("B_rows", "B_r")
