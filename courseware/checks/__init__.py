"""The engine behind check, hint, solution, restore, progress and quiz. It knows no lesson: see courseware/exercises.

What a notebook calls, and what exercises are written with, is imported from here.

exercise       what an exercise is made of
properties     states the properties of an exercise, and tests that many have in common
checking       tries the properties, shrinks the first failure
drawing        draws random inputs
calling        calls an answer, and keeps what the properties ask of a call
remote         an answer that runs in the player, a process of its own
remote_launch  a kernel that runs there: its tensors, and the counts of its accesses, are here
sandbox        the command line of bubblewrap
diagnosis      says where and how what came back differs from what was expected
recording      runs an answer and keeps the value of every expression
mending        finds the place in it where another value would make the result right
value_pairs    compares the values of two answers' expressions
changes        small changes of a function's source
repairing      finds the one of them that makes an answer right
read_counting  inputs that notice how they are read
kernel_calls   answers that are Triton kernels, run under the tracer
cuda_calls     answers in CUDA C++, run thread by thread
report         the text that a learner sees
learner        check, hint, solution, restore, progress, quiz
marking        marks answers, each in two processes of its own: the judge and the player
autograding    what nbgrader uses of it; classroom writes the course
cli            python -m courseware grade NOTEBOOK
"""

from .calling import judging
from .checking import grade
from .cuda_calls import run_cuda
from .diagnosis import compare, exact_and_plain, expected, show
from .exercise import Evidence, Exercise, ExpectedOutput, Finding, Result, single_finding
from .kernel_calls import launched
from .learner import check, hint, progress, quiz, restore, solution
from .properties import Checks, agrees, case_of, keeps_dtype, not_modified, raises_value_error
from .read_counting import Rows
from .registry import exercises
