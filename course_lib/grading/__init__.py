"""The engine behind check, hint, solution, restore, progress and quiz. It knows no lesson: see course_lib/exercises.

exercise       what an exercise is made of
checking       tries the properties, shrinks the first failure
calling        calls an answer under a time limit, its exceptions told at the learner's own line
diagnosis      says where and how what came back differs from what was expected
read_counting  inputs that notice how they are read
kernel_calls   answers that are Triton kernels, run under the tracer
cuda_calls     answers in CUDA C++, run thread by thread
report         the text that a learner sees
learner        check, hint, solution, restore, progress, quiz
overview       how far the learner is, lesson by lesson
cli            python -m course_lib grade NOTEBOOK
"""

from .checking import grade
from .cuda_calls import run_cuda
from .exercise import Result
from .kernel_calls import launched
from .learner import check, hint, progress, quiz, restore, solution
from .read_counting import Rows
from .registry import exercises

__all__ = [
    "Result",
    "Rows",
    "check",
    "exercises",
    "grade",
    "hint",
    "launched",
    "progress",
    "quiz",
    "restore",
    "run_cuda",
    "solution",
]
