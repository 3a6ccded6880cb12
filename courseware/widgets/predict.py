"""A question before a result: the reader's guess is kept, and later stands beside what came out."""

from collections.abc import Sequence
from numbers import Real

from . import progress_file
from .page import boxed, escape, show


def predict(question_id: str, question: str, options: Sequence[str] = (), *, number: bool = False, unit: str = ""):
    """Ask for one of the options, or for a number in `unit`, and return the guess.

    question_id: lesson and name, as in "05.passes"; under it the guess is kept in the progress file. The notebook runs
    without a guess, too. `compare` of what is returned shows the guess beside the result.
    """
    if number == bool(options):
        raise ValueError("a prediction needs either options or number=True")
    guess = Guess(question_id, tuple(options), unit)
    answers = [*options] or [f"A number{f' ({unit})' if unit else ''}."]
    text = "\n".join([f"Predict: {question}", *(f"  - {answer}" for answer in answers)])
    items = "".join(f"<li>{escape(answer)}</li>" for answer in answers)
    content = boxed(f"<p><b>Predict.</b> {escape(question)}</p><ul>{items}</ul>", "guess")
    show(text, content, lambda: _controls(guess, question))
    return guess


class Guess:
    """What the reader expects: one of the options, or a number; None as long as there is no guess."""

    def __init__(self, question_id: str, options: tuple[str, ...], unit: str):
        self.question_id, self.options, self.unit = question_id, options, unit

    @property
    def value(self):
        try:
            kept = progress_file.load("guesses").get(self.question_id)
        except OSError:
            return None
        # The question may have changed since.
        fits = kept in self.options if self.options else isinstance(kept, Real)
        return kept if fits else None

    def keep(self, value) -> None:
        progress_file.keep("guesses", self.question_id, value)

    def compare(self, result, explanation: str = "") -> None:
        """Show the guess beside the result, which is one of the options or a number, and a sentence on why."""
        if self.options and result not in self.options:
            raise ValueError(f"the result {result!r} is none of the options {', '.join(self.options)}")
        guess, came = self.value, self._written(result)
        if guess is None:
            mood, said = "quiet", f"Result: {came}."
        elif self._written(guess) == came:
            mood, said = "passed", f"Your guess: {came}. That is right."
        else:
            mood, said = "guess", f"Your guess: {self._written(guess)}. Result: {came}{self._off(guess, result)}."
        more = f" {explanation}" if explanation else ""
        show(said + more, boxed(f"<p><b>{escape(said)}</b>{escape(more)}</p>", mood))

    def _written(self, value):
        if self.options:
            return value
        value = float(value)
        text = f"{value:,.0f}" if value.is_integer() or 1e4 <= abs(value) < 1e15 else f"{value:.6g}"
        return f"{text} {self.unit}".rstrip()

    def _off(self, guess, result):
        if self.options or guess * result <= 0:
            return ""
        factor = guess / float(result)
        word = "high" if factor > 1 else "low"
        return f", so the guess is too {word} by a factor of {max(factor, 1 / factor):.3g}"


def _controls(guess, question):
    """The question with buttons, or with a field for the number."""
    import ipywidgets as widgets

    said = widgets.HTML()

    def keep(value):
        try:
            guess.keep(value)
            said.value = "Your guess is kept."
        except OSError as error:
            said.value = f"Your guess could not be kept in {progress_file.location()}: {escape(str(error.strerror))}."

    def keep_number(change):
        try:
            keep(float(change["new"].replace(",", "")))
        except ValueError:
            said.value = "That is not a number."

    before = guess.value
    if guess.options:
        field = widgets.RadioButtons(options=guess.options, value=before, layout={"width": "auto"})
        field.observe(lambda change: keep(change["new"]), "value")
    else:
        text = "" if before is None else f"{before:.15g}"
        field = widgets.Text(text, placeholder="a number", continuous_update=False, layout={"width": "12em"})
        field.observe(keep_number, "value")
        field = widgets.HBox([field, widgets.Label(guess.unit)])
    asked = widgets.HTML(f"<b>Predict.</b> {escape(question)}")
    return widgets.VBox([asked, field, said])
