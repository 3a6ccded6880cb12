"""A quiz without a script: each option unfolds into whether it is right, and why."""

from .page import boxed, escape, show


def show_quiz(questions: list[dict]) -> None:
    """questions: {"question", "answers": [{"answer", "correct", "feedback"}]}."""
    content, lines, answers = [], [], ["", "Answers"]
    for number, question in enumerate(questions, 1):
        options = list(zip("abcdefgh", question["answers"], strict=False))
        lines += [f"{number}. {question['question']}", *(f"   {letter}) {a['answer']}" for letter, a in options)]
        answers += [f"{number}{letter}) {_verdict(a)} {a['feedback']}" for letter, a in options]
        content.append(f"<p><b>{number}. {escape(question['question'])}</b></p>")
        for _, a in options:
            mood, feedback = "right" if a["correct"] else "wrong", f"<b>{_verdict(a)}</b> {escape(a['feedback'])}"
            content.append(
                f"<details><summary>{escape(a['answer'])}</summary><p class='{mood}'>{feedback}</p></details>"
            )
    told = "<p>Choose an option to see what is to be said about it.</p>"
    show("\n".join(lines + answers), boxed("".join([told, *content]), "guess"))


def _verdict(answer):
    return "Right." if answer["correct"] else "Not so."
