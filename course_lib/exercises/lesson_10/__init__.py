"""Lesson 10, performance."""

TITLE = "Performance"
EXERCISES = ("arithmetic_intensity", "roofline_seconds", "explain_point")
