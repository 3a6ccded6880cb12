"""The record of the suite on a GPU, with a suite and a sanitizer that are made up."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tools import correctness

REPORT = '<testsuites><testsuite tests="12" failures="1" errors="2" skipped="3" time="90"/></testsuites>'
SANITIZER = """#!/bin/sh
echo "4 calls agree with float64"
echo "========= $2 SUMMARY: 0 errors"
echo "$@" >> "$(dirname "$0")/calls"
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Returns the file in which the sanitizer notes how it is called."""
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(SANITIZER)
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def suite(command, check):
        (report,) = [word for word in command if word.startswith("--junitxml=")]
        with open(report.removeprefix("--junitxml="), "w") as file:
            file.write(REPORT)

    monkeypatch.setattr(subprocess, "run", suite)
    return tmp_path / "calls"


def test_tests_are_counted_and_summaries_kept(made_up):
    found = correctness.correctness()["correctness"]
    assert [found[key] for key in ("passed", "failed", "skipped", "minutes")] == [6, 3, 3, 1.5]
    assert found["memcheck"] == "4 calls agree with float64; memcheck SUMMARY: 0 errors"
    for line, tool in zip(sorted(made_up.read_text().splitlines()), ("memcheck", "racecheck"), strict=True):
        assert line == f"--tool {tool} {sys.executable} -m tools.correctness --calls"
    assert find_spec("tools.correctness")


def test_the_record_says_how_it_was_made(made_up, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G100")
    monkeypatch.setattr(correctness.records, "_output_of", lambda *command: None)
    monkeypatch.setattr(sys, "argv", ["correctness", str(tmp_path / "correctness-g100.json"), "--commit", "abc"])
    correctness.main()
    record = json.loads((tmp_path / "correctness-g100.json").read_text())
    assert (record["gpu"], record["commit"]) == ("G100", "abc") and record["correctness"]["passed"] == 6
    assert record["command"] == "python -m tools.correctness correctness-g100.json"
