"""Who may import whom: layers without circles, and no permission that nobody uses.

An import counts wherever it stands, inside a function too. So does a module that is named in a string: as an argument
of `import_module`, as the "module:function" that another process is to call, or in a piece of Python.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK_TEXTS = sorted((ROOT / "notebooks/source").glob("*.md"))

# Which parts of course_lib each part may import. A part is a folder of course_lib or a module directly in it. A new
# part, and every new arrow, has to be entered here.
MAY_IMPORT = {
    "runtime": set(),
    "editing": set(),
    "workspace": set(),
    "hardware": set(),
    "masks": set(),
    "paged_cache": set(),
    "traffic": {"masks"},
    "machine": {"traffic"},
    "pipeline": {"hardware"},
    "reference": {"machine", "masks"},
    "faster_interpreter": set(),
    "language": {"runtime", "faster_interpreter"},
    "kernels": {"runtime", "language", "masks"},
    "tiny_model": set(),
    "serving": {"kernels", "paged_cache", "tiny_model"},
    "tracing": {"runtime"},
    "tracer": {"runtime", "tracing"},
    "measure": {"runtime", "language", "editing", "hardware", "masks", "traffic", "kernels", "serving", "tiny_model"},
    "explorers": {
        "hardware", "masks", "traffic", "machine", "pipeline", "reference", "kernels", "measure", "serving",
        "tiny_model",
    },
    "components": set(),
    "player": {"editing"},
    "grading": {
        "components", "runtime", "editing", "language", "machine", "kernels", "tracing", "tracer", "player",
        "exercises",
    },
    "bug_hunt": {"runtime", "editing", "kernels", "measure"},
    "exercises": {
        "language", "masks", "traffic", "paged_cache", "machine", "pipeline", "reference", "kernels", "measure",
        "bug_hunt", "grading",
    },
    "__init__": {"components", "grading"},
    "__main__": {"runtime", "grading", "measure"},
}  # fmt: skip
NUMPY_ONLY = {"hardware", "machine", "pipeline", "traffic", "masks", "paged_cache", "reference"}

# The one arrow that may close a circle: grading finds the lessons by number when a learner needs one, and the lessons
# are made of grading's classes.
FOUND_BY_NUMBER = ("grading", "exercises")

# Modules that import a name held in a variable. Where the name is a part of course_lib, it stands in a string that
# this test reads: in the same module, or in a call of `interpreter_process.run`.
IMPORT_BY_VARIABLE = {"course_lib.__main__", "course_lib.tracing.interpreter_process", "course_lib.tracing.remote"}

# What course_lib itself offers without being a part, and the module that it comes from.
GRADING = ("check", "hint", "solution", "restore", "progress", "quiz")
OFFERED = {f"course_lib.{name}": "course_lib.grading" for name in GRADING}
OFFERED |= {f"course_lib.{name}": "course_lib.components" for name in ("predict", "table")}


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


FILES = {module_of(path): path for path in sorted((ROOT / "course_lib").rglob("*.py"))}


def part_of(module: str) -> str:
    """ "kernels" of "course_lib.kernels.flash"; "__init__" of course_lib itself."""
    return [*module.split("."), "__init__"][1]


def lesson_of(module: str) -> str | None:
    """ "08" of course_lib.exercises.lesson_08, be it a module or a folder of modules."""
    found = re.match(r"course_lib\.exercises\.lesson_(\d+)", module)
    return found and found[1]


def resolved(name: str) -> str:
    """The module of course_lib that a dotted name leads to."""
    name = OFFERED.get(".".join(name.split(".")[:2]), name)
    while name not in FILES:
        name = name.rpartition(".")[0]
    return name


def names_imported(source: str, package: str = "") -> set[str]:
    """Dotted names that a piece of Python, in a module of `package`, imports; `from a import b` is a.b."""
    names = set()
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside_f_strings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            names |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"course_lib(\.\w+)+", name := ast.unparse(node)):
            names.add(name)  # after `import course_lib`
        elif isinstance(node, ast.JoinedStr):
            # f"course_lib.exercises.lesson_{number}" names the folder.
            text = "".join(part.value if isinstance(part, ast.Constant) else "placeholder" for part in node.values)
            names |= module_named_by(text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings | inside_f_strings:
                names |= module_named_by(node.value) or imports_in_string(node.value)
    return names


def module_named_by(text: str) -> set[str]:
    """The module of course_lib that a string is the name of, as it is or as "module:function"."""
    return {text.partition(":")[0]} if re.fullmatch(r"course_lib(\.\w+)+(:\w+)?", text) else set()


def imports_in_string(text: str) -> set[str]:
    """What a string imports from course_lib if it is Python, as for `python -c`."""
    if "course_lib" not in text:
        return set()
    try:
        return {name for name in names_imported(text) if name.startswith("course_lib")}
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
    """Every dotted name that a module of course_lib imports."""
    path = FILES[module]
    return frozenset(names_imported(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts)))


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> the modules of course_lib that it imports."""
    return {
        module: {resolved(name) for name in imports_of(module) if name.split(".")[0] == "course_lib"} - {module}
        for module in FILES
    }


def between_parts(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    parts = {}
    for module, targets in modules.items():
        parts.setdefault(part_of(module), set()).update(map(part_of, targets))
    return {part: targets - {part} for part, targets in parts.items()}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """A way from a node back to itself; empty if there is none."""
    finished = set()

    def search(node, way):
        if node in way:
            return [*way[way.index(node) :], node]
        if node in finished:
            return []
        for target in sorted(graph.get(node, ())):
            if found := search(target, [*way, node]):
                return found
        finished.add(node)
        return []

    return next(filter(None, (search(node, []) for node in sorted(graph))), [])


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found, left = set(), [start]
    while left:
        for target in graph.get(left.pop(), set()) - found:
            found.add(target)
            left.append(target)
    return found


def code_of(text: Path) -> str:
    """The code of a notebook's text twin."""
    cells = re.findall(r"^```\{code-cell\}.*?\n(.*?)^```", text.read_text(), re.MULTILINE | re.DOTALL)
    options = r"\A---\n(?s:.*?)^---\n|^:.*\n"  # of a cell, as a block or line by line
    return "\n".join(re.sub(options, "", cell, flags=re.MULTILINE) for cell in cells)


@pytest.mark.parametrize(
    "source",
    [
        "import course_lib.kernels",
        "import course_lib.kernels.flash as f",
        "import course_lib\ncourse_lib.kernels.flash_attention",
        "from course_lib import machine, kernels",
        "from course_lib.kernels import flash_attention",
        "from .. import kernels",
        "from ..kernels.flash import flash_attention",
        "def f():\n    from course_lib.kernels import flash",
        "import importlib\nimportlib.import_module('course_lib.kernels.flash')",
        "import importlib\nimportlib.import_module(f'course_lib.kernels.{name}')",
        "for name in ('numpy', 'course_lib.kernels'):\n    load(name)",
        "run('course_lib.kernels.flash:serve', folder)",
        "subprocess.run([sys.executable, '-m', 'course_lib.kernels.warmup'])",
        "subprocess.run([sys.executable, '-c', 'import sys; from course_lib import kernels; kernels.f()'])",
    ],
)
def test_every_way_to_import_is_seen(source):
    names = names_imported(source, "course_lib.reference")
    assert "kernels" in {part_of(resolved(name)) for name in names if name.startswith("course_lib")}


def test_a_module_that_prose_or_a_docstring_names_is_not_imported():
    assert not names_imported('"""As course_lib.kernels."""\nx = "In a script, import course_lib.kernels first."')


@pytest.mark.parametrize("call", ["importlib.import_module(name)", "import_module(name)", "__import__(a + b)"])
def test_an_import_by_variable_is_seen(call):
    assert imports_by_variable(f"x = {call}")
    assert not imports_by_variable("importlib.import_module('numpy'), importlib.import_module(f'numpy.{x}')")


def test_a_circle_is_found_wherever_it_is():
    line = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert circle_in(line) == [] and circle_in(line | {"d": {"b", "c"}}) == []
    assert circle_in(line | {"c": {"b"}}) == ["b", "c", "b"]
    assert circle_in(line | {"c": {"a"}, "d": {"c"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("part", sorted({part_of(module) for module in FILES} | MAY_IMPORT.keys()))
def test_each_part_imports_what_it_may_and_has_no_permission_that_it_does_not_use(part):
    assert part in MAY_IMPORT, f"{part} is new: enter in MAY_IMPORT what it may import"
    assert between_parts(arrows()).get(part) == MAY_IMPORT[part]


def test_no_circle_between_parts():
    graph = {part: targets - {"__init__"} for part, targets in MAY_IMPORT.items()}
    start, end = FOUND_BY_NUMBER
    assert end in graph[start] and circle_in(graph), "no longer a circle: FOUND_BY_NUMBER can go"
    assert circle_in(graph | {start: graph[start] - {end}}) == []


def test_no_circle_between_modules():
    assert circle_in(arrows()) == []


def test_an_import_by_variable_is_known():
    assert {name for name, path in FILES.items() if imports_by_variable(path.read_text())} == IMPORT_BY_VARIABLE


def test_reference_and_kernels_state_the_same_mathematics_independently():
    """Not even through a third part, so that a test that compares the two compares two things."""
    for part in ("reference", "machine", "traffic", "hardware", "masks"):
        assert "kernels" not in reachable(MAY_IMPORT, part)
    for part in ("kernels", "machine", "traffic", "hardware", "masks"):
        assert "reference" not in reachable(MAY_IMPORT, part)


def test_only_grading_imports_exercises():
    assert [part for part, allowed in MAY_IMPORT.items() if "exercises" in allowed] == ["grading"]


def test_no_lesson_s_exercises_import_another_lesson_s():
    strangers = [
        f"{module} imports {target}"
        for module, targets in arrows().items()
        for target in targets
        if part_of(module) == "exercises" and lesson_of(target) not in (None, lesson_of(module))
    ]
    assert not strangers


def test_lessons_are_told_apart_as_modules_and_as_folders():
    assert lesson_of("course_lib.exercises.lesson_08") == lesson_of("course_lib.exercises.lesson_08.flash") == "08"
    assert lesson_of("course_lib.exercises.common.generators") is None is lesson_of("course_lib.kernels.flash")


@pytest.mark.parametrize("text", NOTEBOOK_TEXTS, ids=lambda path: path.stem)
def test_notebooks_import_course_lib_but_not_its_exercises(text):
    names = {name for name in names_imported(code_of(text)) if name.startswith("course_lib")}
    assert names and not [name for name in names if part_of(resolved(name)) == "exercises"]


def test_the_library_imports_neither_notebooks_nor_tests():
    for module in FILES:
        assert not {name.split(".")[0] for name in imports_of(module)} & {"notebooks", "work", "tests"}, module


def test_the_mathematics_needs_numpy_alone():
    for module in FILES:
        if part_of(module) in NUMPY_ONLY:
            others = {name.split(".")[0] for name in imports_of(module)} - sys.stdlib_module_names
            assert others <= {"numpy", "course_lib"}, module


def test_grading_knows_no_lesson():
    for module, path in FILES.items():
        if part_of(module) == "grading":
            words = "\n".join(strings_and_names(path.read_text()))
            named = re.findall(r"lesson_\d+|\b\d\d\.[a-z_]+", words)
            assert not named, f"{path.name} names {named}"


def strings_and_names(source: str):
    """Identifiers, imported modules and string constants of `source`, docstrings left out."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield ast.unparse(node)
