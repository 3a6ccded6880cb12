"""Who may import whom: layers without circles, and no permission that nobody uses.

An import counts wherever it stands, inside a function too. So does a module that is named in a string: as an argument
of `import_module`, as the "module:function" that another process is to call, or in a piece of Python.
"""

import ast
import graphlib
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import jupytext
import pytest

import courseware

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("course_lib", "courseware")
OURS = rf"\b(?:{'|'.join(PACKAGES)})"

# Which parts each part may import.
MAY_IMPORT = {
    f"{package}.{part}": set(names)
    for package, parts in tomllib.loads((ROOT / "tests/imports.toml").read_text()).items()
    for part, names in parts.items()
}
NUMPY_ONLY = (
    "course_lib.hardware", "course_lib.machine", "course_lib.traffic", "course_lib.masks", "course_lib.reference",
    "course_lib.serving.paged_cache", "courseware.simulators.barriers", "courseware.simulators.sm_simulator",
)  # fmt: skip

# Modules that import a name held in a variable. Where the name is a part, it stands in a string that this test reads:
# in the same module, in courseware/__init__.py, or in a call of `interpreter_process.run`. The registry finds lessons.
IMPORT_BY_VARIABLE = {
    "course_lib.kernels", "course_lib.kernels.score_mods", "course_lib.runtime", "courseware", "courseware.__main__",
    "courseware.checks.registry",
    "courseware.simulators.triton_trace.interpreter_process", "courseware.simulators.triton_trace.remote",
}  # fmt: skip

# What courseware itself offers without being a part, and the module that it comes from.
OFFERED = {f"courseware.{name}": module for name, module in courseware._MODULE_OF.items()}


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


FILES = {module_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def part_of(module: str) -> str:
    """ "course_lib.kernels" of "course_lib.kernels.forward"; "course_lib.__init__" of course_lib itself."""
    return ".".join([*module.split("."), "__init__"][:2])


def lesson_of(module: str) -> str | None:
    """ "08" of courseware.exercises.lesson_08, be it a module or a folder of modules."""
    found = re.match(r"courseware\.exercises\.lesson_(\d+)", module)
    return found and found[1]


def resolved(name: str) -> str:
    """The module that a dotted name leads to."""
    name = OFFERED.get(".".join(name.split(".")[:2]), name)
    while name not in FILES:
        name = name.rpartition(".")[0]
    return name


def is_ours(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


def is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def parsed(source: str) -> ast.Module:
    """The syntax tree of a piece of Python, without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [line for line in node.body if not is_docstring(line)]
    return tree


def names_imported(source: str, package: str = "") -> set[str]:
    """Dotted names that a piece of Python, in a module of `package`, imports; `from a import b` is a.b."""
    names = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            names |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Attribute) and re.fullmatch(rf"{OURS}(\.\w+)+", name := ast.unparse(node)):
            names.add(name)  # after `import course_lib`
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= names_in_string(node.value)
    return names


def names_in_string(text: str) -> set[str]:
    """What a string names of ours: a module as it is, as "module:function", or in Python as for `python -c`.

    Of f"courseware.exercises.lesson_{number}", what stands before the number.
    """
    if module := re.fullmatch(rf"({OURS}(?:\.\w+)+)(\.|:\w+)?", text):
        return {module[1]}
    try:
        return set(filter(is_ours, names_imported(text))) if re.search(OURS, text) else set()
    except SyntaxError:  # prose
        return set()


def imports_by_variable(source: str) -> bool:
    """Whether a piece of Python imports a module whose name it holds in a variable."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return any(
        re.search(r"\b(import_module|__import__|run_module)$", ast.unparse(call.func))
        and not isinstance(call.args[0], ast.Constant | ast.JoinedStr)
        for call in calls
    )


@cache
def imports_of(module: str) -> frozenset[str]:
    """Every dotted name that a module of ours imports."""
    path = FILES[module]
    return frozenset(names_imported(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts)))


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    return {module: set(map(resolved, filter(is_ours, imports_of(module)))) - {module} for module in FILES}


def reachable(part: str) -> set[str]:
    return {part}.union(*map(reachable, MAY_IMPORT[part]))


@pytest.mark.parametrize(
    "source",
    [
        "import course_lib.kernels.forward as f",
        "import course_lib\ncourse_lib.kernels.flash_attention",
        "import importlib\nimportlib.import_module(f'course_lib.kernels.{name}')",
        "for name in ('numpy', 'course_lib.kernels'):\n    load(name)",
        "run('course_lib.kernels.forward:serve', folder)",
        "subprocess.run([sys.executable, '-m', 'course_lib.kernels.triton_basics'])",
        "subprocess.run([sys.executable, '-c', 'import sys; from course_lib import kernels; kernels.f()'])",
    ],
)
def test_ways_to_import_that_no_module_takes_are_seen(source):
    names = names_imported(source, "course_lib.reference")
    assert "course_lib.kernels" in {part_of(resolved(name)) for name in filter(is_ours, names)}


def test_an_import_by_variable_is_known():
    assert imports_by_variable("x = __import__(a + b)")
    assert {name for name, path in FILES.items() if imports_by_variable(path.read_text())} == IMPORT_BY_VARIABLE


def test_each_part_imports_what_it_may_and_has_no_permission_that_it_does_not_use():
    found = {}
    for module, targets in arrows().items():
        part = part_of(module)
        found[part] = found.get(part, set()) | {part_of(target) for target in targets} - {part}
    assert found.keys() == MAY_IMPORT.keys(), "enter a new part in tests/imports.toml, with what it may import"
    wrong = {part: names ^ MAY_IMPORT[part] for part, names in found.items() if names != MAY_IMPORT[part]}
    assert wrong == {}, "it imports what it may not, or need not be allowed to"


def test_there_are_no_circles():
    graphlib.TopologicalSorter(arrows()).prepare()  # a CycleError names the circle


def test_the_drawing_of_the_parts_is_true():
    """In docs/maintainers.md, a part stands above all that it imports."""
    page = (ROOT / "docs/maintainers.md").read_text()
    (drawing,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    height, package = {}, ""
    for line, text in enumerate(drawing.splitlines()):
        words = text.replace("/", "").split()
        package, words = (words[0], words[1:]) if words[0] in PACKAGES else (package, words)
        height |= {f"{package}.{word}": -line for word in words if not word.startswith("-")}
    assert height.keys() == MAY_IMPORT.keys() - {"course_lib.__init__", "courseware.__init__"}
    assert not [(part, name) for part in height for name in MAY_IMPORT[part] if height[part] <= height[name]]


def test_reference_and_kernels_state_the_same_mathematics_independently():
    """Not even through a third part, so that a test that compares the two compares two things."""
    shared = set().union(*map(reachable, ("course_lib.machine", "course_lib.traffic", "course_lib.hardware")))
    assert "course_lib.kernels" not in reachable("course_lib.reference") | shared
    assert "course_lib.reference" not in reachable("course_lib.kernels") | shared


def test_nothing_imports_exercises_notebooks_or_tests():
    """The registry of checks finds exercises by their folders. Those of a lesson do not import another lesson's."""
    assert not [part for part, allowed in MAY_IMPORT.items() if "courseware.exercises" in allowed]
    assert {"08", None} < set(map(lesson_of, FILES))
    for module, targets in arrows().items():
        assert not {name.split(".")[0] for name in imports_of(module)} & {"notebooks", "work", "tests"}, module
        assert {lesson_of(target) for target in targets} <= {None, lesson_of(module)}, module


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks/source").glob("*.md")), ids=lambda path: path.stem)
def test_notebooks_import_both_packages_but_no_exercises(path):
    cells = jupytext.read(path, fmt="md:myst").cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    names = set(filter(is_ours, names_imported(code)))
    assert names and not [name for name in names if part_of(resolved(name)) == "courseware.exercises"]


def test_the_mathematics_needs_numpy_alone():
    for module in FILES:
        if module.startswith(NUMPY_ONLY):
            names = {name for name in imports_of(module) if not name.startswith(NUMPY_ONLY)}
            others = {name.split(".")[0] for name in names} - sys.stdlib_module_names
            assert others <= {"numpy", "course_lib"}, module


def test_checks_know_no_lesson():
    for module, path in FILES.items():
        if part_of(module) == "courseware.checks":
            named = re.findall(r"lesson_\d+|\b\d\d\.[a-z_]+", ast.unparse(parsed(path.read_text())))
            assert not named, f"{path.name} names {named}"
