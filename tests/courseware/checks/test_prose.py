"""What exercises and quizzes say is read from Markdown; a file with something missing is refused by name."""

import pytest

from courseware.checks import prose

EXERCISE = """\
# A title
## Hint 1
A question?
## Hint 2
A nudge,
on two lines.
## Hint 3
An outline:

    code = that(keeps)
## Reasoning
Because.
## Misconceptions
### a property
#### Idea: one thing

    right => wrong

    if right: ... =>
        if wrong:
            pass
    gone =>

It is wrong.

Look there.

#### another thing

    right =>

It is wrong, too.
"""
QUIZ = """\
## Which?

- [ ] this
  Not so,
  since that.
- [x] that
  Right.
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "exercise.md"
    return lambda text: path.write_text(text) and path


def test_an_exercise_is_read(written):
    read = prose.read(written(EXERCISE))
    assert read.hints == ("A question?", "A nudge, on two lines.", "An outline:\n\n    code = that(keeps)")
    assert (read.title, read.reasoning) == ("A title", "Because.")
    variants = ((("right", "wrong"),), (("if right: ...", "if wrong:\n    pass"), ("gone", "")))
    assert read.misconceptions == (
        prose.Misconception("one thing", "a property", variants, "It is wrong.", "Look there.", is_idea=True),
        prose.Misconception("another thing", "a property", ((("right", ""),),), "It is wrong, too.", ""),
    )


@pytest.mark.parametrize(
    "old, new, said",
    [("# A title\n", "", "does not begin with a title"),
     ("## Hint 2", "## Hint two", "it needs Hint 1, Hint 2, Hint 3, Reasoning, Misconceptions"),
     ("#### another thing", "#### Idea: one thing", "has a heading twice: Idea: one thing"),
     ("It is wrong, too.", "", "the misconception 'another thing' needs an edit and what is wrong"),
     ("    gone =>", "    gone=>", "the misconception 'Idea: one thing' has 'gone=>', which is no edit"),
     ("### a property", "", "'#### Idea: one thing' stands before the first '###' heading")],
)  # fmt: skip
def test_what_is_missing_or_does_not_belong_is_said(written, old, new, said):
    assert EXERCISE.count(old) == 1
    with pytest.raises(prose.BadProse, match=said):
        prose.read(written(EXERCISE.replace(old, new)))


def test_a_quiz_is_read_and_refused_without_options_or_feedback(written):
    this = {"answer": "this", "correct": False, "feedback": "Not so, since that."}
    that = {"answer": "that", "correct": True, "feedback": "Right."}
    assert prose.read_quiz(written(QUIZ)) == [{"question": "Which?", "answers": [this, that]}]
    for text, said in (("  Right.\n", "the option 'that' has no feedback"), ("[ ] ", "needs options")):
        with pytest.raises(prose.BadProse, match=said):
            prose.read_quiz(written(QUIZ.replace(text, "")))
