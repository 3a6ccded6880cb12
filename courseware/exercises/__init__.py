"""The exercises, one folder a lesson: answers, properties, hints, plausible wrong answers, and the quiz.

Each lesson_NN has quiz.md and lesson.toml, its title and its exercises in order. An exercise is a module that ends with
EXERCISE, a checks.Exercise, and a Markdown file of that name, which holds the hints and the misconceptions (see
checks.prose). An answer is self-contained, given `import numpy as np`; the notebook's stub repeats its signature and
docstring.
"""
