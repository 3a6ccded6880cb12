"""The glossary: its entries stand in the library, the page is written from them, and the lessons use the words."""

import re

import courseware
from tools import authoring

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


def test_every_term_is_used_by_the_lesson_that_introduces_it():
    texts = {number: text_of(number) for number in LESSONS}
    unused = [
        f"{name!r} is not in lesson {lesson}"
        for name, (lesson, _) in courseware.GLOSSARY.items()
        if lesson and not uses(texts[lesson], name)
    ]
    assert unused == []


def test_entries_fit_into_rows_of_tables_and_no_name_is_both_a_symbol_and_a_term():
    for name, (_, meaning) in courseware.GLOSSARY.items():
        assert "|" not in name + meaning and "\n" not in meaning, name
    assert not set(courseware.SYMBOLS) & set(courseware.TERMS)


def test_what_counts_as_a_use():
    assert uses("Tiles, and a tile.", "tile") and uses("what is rescaled", "rescale") and uses("B_r rows", "B_r")
    assert not uses("textile tiling", "tile") and not uses("ml", "l") and not uses("B_rows", "B_r")
