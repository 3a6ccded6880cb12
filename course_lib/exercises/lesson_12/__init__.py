"""Lesson 12, thread by thread, in CUDA C++."""

TITLE = "Thread by thread, in CUDA C++"
EXERCISES = ("thread_map", "sectors", "bank_conflicts", "find_the_race", "warp_softmax", "solve")
