"""`python -m courseware COMMAND`. The exit status is 0 if all is well."""

import argparse
import importlib
import sys

# Command -> (what it does, the module whose `main` runs it).
COMMANDS = {
    "doctor": ("say what this machine can run, and how to fix what it cannot", "courseware.doctor"),
    "grade": ("mark the exercises of a notebook", "courseware.classroom.cli"),
    "bench": ("time the kernels on a GPU, and run the lessons' experiments", "courseware.bench.suite"),
    "classroom": ("write an nbgrader course", "courseware.classroom.assignments"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m courseware",
        description="FlashAttention from First Principles, from the command line.",
        epilog="Each command has its own --help.",
        # Without indents, which argparse forgets when it decides whether a command and its help fit on one line.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, indent_increment=0),
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, (summary, _) in COMMANDS.items():
        commands.add_parser(name, help=summary)
    # Each command reads its own arguments, so that `grade --help` is the help of grade.
    command = parser.parse_args(argv[:1]).command
    _, module = COMMANDS[command]
    return importlib.import_module(module).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
