"""The house rules: who may import whom, what an import costs, and that the project's own files agree."""

import ast
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

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "course_lib").rglob("*.py"))

# Which other parts of course_lib each part may import. A new part has to be entered here.
# `reference` and `kernels` state the same mathematics independently, so there is no arrow between them.
MAY_IMPORT = {
    "hardware": set(),
    "machine": {"traffic"},
    "runtime": set(),
    "language": {"runtime"},
    "workspace": set(),
    "traffic": {"hardware"},
    "reference": {"machine"},
    "kernels": {"runtime", "language", "hardware", "tracer"},
    "tracing": {"runtime"},
    "tracer": {"runtime", "tracing", "kernels"},
    "measure": {"runtime", "hardware", "traffic", "tracer", "reference", "kernels", "exercises"},
    "exercises": {
        "runtime",
        "language",
        "measure",
        "hardware",
        "machine",
        "traffic",
        "tracer",
        "reference",
        "kernels",
        "grading",
    },  # fmt: skip
    # It finds exercises by number: see test_grading_knows_no_lesson.
    "grading": {"runtime", "language", "machine", "tracing", "tracer", "exercises"},
    # Of the kernels, only what the compiler uses for them, and only when asked.
    "explorers": {"measure", "hardware", "machine", "traffic", "tracer", "reference", "kernels"},
    "authoring": {"runtime", "grading"},
    # These two load what they are asked for.
    "__init__": {"grading"},
    "__main__": {"runtime", "grading", "measure"},
}
NUMPY_ONLY = ("hardware", "machine", "traffic", "reference")

# What course_lib itself offers that is no part, and the part that it comes from.
FROM_PACKAGE = {name: "grading" for name in ("check", "hint", "solution", "progress", "quiz")}
FROM_PACKAGE |= {name: "__init__" for name in ("GLOSSARY", "SYMBOLS", "TERMS")}


def part_of(path: Path) -> str:
    """The part of course_lib that a file belongs to: a package's or a top-level module's name."""
    return path.relative_to(ROOT / "course_lib").parts[0].removesuffix(".py")


def imported_modules(source: str, package: str) -> set[str]:
    """Dotted names that `source`, a module of `package`, imports, lazily too; `from a import b` is a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def imported_parts(source: str, package: str) -> set[str]:
    names = [name.split(".") for name in imported_modules(source, package)]
    parts = {name[1] if len(name) > 1 else "__init__" for name in names if name[0] == "course_lib"}
    return {FROM_PACKAGE.get(part, part) for part in parts}


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


@pytest.mark.parametrize(
    "source",
    [
        "import course_lib.kernels",
        "import course_lib.kernels.flash as f",
        "from course_lib import machine, kernels",
        "from course_lib.kernels import flash_attention",
        "from .. import kernels",
        "from ..kernels.flash import flash_attention",
        "def f():\n    from course_lib.kernels import flash",
        "import importlib\nimportlib.import_module('course_lib.kernels.flash')",
    ],
)
def test_every_way_to_import_is_seen(source):
    assert "kernels" in imported_parts(source, "course_lib.reference")


def test_sources_are_found():
    assert {part_of(path) for path in SOURCES} >= {"reference", "kernels", "machine", "traffic", "grading"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is new: enter in MAY_IMPORT what it may import"
    strangers = imported_parts(path.read_text(), package_of(path)) - MAY_IMPORT[part] - {part, "__init__"}
    assert not strangers, f"{part} may import {sorted(MAY_IMPORT[part])}, not {sorted(strangers)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_third_parties(path):
    modules = {name.split(".")[0] for name in imported_modules(path.read_text(), package_of(path))}
    assert not modules & {"notebooks", "work", "tests"}, "the library imports neither notebooks nor tests"
    if part_of(path) in NUMPY_ONLY:
        assert modules <= sys.stdlib_module_names | {"numpy", "course_lib"}


def test_grading_knows_no_lesson():
    for path in SOURCES:
        if part_of(path) == "grading":
            words = "\n".join(strings_and_names(path.read_text()))
            named = re.findall(r"lesson_\d+|\b\d\d\.[a-z_]+", words)
            assert not named, f"{path.name} names {named}"


def strings_and_names(source: str):
    """Identifiers, imported modules and string constants of `source`, docstrings left out."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield ast.unparse(node)


def fresh_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_quick_and_alone():
    code = """
import sys, time
begin = time.perf_counter()
import course_lib
print(time.perf_counter() - begin, *{"torch", "triton", "matplotlib"} & sys.modules.keys())
"""
    runs = [fresh_python(code).split() for _ in range(3)]
    assert all(len(run) == 1 for run in runs), f"imported as well: {runs[0][1:]}"
    assert min(float(run[0]) for run in runs) < 0.3


def test_everything_that_course_lib_offers_is_there():
    offered = fresh_python("import course_lib as c\nfor name in dir(c): getattr(c, name); print(name)")
    assert {"check", "hint", "solution", "progress", "quiz", "kernels", "GLOSSARY"} <= set(offered.split())


def test_unknown_attribute_is_an_attribute_error():
    import course_lib

    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        course_lib.chekc  # noqa: B018


def command_line(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("command", [[], ["doctor"], ["grade"], ["bench"], ["classroom"]])
def test_each_command_has_help(command):
    result = command_line(*command, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" ".join(["usage: python -m course_lib", *command]))


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
    hard = {"numpy", "matplotlib", "ipywidgets", "jupyterquiz", "hypothesis"}
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


def makefile_targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


def test_readme_and_makefile_agree():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    targets = makefile_targets()
    assert set(re.findall(r"\bmake ((?!on\b)[a-z]+(?:-[a-z]+)*)", readme)) == targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_ci_runs_the_readme_command_and_nothing_after_it():
    lines = (ROOT / ".ci/run").read_text().rstrip().splitlines()
    assert lines[-1] == "exec make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_readme_links_lead_somewhere():
    readme = (ROOT / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in target]
    assert len(targets) >= 3
    assert not [target for target in targets if not (ROOT / target).exists()]


def project_files() -> list[Path]:
    """What git tracks or would: everything that is not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_registry_or_a_machine():
    """Where packages come from is for each user's own configuration to say."""
    # In pieces, for this file is searched too.
    hosts = ("pypi", "pythonhosted", "registry.npmjs", "deb.debian", "download.pytorch", "conda.anaconda")
    words = [host + end for host in hosts for end in (".org", ".com")] + [
        "/work/" + "main",
        "/opt/" + "wheels",
    ]
    files = project_files()
    assert ROOT / "Makefile" in files
    found = [(path.name, word) for path in files for word in words if word.encode() in path.read_bytes()]
    assert not found
