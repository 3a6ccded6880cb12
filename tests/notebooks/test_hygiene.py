"""Rules that every committed notebook follows. Each rule is also tested on a small notebook that breaks it."""

import ast
import base64
import copy
import functools
import inspect
import itertools
import re
import struct
from dataclasses import dataclass

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from courseware.checks import registry
from courseware.figures import base as figures
from tools import authoring

MARKDOWN_LINES = 12
CODE_LINES = 25
EXERCISE_LINES = 45
NOTEBOOK_BYTES = 600_000

# Each of these is refused, or drawn differently, by one of KaTeX, GitHub and JupyterLab's MathJax.
UNSAFE_LATEX = re.compile(
    r"\\(label|ref|eqref|tag|newcommand|renewcommand|def|require|operatorname|bm|mathbbm|coloneqq|textsc|color)\b"
    r"|\\begin\{(align|equation|eqnarray|gather|multline|split)\*?\}"
)
EMOJI = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u2b50\ufe0f]")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|(?<!\\)\$.*?(?<!\\)\$", re.DOTALL)


@dataclass
class Lesson:
    name: str
    notebook: nbformat.NotebookNode  # as committed
    twin: nbformat.NotebookNode  # what its text describes

    def cells(self, cell_type="", tag=""):
        cells = [cell for cell in self.notebook.cells if cell.cell_type.startswith(cell_type)]
        return [cell for cell in cells if not tag or tag in tags(cell)]


def tags(cell):
    return cell.metadata.get("tags", [])


def place(cell):
    return f"cell {cell.id}: {cell.source[:60]!r}"


def prose(cell):
    """The cell's markdown without code, mathematics, addresses and HTML tags."""
    text = FORMULA.sub(" ", CODE.sub(" ", cell.source))
    text = re.sub(r"!\[(.*?)\]\([^)]*\)", r"\1", text)  # an image may be the text of a link
    return re.sub(r"\[(.*?)\]\([^)]*\)|<[^>]*>", r"\1", text)


# The rules. Each takes a Lesson and asserts.


def valid_format(lesson):
    nbformat.validate(lesson.notebook)


def in_step_with_its_twin(lesson):
    assert len(lesson.notebook.cells) == len(lesson.twin.cells), "run `make notebooks`"
    assert lesson.notebook.metadata == lesson.twin.metadata, "run `make notebooks`"
    for cell, twin in zip(lesson.notebook.cells, lesson.twin.cells, strict=True):
        for part in ("id", "cell_type", "source", "metadata"):
            assert cell[part] == twin[part], f"run `make notebooks`: {part} of {place(cell)}"


def executed_in_order_and_nothing_went_wrong(lesson):
    counts = [cell.execution_count for cell in lesson.cells("code")]
    assert counts == list(range(1, len(counts) + 1))
    for cell in lesson.cells("code"):
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", place(cell)


def plain_python_that_nbval_runs(lesson):
    for cell in lesson.cells("code"):
        ast.parse(cell.source)  # a magic, a shell command or a `?` is a SyntaxError
        assert not re.search(r"# *(NBVAL|PYTEST_VALIDATE)_", cell.source), place(cell)
        assert not {"nbval-skip", "raises-exception"} & set(tags(cell)), place(cell)


def short_cells_and_a_small_file(lesson):
    for cell in lesson.notebook.cells:
        limit = EXERCISE_LINES if "exercise" in tags(cell) else CODE_LINES
        limit = MARKDOWN_LINES if cell.cell_type == "markdown" else limit
        lines = len(cell.source.splitlines())
        assert lines <= limit, f"{lines} lines, {limit} allowed: {place(cell)}"
    assert len(nbformat.writes(lesson.notebook).encode()) < NOTEBOOK_BYTES


def explorers_are_pictures(lesson):
    """Without a kernel an explorer is its first picture and the numbers below it; its widget is gone."""
    for cell in lesson.cells("code"):
        assert not any("widget" in kind for output in cell.outputs for kind in output.get("data", {})), place(cell)
    for cell in lesson.cells(tag="explorer"):
        shown = [output.get("data", {}).get("text/html", "") for output in cell.outputs]
        assert "nbval-ignore-output" in tags(cell), place(cell)
        assert len(shown) == 1 and "<img " in shown[0], place(cell)


def pictures_say_what_they_show(lesson):
    """None is a bare PNG, or stands in markdown. Of several in one output, the first has the text that tells of all.

    A PNG has a width and twice as many pixels.
    """
    for cell in lesson.cells("markdown"):
        assert not re.search(r"base64|[A-Za-z0-9+/]{200}", cell.source) and not cell.get("attachments"), place(cell)
    for cell in lesson.cells("code"):
        for data in (output.get("data", {}) for output in cell.outputs):
            assert "image/png" not in data, place(cell)
            for number, image in enumerate(re.findall(r"<img [^>]*>", data.get("text/html", ""))):
                found = re.search(r'alt="(.+?)"(?: width="(\d+)".*)? src="data:image/(.+);base64,(.*?)"', image)
                assert found, place(cell)
                alt, width, kind, content = found.groups()
                assert number > 0 or len(alt) >= 40, place(cell)
                if kind == "png":
                    pixels, _ = struct.unpack(">II", base64.b64decode(content)[16:24])
                    assert width and pixels == 2 * int(width), place(cell)


def predictions_are_kept_and_compared(lesson):
    """Each under an id of its own, and before the next one is asked."""
    code = "\n".join(cell.source for cell in lesson.cells("code"))
    assert "guess = None" not in code
    steps = re.findall(r'\bpredict\(\s*"([^"]+)"|\.compare\(', code)  # an id, or nothing for a comparison
    ids = [step for step in steps if step]
    assert len(set(ids)) == len(ids) and all(name.startswith(lesson.name[:2] + ".") for name in ids), ids
    for step, following in itertools.pairwise([*steps, "the end"]):
        assert not (step and following), f"{step} is not compared before {following}"


def quizzes_hold_no_answers(lesson):
    for cell in lesson.cells(tag="quiz"):
        nodes = list(ast.walk(ast.parse(cell.source)))
        assert not any(isinstance(node, ast.Dict | ast.List | ast.Tuple) for node in nodes), place(cell)


def stubs_repeat_the_answers(lesson):
    above = "\n".join(cell.source for cell in lesson.cells("code")).partition("raise NotImplementedError")[0]
    for cell in lesson.cells(tag="exercise"):
        assert {"import math", "import numpy as np"} <= set(above.splitlines()), "what lesson 00 says that answers use"
        answer = registry.find(cell.metadata.exercise).answer
        (expected,) = ast.parse(inspect.getsource(answer)).body
        stub = ast.parse(cell.source).body[-1]
        assert ast.get_docstring(stub) == ast.get_docstring(expected), place(cell)
        expected.body[1:] = ast.parse("raise NotImplementedError").body
        assert ast.unparse(stub) == ast.unparse(expected), place(cell)


def checks_follow_their_stubs(lesson):
    code = lesson.cells("code")
    assert len(lesson.cells(tag="check")) == len(lesson.cells(tag="exercise"))
    for stub, check in zip(code, code[1:], strict=False):
        if "exercise" in tags(stub):
            name = ast.parse(stub.source).body[-1].name
            # With its import, because it is the cell that is run after a restart.
            expected = f'from courseware import check\n\ncheck("{stub.metadata.exercise}", {name})'
            assert "check" in tags(check) and check.source == expected, place(check)


def formulas_are_drawn_everywhere(lesson):
    for cell in lesson.cells("markdown"):
        assert cell.source.count("$$") % 2 == 0, place(cell)
        assert not re.search(r"\\[(\[]", prose(cell)), f"GitHub draws $ and $$ alone: {place(cell)}"
        for formula in FORMULA.findall(CODE.sub(" ", cell.source)):
            assert not UNSAFE_LATEX.search(formula), f"{formula} in {place(cell)}"
            assert formula.startswith("$$") or not re.search(r"^\$\s|\s\$$", formula), f"{formula} in {place(cell)}"


def plain_words(lesson):
    for cell in lesson.notebook.cells:
        assert not EMOJI.search(cell.source), place(cell)
    for cell in lesson.cells("markdown"):
        assert not re.search(r"!|\bsimply\b", prose(cell), flags=re.IGNORECASE), place(cell)


# A small lesson that keeps every rule, and how each rule is broken by damage to it.


@functools.cache
def start_here():
    return authoring.read_text(authoring.SOURCE / "00_start_here.md").cells


def good_lesson():
    url = authoring.repository()
    exercise, check = (next(cell for cell in start_here() if tag in tags(cell)) for tag in ("exercise", "check"))
    picture = figures.Picture(1, 2, alt="A line that rises from 1 to 2 over the years 1970 to 1980.")
    shown = new_output("display_data", data={"text/html": picture._repr_html_()})
    explorer = {"tags": ["explorer", "nbval-ignore-output"]}
    cells = [
        new_markdown_cell(f"# Title\n\n{authoring.badge('05_online_softmax', url)}\n\nWhy `a != b`?"),
        new_code_cell(authoring.bootstrap_source(url), metadata=authoring.BOOTSTRAP_METADATA),
        new_code_cell("import math\nimport numpy as np\n\nshow()", outputs=[shown]),
        new_code_cell("explore()", outputs=[shown], metadata=explorer),
        copy.deepcopy(exercise),
        copy.deepcopy(check),
        new_markdown_cell("$$\n\\begin{aligned} a &= b \\end{aligned}\n$$\n\nFrom $a$ to $b$ costs $n!$."),
        new_code_cell('quiz("00")', metadata={"tags": ["quiz"]}),
    ]
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    notebook = new_notebook(cells=cells, metadata=authoring.NOTEBOOK_METADATA | {"title": "Title"})
    return Lesson("05_online_softmax", notebook, copy.deepcopy(notebook))


CELLS = ("title", "bootstrap", "figure", "explorer", "exercise", "check", "formulas", "quiz")


def shown(kind, content):
    return new_output("display_data", data={kind: content})


# (cell, old, new): in its source, or in the picture that is its output, old becomes new. Or what is done to the cells.
DAMAGES = {
    valid_format: ["figure.colour = 'red'"],
    in_step_with_its_twin: [
        ("figure", "show()", "show( )"),
        "figure.metadata.tags = ['nbval-ignore-output']",
        "notebook.cells.pop()",
        "notebook.metadata.language_info.version = '3.11.7'",
    ],
    executed_in_order_and_nothing_went_wrong: [
        "figure.execution_count = None",
        "figure.outputs.append(new_output('error', ename='ValueError', evalue='', traceback=[]))",
        "figure.outputs.append(new_output('stream', name='stderr', text='UserWarning'))",
    ],
    plain_python_that_nbval_runs: [
        ("figure", "show()", "%matplotlib inline"),
        ("figure", "show()", "# NBVAL_SKIP\nshow()"),
        "figure.metadata.tags = ['raises-exception']",
    ],
    short_cells_and_a_small_file: [
        ("formulas", "From", "\n" * 12 + "From"),
        ("figure", "show()", "show()\n" * 26),
        ("exercise", "Returns", "\n" * 40 + "Returns"),
        "figure.outputs.append(shown('text/html', 'A' * 600_000))",
    ],
    explorers_are_pictures: [
        "explorer.outputs.clear()",
        "explorer.outputs.append(shown('text/plain', 'HBox()'))",
        "explorer.metadata.tags = ['explorer']",
        "check.outputs.append(shown('application/vnd.jupyter.widget-view+json', ''))",
    ],
    pictures_say_what_they_show: [
        "figure.outputs.append(shown('image/png', 'iVBORw0KGgo='))",
        """figure.outputs.append(shown('text/html', '<img src="data:image/svg+xml;base64,PHN2Zz4=">'))""",
        ("figure", "A line that rises from 1 to 2 over", ""),
        ("figure", 'width="200"', 'width="400"'),
        ("figure", 'width="200"', ""),
        ("formulas", "From", "![](data:image/png;base64,iVBORw0KGgo=)"),
        "title.attachments = {'a.png': {}}",
    ],
    predictions_are_kept_and_compared: [
        ("figure", "show()", "guess = None"),
        ("figure", "show()", 'g = predict("05.x", "?", number=True)'),
        ("figure", "show()", 'predict("04.x", "?", "ab").compare("a")'),
        ("figure", "show()", 'predict("05.x", "?", "ab").compare("a")\n' * 2),
    ],
    quizzes_hold_no_answers: [("quiz", '"00"', '[{"answers": [{"correct": True}]}]')],
    stubs_repeat_the_answers: [
        ("figure", "import math", "import cmath"),
        ("exercise", "head_dim)", "head_dim=64)"),
        ("exercise", "softmax_scale", "scale"),
        ("exercise", "softmax", "soft-max"),
        ("exercise", "raise NotImplementedError", "return head_dim**-0.5"),
    ],
    checks_follow_their_stubs: [
        ("check", "00.softmax_scale", "00.softmax_scales"),
        ("check", "from courseware import check\n\n", ""),
        "notebook.cells.remove(check)",
    ],
    formulas_are_drawn_everywhere: [
        ("formulas", "aligned", "align*"),
        ("formulas", "$$\n\n", "\n\n"),
        *(("formulas", "$a$", text) for text in (r"$\operatorname{a}$", "$ a $", r"\(a\)")),
    ],
    plain_words: [("formulas", "From", text) for text in ("\N{ROCKET} From", "Great! From", "Simply from")],
}


@pytest.mark.parametrize("rule", DAMAGES, ids=lambda rule: rule.__name__)
def test_each_rule_rejects_what_it_is_about(rule):
    for damage in DAMAGES[rule]:
        lesson = good_lesson()
        rule(lesson)
        cells = dict(zip(CELLS, lesson.notebook.cells, strict=True))
        if isinstance(damage, tuple):
            name, old, new = damage
            html = cells["figure"].outputs[0].data
            place, key = (cells[name], "source") if old in cells[name].source else (html, "text/html")
            assert old in place[key]
            place[key] = place[key].replace(old, new)
        else:
            exec(damage, globals() | cells | {"notebook": lesson.notebook})
        with pytest.raises((AssertionError, SyntaxError, nbformat.ValidationError)):
            rule(lesson)
            pytest.fail(f"not noticed: {damage}")


NAMES = sorted(path.stem for path in authoring.SOURCE.glob("*.md"))


def test_every_text_has_its_notebook_and_the_reverse():
    assert {"00_start_here", "05_online_softmax"} <= set(NAMES)
    assert NAMES == sorted(path.stem for path in authoring.NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_notebook_keeps_every_rule(name):
    notebook, path = nbformat.read(authoring.NOTEBOOKS / f"{name}.ipynb", as_version=4), authoring.SOURCE / f"{name}.md"
    lesson = Lesson(name, notebook, authoring.read_text(path))
    for rule in DAMAGES:
        rule(lesson)
    text = path.read_text(encoding="utf-8")
    assert authoring.stamp(text, name, authoring.repository()) == text, "no badge or first cell: run `make stamp`"
