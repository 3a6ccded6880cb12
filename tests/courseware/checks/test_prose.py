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
    its = lines

## Reasoning

Because.

## Misconceptions

### a property

#### Idea: one thing

    right => wrong

    first => last
    if right: ... =>
        if wrong:
            pass
    gone =>

It is wrong.

Look there.

And there.

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


def written(tmp_path, text):
    path = tmp_path / "exercise.md"
    path.write_text(text)
    return path


def test_an_exercise_is_read(tmp_path):
    read = prose.read(written(tmp_path, EXERCISE))
    outline = "An outline:\n\n    code = that(keeps)\n    its = lines"
    assert read.hints == ("A question?", "A nudge, on two lines.", outline)
    assert (read.title, read.reasoning) == ("A title", "Because.")
    variants = ((("right", "wrong"),), (("first", "last"), ("if right: ...", "if wrong:\n    pass"), ("gone", "")))
    said = "It is wrong.", "Look there.\n\nAnd there."
    assert read.misconceptions == (
        prose.Misconception("one thing", "a property", variants, *said, is_idea=True),
        prose.Misconception("another thing", "a property", ((("right", ""),),), "It is wrong, too.", ""),
    )


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("# A title\n", "", "does not begin with a title"),
        ("## Hint 2", "## Hint two", "it needs Hint 1, Hint 2, Hint 3, Reasoning, Misconceptions"),
        ("#### another thing", "#### Idea: one thing", "has a heading twice: Idea: one thing"),
        ("It is wrong, too.", "", "the misconception 'another thing' needs an edit and what is wrong"),
        ("\n    right =>\n", "", "the misconception 'another thing' needs an edit and what is wrong"),
        ("    gone =>", "    gone", "the misconception 'Idea: one thing' has 'gone', which is no edit"),
        ("    gone =>", "    gone=>", "the misconception 'Idea: one thing' has 'gone=>', which is no edit"),
        ("### a property", "", "'#### Idea: one thing' stands before the first '###' heading"),
    ],
)
def test_what_is_missing_or_does_not_belong_is_said(tmp_path, old, new, said):
    assert EXERCISE.count(old) == 1
    with pytest.raises(prose.BadProse, match=said):
        prose.read(written(tmp_path, EXERCISE.replace(old, new)))


def test_a_quiz_is_read(tmp_path):
    this = {"answer": "this", "correct": False, "feedback": "Not so, since that."}
    that = {"answer": "that", "correct": True, "feedback": "Right."}
    assert prose.read_quiz(written(tmp_path, QUIZ)) == [{"question": "Which?", "answers": [this, that]}]


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("  Right.\n", "", "the option 'that' has no feedback"),
        ("- [ ] this", "- this", "needs options"),
    ],
)
def test_a_quiz_without_options_or_feedback_is_refused(tmp_path, old, new, said):
    with pytest.raises(prose.BadProse, match=said):
        prose.read_quiz(written(tmp_path, QUIZ.replace(old, new)))
