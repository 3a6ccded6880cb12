"""A prediction: asked, kept, compared; without a guess nothing but the result is said."""

import numpy as np
import pytest

from courseware import predict
from courseware.widgets import progress_file
from courseware.widgets.predict import _controls

OPTIONS = ["one", "two", "three"]


def choice():
    return predict("05.passes", "How many passes <p>?", OPTIONS)


def number():
    return predict("06.bytes", "How much?", number=True, unit="GiB")


def said(capsys, guess, *arguments):
    capsys.readouterr()
    guess.compare(*arguments)
    return capsys.readouterr().out.rstrip("\n")


def test_the_question_and_its_options_are_text(capsys):
    choice()
    number()
    asked = "Predict: How many passes <p>?\n  - one\n  - two\n  - three\nPredict: How much?\n  - A number (GiB).\n"
    assert capsys.readouterr().out == asked


def test_in_a_notebook_there_are_controls_and_a_page_without_them(shown):
    choice()
    (bundle,) = shown
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "How many passes &lt;p&gt;?" in bundle["text/html"] and "<li>three</li>" in bundle["text/html"]
    assert "<p>?" not in bundle["text/html"]


def test_without_a_guess_there_is_only_the_result(capsys, progress):
    assert said(capsys, choice(), "three") == "Result: three."
    assert said(capsys, number(), 32) == "Result: 32 GiB."
    assert not progress.exists()


def test_a_guess_stands_beside_the_result(capsys):
    choice().keep("two")
    # As after a restart: another question object, the same file.
    assert said(capsys, choice(), "three", "Because.") == "Your guess: two. Result: three. Because."
    assert said(capsys, choice(), "two") == "Your guess: two. That is right."


@pytest.mark.parametrize(
    "guess, result, expected",
    [(8.0, 32, "8 GiB. Result: 32 GiB, so the guess is too low by a factor of 4."),
     (40.0, 32.0, "40 GiB. Result: 32 GiB, so the guess is too high by a factor of 1.25."),
     (-1.0, 32, "-1 GiB. Result: 32 GiB."),
     (0.0, 2.5, "0 GiB. Result: 2.5 GiB."),
     (1.5530, 1.5530000001, "1.553 GiB. That is right."),
     (2048.0, np.float16(2048), "2,048 GiB. That is right."),
     (1e6, 1234567.8, "1,000,000 GiB. Result: 1,234,568 GiB, so the guess is too low by a factor of 1.23.")],
)  # fmt: skip
def test_a_number_is_compared_by_its_factor(capsys, guess, result, expected):
    number().keep(guess)
    assert said(capsys, number(), result) == f"Your guess: {expected}"


def controls(guess):
    return _controls(guess, "?").children


def test_the_controls_keep_the_guess():
    _, field, note = controls(choice())
    assert field.value is None
    field.value = "one"
    assert choice().value == "one" and note.value == "Your guess is kept."
    assert controls(choice())[1].value == "one"

    _, row, note = controls(number())
    row.children[0].value = "many"
    assert number().value is None and note.value == "That is not a number."
    row.children[0].value = "1,024.5"
    assert number().value == 1024.5
    assert controls(number())[1].children[0].value == "1024.5"


def test_a_guess_at_an_older_question_is_not_shown_and_one_that_cannot_be_kept_is_said(monkeypatch, tmp_path):
    progress_file.keep("guesses", "05.passes", "four")
    progress_file.keep("guesses", "06.bytes", "four")
    assert choice().value is None and number().value is None
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "missing" / "progress.json"))
    _, field, note = controls(choice())
    field.value = "one"
    assert "could not be kept" in note.value


def test_what_cannot_be_answered_is_refused():
    for arguments, named in (((), {}), ((OPTIONS,), {"number": True})):
        with pytest.raises(ValueError, match="either options or number"):
            predict("05.passes", "?", *arguments, **named)
    with pytest.raises(ValueError, match="'four' is none of the options"):
        choice().compare("four")
