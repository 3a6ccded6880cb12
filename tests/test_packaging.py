"""The house rules: what an import costs, the command line, and that the project's own files agree."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import courseware
from courseware.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]


def fresh_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_quick_and_loads_the_standard_library_alone():
    code = """
import sys, time
before, begin = set(sys.modules), time.perf_counter()
import courseware
seconds = time.perf_counter() - begin
print(seconds, *{name.split(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names)
"""
    runs = [fresh_python(code).split() for _ in range(3)]
    assert all(sorted(run[1:]) == ["course_lib", "courseware"] for run in runs), f"imported as well: {runs[0][1:]}"
    assert min(float(run[0]) for run in runs) < 0.3


def test_courseware_has_everything_that_it_offers_and_nothing_else():
    offered = fresh_python("import courseware as c\nfor name in dir(c): getattr(c, name); print(name)")
    assert {"check", "hint", "solution", "progress", "quiz", "start", "GLOSSARY"} <= set(offered.split())
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        courseware.chekc  # noqa: B018


def command_line(capsys, *arguments: str) -> tuple[int, str]:
    """(exit status, all that is written) of `python -m courseware`, where argparse ends it."""
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    return stopped.value.code, "".join(capsys.readouterr())


def test_the_command_line_has_help_and_refuses_an_unknown_command(capsys):
    for command in ([], *([name] for name in COMMANDS)):
        status, said = command_line(capsys, *command, "--help")
        assert status == 0 and said.startswith(" ".join(["usage: python -m courseware", *command]))
    summaries = " ".join(command_line(capsys, "--help")[1].split())
    assert all(f"{name} {summary}" in summaries for name, (summary, _) in COMMANDS.items())
    status, said = command_line(capsys, "docter")
    assert status == 2 and "docter" in said and "doctor" in said
    module = [sys.executable, "-m", "courseware", "docter"]
    assert subprocess.run(module, cwd=ROOT, capture_output=True).returncode == 2


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    """Name -> exact version."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    # No address, no build of one platform: torch's "+cpu" would shut out every GPU.
    pinned = {
        canonicalize_name(name): pin
        for name, pin in (re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines)
    }
    assert len(pinned) == len(lines), "a package is pinned twice"
    return pinned


def direct_requirements() -> dict[str, str | None]:
    """Name -> marker, of every requirement of the package and its extras."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return {canonicalize_name(r.name): r.marker and str(r.marker) for r in requirements}


def test_everything_required_is_pinned_and_colab_s_own_is_not_required():
    assert direct_requirements().keys() <= pins().keys()
    assert not {"torch", "triton"} & {Requirement(each).name for each in PROJECT["dependencies"]}


def test_environment_yml_agrees_with_the_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip_section = environment["dependencies"]
    specs = {spec.name.normalized: spec for spec in map(rattler.MatchSpec, conda)}
    assert specs.keys() == {"python", "pip"}
    assert specs["python"].version is not None and PROJECT["requires-python"] == ">=3.11"

    options = [line for line in pip_section["pip"] if line.startswith("-")]
    assert options == ["--constraint constraints.txt", "--editable ."]
    requirements = [Requirement(line) for line in pip_section["pip"] if not line.startswith("-")]
    stated = {canonicalize_name(r.name): (str(r.specifier), r.marker and str(r.marker)) for r in requirements}
    pinned = pins()
    assert stated == {name: (f"=={pinned[name]}", marker) for name, marker in direct_requirements().items()}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_docs_and_makefile_agree():
    pages, makefile = "\n".join(path.read_text() for path in PAGES), (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", pages)) == set(targets.split())
    for target in targets.split():
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_workflows_run_what_is_there():
    jobs = [
        job
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
        for job in yaml.safe_load(path.read_text())["jobs"].values()
    ]
    steps = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"\bmake ([\w.-]+)", "\n".join(steps)))
    assert ".ci/run" in steps and {"site", "test-all"} < targets
    for target in targets:
        # Without PYTHON, make would look for one again and again.
        command = ["make", "--dry-run", f"PYTHON={sys.executable}", target]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0, target
    # CI runs the README's command, and nothing after it.
    assert (ROOT / ".ci/run").read_text().rstrip().splitlines()[-1] == "exec make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_what_the_readme_and_the_docs_link_to_and_name_is_there():
    links = [(path, target) for path in PAGES for target in re.findall(r"\]\(([^)]+)\)", path.read_text())]
    assert len(links) >= 15
    assert not [target for path, target in links if "://" not in target and not (path.parent / target).exists()]
    named = [(path.name, name) for path in PAGES for name in re.findall(r"`((?:\w+/)+[\w.-]*)`", path.read_text())]
    ours = [(page, name) for page, name in named if (ROOT / name.split("/")[0]).is_dir()]
    assert len(ours) > 30
    patterns_and_results = re.compile("NN|_build")
    assert not [
        f"{page}: {name}" for page, name in ours if not (ROOT / name).exists() and not patterns_and_results.search(name)
    ]


def test_no_file_names_a_registry_or_a_machine(project_files):
    """Where packages come from is for each user's own configuration to say."""
    # In pieces, for this file is searched too.
    hosts = ("pypi", "pythonhosted", "registry.npmjs", "deb.debian", "download.pytorch", "conda.anaconda")
    words = [host + end for host in hosts for end in (".org", ".com")]
    words += ["/work/" + "main", "/opt/" + "wheels"]
    assert ROOT / "Makefile" in project_files
    found = [(path.name, word) for path in project_files for word in words if word.encode() in path.read_bytes()]
    assert not found
