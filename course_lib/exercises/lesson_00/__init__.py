"""Lesson 00, start here: one exercise, small enough to show how the checks work."""

TITLE = "Start here"
EXERCISES = ("softmax_scale",)
