"""Lesson 11, making it fast."""

TITLE = "Making it fast"
EXERCISES = ("predict_rung", "find_the_waste")
