"""Where a learner stands: a bar for each lesson, and its exercises."""

from course_lib.components.page import boxed, escape

from . import registry

MARKS = {"passed": "passed", "attempted": "tried, not passed yet", None: "not attempted yet"}


def overview(states: dict[str, str]) -> tuple[str, str]:
    """As text and as HTML, in which the exercises of each lesson are folded. states: exercise id -> state."""
    lines, folds, points, possible = [], [], 0, 0
    for number, lesson in registry.lessons().items():
        exercises = registry.of_lesson(number)
        done = [exercise for exercise in exercises if states.get(exercise.id) == "passed"]
        points += sum(exercise.points for exercise in done)
        possible += sum(exercise.points for exercise in exercises)
        title = f"{number} {lesson['title']}"
        bar = "█" * len(done), "░" * (len(exercises) - len(done))
        count = f"{len(done)} of {len(exercises)}"
        lines += [f"{title:<27} {''.join(bar)}  {count}"]
        lines += [f"     {e.id:<28} {MARKS[states.get(e.id)]}" for e in exercises]
        items = "".join(f"<li><code>{e.id}</code> {MARKS[states.get(e.id)]}</li>" for e in exercises)
        folds.append(
            f"<details><summary><span class='course-name'>{escape(title)}</span> "
            f"<span class='course-done'>{bar[0]}</span>{bar[1]} {count}</summary><ul>{items}</ul></details>"
        )
    total = f"{points} of {possible} points"
    return "\n".join([*lines, total]), boxed(f"{''.join(folds)}<p><b>{total}</b></p>")
