"""The exercises, one module a lesson: answers, hints, properties, plausible wrong answers, and the quiz.

Each lesson_NN has LESSON, TITLE, EXERCISES (a tuple of grading.exercise.Exercise) and QUIZ (questions for
jupyterquiz). An answer is self-contained, given `import numpy as np`; the notebook's stub repeats its
signature and docstring.
"""
