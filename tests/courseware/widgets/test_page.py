"""What all components share: one content, as text and as HTML, in the course's colours."""

import pytest

from courseware.widgets import page


def test_the_colours_are_those_of_the_figures():
    from courseware.explorers import figures

    expected = {"quiet": figures.GREY, "passed": figures.GREEN, "failed": figures.VERMILLION, "guess": figures.BLUE}
    assert page.EDGES == expected


def test_outside_a_notebook_the_text_is_printed(capsys, monkeypatch):
    page.show("text", "<p>page</p>", widget=lambda: pytest.fail("a widget without a front end"))
    assert capsys.readouterr().out == "text\n"


def test_a_notebook_gets_both(shown):
    page.show("text", page.boxed("<p>page</p>", "failed"))
    (bundle,) = shown
    assert bundle["text/plain"] == "text" and bundle["text/html"].endswith(
        '<div class="course failed"><p>page</p></div>'
    )
    assert "<script" not in bundle["text/html"]
