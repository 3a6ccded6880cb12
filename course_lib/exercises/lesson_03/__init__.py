"""Lesson 03, stable softmax.

A row in which nothing is visible has weights 0 and log-sum-exp -inf, as in `course_lib.reference`, whose functions are
the oracle here.
"""

TITLE = "Stable softmax"
EXERCISES = ("stable_softmax", "logsumexp", "masked_softmax")
