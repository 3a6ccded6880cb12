"""The house rules: what an import costs, the command line, and that the project's own files agree."""

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import rattler
import yaml
from hatchling import build
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_everything_that_courseware_offers_is_there():
    offered = fresh_python("import courseware as c\nfor name in dir(c): getattr(c, name); print(name)")
    assert {"check", "hint", "solution", "progress", "quiz", "start", "GLOSSARY"} <= set(offered.split())


def test_unknown_attribute_is_an_attribute_error():
    import courseware

    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        courseware.chekc  # noqa: B018


def command_line(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "courseware", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("command", [[], ["doctor"], ["grade"], ["bench"], ["classroom"]])
def test_each_command_has_help(command):
    result = command_line(*command, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" ".join(["usage: python -m courseware", *command]))


def test_help_says_what_each_command_does():
    from courseware.__main__ import COMMANDS

    words = " ".join(command_line("--help").stdout.split())
    for name, (summary, _) in COMMANDS.items():
        assert f"{name} {summary}" in words


def test_unknown_command_is_refused():
    result = command_line("docter")
    assert result.returncode == 2
    assert "docter" in result.stderr and "doctor" in result.stderr


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def constraint_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    """Name -> exact version."""
    pinned = {}
    for line in constraint_lines():
        requirement = Requirement(line)
        (version,) = requirement.specifier
        assert version.operator == "==", line
        pinned[canonicalize_name(requirement.name)] = version.version
    return pinned


def direct_requirements() -> dict[str, str | None]:
    """Name -> marker, of every requirement of the package and its extras."""
    groups = [project()["dependencies"], *project()["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return {canonicalize_name(r.name): r.marker and str(r.marker) for r in requirements}


def test_constraints_are_exact_and_portable():
    for line in constraint_lines():
        # No address, no build of one platform: torch's "+cpu" would shut out every GPU.
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line
    pinned = pins()
    assert len(pinned) == len(constraint_lines()), "a package is pinned twice"
    assert direct_requirements().keys() <= pinned.keys()
    assert (pinned["torch"], pinned["triton"]) == ("2.13.0", "3.7.1")


def test_the_package_leaves_torch_and_triton_alone():
    """In Colab its requirements are installed beside Colab's own torch and triton."""
    hard = {"numpy", "matplotlib", "ipywidgets", "anywidget", "hypothesis"}
    assert set(project()["dependencies"]) == hard


def test_environment_yml_agrees_with_the_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip_section = environment["dependencies"]
    specs = {spec.name.normalized: spec for spec in map(rattler.MatchSpec, conda)}
    assert specs.keys() == {"python", "pip"}
    assert specs["python"].version is not None and project()["requires-python"] == ">=3.11"

    options = [line for line in pip_section["pip"] if line.startswith("-")]
    assert options == ["--constraint constraints.txt", "--editable ."]
    requirements = [Requirement(line) for line in pip_section["pip"] if not line.startswith("-")]
    stated = {canonicalize_name(r.name): (str(r.specifier), r.marker and str(r.marker)) for r in requirements}
    pinned = pins()
    assert stated == {name: (f"=={pinned[name]}", marker) for name, marker in direct_requirements().items()}


def test_a_wheel_holds_every_file_of_both_packages(tmp_path, monkeypatch, project_files):
    """Those that Python does not import, too: kernels in CUDA C++, tables, records, hints."""
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as wheel:
        held = set(wheel.namelist())
    names = {str(path.relative_to(ROOT)) for path in project_files}
    files = {name for name in names if name.startswith(("course_lib/", "courseware/"))}
    assert {".py", ".cu", ".h", ".cc", ".toml", ".json", ".md"} <= {Path(name).suffix for name in files}
    assert files - held == set()


def makefile_targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_docs_and_makefile_agree():
    pages, makefile = "\n".join(path.read_text() for path in PAGES), (ROOT / "Makefile").read_text()
    targets = makefile_targets()
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", pages)) == targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_workflows_run_what_is_there():
    steps = [
        step["run"]
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = re.findall(r"\bmake ([\w.-]+)", "\n".join(steps))
    assert ".ci/run" in steps and {"site", "test-all"} < set(targets)
    for target in targets:
        assert subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True).returncode == 0, target


def test_ci_runs_the_readme_command_and_nothing_after_it():
    lines = (ROOT / ".ci/run").read_text().rstrip().splitlines()
    assert lines[-1] == "exec make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_links_of_the_readme_and_the_docs_lead_somewhere():
    targets = [(path, target) for path in PAGES for target in re.findall(r"\]\(([^)]+)\)", path.read_text())]
    assert len(targets) >= 15
    assert not [target for path, target in targets if "://" not in target and not (path.parent / target).exists()]


def test_files_that_the_readme_and_the_docs_name_are_there():
    named = [(path.name, name) for path in PAGES for name in re.findall(r"`((?:\w+/)+[\w.-]*)`", path.read_text())]
    ours = [(page, name) for page, name in named if (ROOT / name.split("/")[0]).is_dir()]
    assert len(ours) > 30
    patterns_and_results = re.compile("NN|_build")
    unknown = [f"{page}: {name}" for page, name in ours if not (ROOT / name).exists()]
    assert list(itertools.filterfalse(patterns_and_results.search, unknown)) == []


def test_no_file_names_a_registry_or_a_machine(project_files):
    """Where packages come from is for each user's own configuration to say."""
    # In pieces, for this file is searched too.
    hosts = ("pypi", "pythonhosted", "registry.npmjs", "deb.debian", "download.pytorch", "conda.anaconda")
    words = [host + end for host in hosts for end in (".org", ".com")] + [
        "/work/" + "main",
        "/opt/" + "wheels",
    ]
    assert ROOT / "Makefile" in project_files
    found = [(path.name, word) for path in project_files for word in words if word.encode() in path.read_bytes()]
    assert not found
