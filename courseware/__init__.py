"""What teaches and measures `course_lib`. A notebook takes from here what `__all__` lists.

exercises/   the lessons' exercises: answers, properties, hints, misconceptions
checks/      the engine behind check, hint, solution, restore, progress and quiz
worker/      the process that runs a student's answer, and its sandbox
classroom/   nbgrader: making the course, marking what is handed in
simulators/  Triton's interpreter watched, Gluon and CUDA on a CPU, a multiprocessor cycle by cycle; tracer
explorers/   pictures to take hold of; widgets/: predictions, tables, cards
bench/       timing, ladders, records; data/: what was recorded
workspace, doctor and __main__ are the command line; bug_hunt, editing and glossary serve several lessons
"""

import importlib

from course_lib import runtime

# Where there is no GPU. Loaded when first needed.
runtime.emulators.update(
    triton="courseware.simulators.faster_interpreter",
    gluon="courseware.simulators.gluon_emulator",
    cuda="courseware.simulators.cuda_emulator",
)

_MODULE_OF = dict.fromkeys(("check", "hint", "solution", "restore", "progress", "quiz"), "courseware.checks")
_MODULE_OF |= dict.fromkeys(("predict", "table"), "courseware.widgets")
_MODULE_OF |= dict.fromkeys(("GLOSSARY", "SYMBOLS", "TERMS"), "courseware.glossary")
_MODULE_OF["start"] = "courseware.doctor"

__all__ = sorted(_MODULE_OF)


# Importing this package loads the standard library alone, so that a notebook's first cell is quick.
def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'courseware' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__():
    return __all__
