"""`python -m course_lib COMMAND`. The exit status is 0 if all is well."""

import argparse
import importlib
import json
import sys


def doctor(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_lib doctor",
        description="Say what this machine can run, what is in the way, and how to fix it. "
        "Exits with 1 if something does not work; warnings do not count.",
    )
    parser.add_argument("--json", action="store_true", help="write the report as JSON")
    arguments = parser.parse_args(argv)
    from course_lib import runtime

    report = runtime.doctor()
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report)
    return 0 if report.healthy else 1


# Command -> (what it does, the module whose `main` runs it; None for the doctor above).
COMMANDS = {
    "doctor": ("say what this machine can run, and how to fix what it cannot", None),
    "grade": ("mark the exercises of a notebook", "course_lib.grading.cli"),
    "bench": ("time the kernels on a GPU, and run the lessons' experiments", "course_lib.measure.bench"),
    "classroom": ("write an nbgrader course", "course_lib.grading.classroom"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m course_lib",
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
    run = importlib.import_module(module).main if module else doctor
    return run(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
