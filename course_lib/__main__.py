"""`python -m course_lib doctor | grade | bench | classroom`: the exit status tells whether all is well."""

import argparse
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


def grade(argv: list[str]) -> int:
    from course_lib.grading import cli

    return cli.main(argv)


def bench(argv: list[str]) -> int:
    from course_lib.measure import bench

    return bench.main(argv)


def classroom(argv: list[str]) -> int:
    from course_lib.grading import classroom

    return classroom.main(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    commands = {"doctor": doctor, "grade": grade, "bench": bench, "classroom": classroom}
    parser = argparse.ArgumentParser(
        prog="python -m course_lib",
        description="FlashAttention from First Principles, from the command line.",
        epilog="doctor [--json]: what this machine can run, and the fix for what it cannot. "
        "grade NOTEBOOK [--json]: mark the exercises of a notebook. "
        "bench [--json FILE]: time the kernels. "
        "classroom DIR [--json]: write an nbgrader course. Each command has its own --help.",
    )
    parser.add_argument("command", choices=commands)
    # Each command reads its own arguments, so that `grade --help` is grade's help.
    return commands[parser.parse_args(argv[:1]).command](argv[1:])


if __name__ == "__main__":
    sys.exit(main())
