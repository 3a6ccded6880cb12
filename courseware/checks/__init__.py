"""The engine behind check, hint, solution, restore, progress and quiz. It knows no lesson: see courseware/exercises.

What a notebook calls, and what exercises are written with, is imported from here.

exercise             what an exercise is made of
properties           states the properties of an exercise, with tests that many have in common, and draws random inputs
registry             finds lessons and exercises by their folders
checking             tries the properties, shrinks the first failure
calling              calls an answer, and keeps what the properties ask of a call
diagnosis            says where and how what came back differs from what was expected
misconceptions       names the listed mistake behind an answer
expression_trace     runs an answer and keeps the value of every expression
fault_localization   finds the place in it where another value would make the result right
mutation_operators   small changes of a function's source
reference_diff       where an answer differs from the right one
repair               finds which of these changes and differences makes an answer right
output_relations     what else can be said of what comes back
read_counting        inputs that notice how they are read
kernel_calls         answers that are Triton kernels, run under the tracer; compile_calls: and compiled
cuda_calls           answers in CUDA C++, run thread by thread
prose                reads hints, reasoning, misconceptions and quizzes from Markdown
report               the text that a learner sees
learner              check, hint, solution, restore, progress, quiz
"""

from .calling import AnswerError, judging
from .checking import grade
from .cuda_calls import run_cuda
from .diagnosis import are_numbers, as_array, compare, exact_and_plain, exactly, expected, named, show
from .exercise import Evidence, Exercise, ExpectedOutput, Finding, Result, single_finding
from .kernel_calls import launched
from .learner import check, hint, progress, quiz, restore, solution
from .properties import Checks, agrees, case_of, keeps_dtype, not_modified, raises_value_error
from .read_counting import Rows
from .registry import exercises
