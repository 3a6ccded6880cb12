"""Rules that every committed notebook follows. Each rule is also tested on a small notebook that breaks it."""

import ast
import base64
import copy
import inspect
import itertools
import re
import struct
from dataclasses import dataclass

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from courseware.checks import registry
from courseware.explorers import figures
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


@dataclass
class Lesson:
    name: str
    notebook: nbformat.NotebookNode  # as committed
    twin: nbformat.NotebookNode  # what its text describes

    def cells(self, cell_type="", tag=""):
        return [
            cell
            for cell in self.notebook.cells
            if cell.cell_type.startswith(cell_type) and (not tag or tag in tags(cell))
        ]


def tags(cell):
    return cell.metadata.get("tags", [])


def place(cell):
    return f"cell {cell.id}: {cell.source[:60]!r}"


def prose(cell):
    """The cell's markdown without code, mathematics, addresses and HTML tags."""
    text = re.sub(r"```.*?```|`[^`\n]*`", " ", cell.source, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|(?<!\\)\$.*?(?<!\\)\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"!\[(.*?)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\[(.*?)\]\([^)]*\)|<[^>]*>", r"\1", text)


def mathematics(cell):
    """The display and inline formulas of a markdown cell, delimiters included."""
    text = re.sub(r"```.*?```|`[^`\n]*`", " ", cell.source, flags=re.DOTALL)
    return re.findall(r"\$\$.*?\$\$|(?<!\\)\$.*?(?<!\\)\$", text, flags=re.DOTALL)


# The rules. Each takes a Lesson and asserts.


def in_step_with_its_twin(lesson):
    assert len(lesson.notebook.cells) == len(lesson.twin.cells), "run `make notebooks`"
    for cell, twin in zip(lesson.notebook.cells, lesson.twin.cells, strict=True):
        for part in ("id", "cell_type", "source", "metadata"):
            assert cell[part] == twin[part], f"run `make notebooks`: {part} of {place(cell)}"


def neutral_metadata(lesson):
    assert lesson.notebook.metadata == authoring.notebook_metadata(lesson.notebook)


def executed_in_order(lesson):
    counts = [cell.execution_count for cell in lesson.cells("code")]
    assert counts == list(range(1, len(counts) + 1))


def nothing_went_wrong(lesson):
    for cell in lesson.cells("code"):
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", place(cell)


def nothing_escapes_nbval(lesson):
    for cell in lesson.cells("code"):
        assert not re.search(r"# *(NBVAL|PYTEST_VALIDATE)_", cell.source), place(cell)
        assert not {"nbval-skip", "raises-exception"} & set(tags(cell)), place(cell)


def opens_with_badge_and_bootstrap(lesson):
    url = authoring.repository_url()
    title, first_code = lesson.notebook.cells[:2]
    assert title.source.startswith("# ") and authoring.badge(lesson.name, url) in title.source.splitlines()
    assert first_code.source == authoring.bootstrap_source(url)
    assert first_code.metadata == authoring.BOOTSTRAP_METADATA
    assert lesson.cells(tag="bootstrap") == [first_code]


def short_cells(lesson):
    for cell in lesson.notebook.cells:
        limit = EXERCISE_LINES if "exercise" in tags(cell) else CODE_LINES
        limit = MARKDOWN_LINES if cell.cell_type == "markdown" else limit
        lines = len(cell.source.splitlines())
        assert lines <= limit, f"{lines} lines, {limit} allowed: {place(cell)}"


def no_base64_in_markdown(lesson):
    for cell in lesson.cells("markdown"):
        assert not re.search(r"base64|[A-Za-z0-9+/]{200}", cell.source), place(cell)
        assert not cell.get("attachments"), place(cell)


def small_file(lesson):
    assert len(nbformat.writes(lesson.notebook).encode()) < NOTEBOOK_BYTES


def plain_python(lesson):
    for cell in lesson.cells("code"):
        ast.parse(cell.source)  # a magic, a shell command or a `?` is a SyntaxError


def explorers_are_pictures(lesson):
    """Without a kernel an explorer is its first picture and the numbers below it; its widget is gone."""
    for cell in lesson.cells(tag="explorer"):
        shown = [output.get("data", {}).get("text/html", "") for output in cell.outputs]
        assert "nbval-ignore-output" in tags(cell), place(cell)
        assert len(shown) == 1 and "<img " in shown[0], place(cell)


def pictures_say_what_they_show(lesson):
    """A picture has alternative text of some length, a width, and twice as many pixels; none is a bare PNG."""
    for cell in lesson.cells("code"):
        for output in cell.outputs:
            data = output.get("data", {})
            assert "image/png" not in data, place(cell)
            for image in re.findall(r"<img [^>]*>", data.get("text/html", "")):
                found = re.search(r'alt="(.*?)" width="(\d+)".*;base64,(.*?)"', image)
                assert found, place(cell)
                alt, width, source = found.groups()
                pixels, _ = struct.unpack(">II", base64.b64decode(source)[16:24])
                assert len(alt) >= 40 and pixels == 2 * int(width), place(cell)


def no_widget_is_kept(lesson):
    for cell in lesson.cells("code"):
        for output in cell.outputs:
            assert not any("widget" in kind for kind in output.get("data", {})), place(cell)


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
    for cell in lesson.cells(tag="exercise"):
        answer = registry.find(cell.metadata.exercise).answer
        (expected,) = ast.parse(inspect.getsource(answer)).body
        stub = ast.parse(cell.source).body[-1]
        assert isinstance(stub, ast.FunctionDef) and stub.name == expected.name, place(cell)
        for part in ("args", "returns", "decorator_list"):
            assert dump(getattr(stub, part)) == dump(getattr(expected, part)), f"{part} of {place(cell)}"
        assert ast.get_docstring(stub) == ast.get_docstring(expected), place(cell)
        assert [ast.unparse(line) for line in stub.body[1:]] == ["raise NotImplementedError"], place(cell)


def dump(node):
    return [dump(item) for item in node] if isinstance(node, list) else node and ast.dump(node)


def checks_follow_their_stubs(lesson):
    code = lesson.cells("code")
    assert len(lesson.cells(tag="check")) == len(lesson.cells(tag="exercise"))
    for stub, check in zip(code, code[1:], strict=False):
        if "exercise" in tags(stub):
            name = ast.parse(stub.source).body[-1].name
            assert "check" in tags(check), place(check)
            # With its import, because it is the cell that is run after a restart.
            expected = f'from courseware import check\n\ncheck("{stub.metadata.exercise}", {name})'
            assert check.source == expected, place(check)


def renders_everywhere(lesson):
    for cell in lesson.cells("markdown"):
        assert cell.source.count("$$") % 2 == 0, place(cell)
        assert not re.search(r"\\[(\[]", prose(cell)), f"GitHub draws $ and $$ alone: {place(cell)}"
        for formula in mathematics(cell):
            assert not UNSAFE_LATEX.search(formula), f"{formula} in {place(cell)}"
            inline = not formula.startswith("$$")
            assert not (inline and re.search(r"^\$\s|\s\$$", formula)), f"{formula} in {place(cell)}"


def no_emoji(lesson):
    for cell in lesson.notebook.cells:
        assert not EMOJI.search(cell.source), place(cell)


def plain_words(lesson):
    for cell in lesson.cells("markdown"):
        assert not re.search(r"!|\bsimply\b", prose(cell), flags=re.IGNORECASE), place(cell)


def valid_format(lesson):
    nbformat.validate(lesson.notebook)


def links_to_the_glossary(lesson):
    assert "(glossary.md)" in lesson.notebook.cells[0].source


RULES = [
    valid_format,
    links_to_the_glossary,
    in_step_with_its_twin,
    neutral_metadata,
    executed_in_order,
    nothing_went_wrong,
    nothing_escapes_nbval,
    opens_with_badge_and_bootstrap,
    short_cells,
    no_base64_in_markdown,
    small_file,
    plain_python,
    explorers_are_pictures,
    pictures_say_what_they_show,
    no_widget_is_kept,
    predictions_are_kept_and_compared,
    quizzes_hold_no_answers,
    stubs_repeat_the_answers,
    checks_follow_their_stubs,
    renders_everywhere,
    no_emoji,
    plain_words,
]

NAMES = sorted(path.stem for path in authoring.SOURCE.glob("*.md"))


def test_every_text_has_its_notebook_and_the_reverse():
    assert {"00_start_here", "05_online_softmax"} <= set(NAMES)
    assert NAMES == sorted(path.stem for path in authoring.NOTEBOOKS.glob("*.ipynb"))


def broken_rules(lesson):
    """The rules that `lesson` breaks, each as one line: its name and what it says."""
    broken = []
    for rule in RULES:
        try:
            rule(lesson)
        except (AssertionError, SyntaxError, nbformat.ValidationError) as error:
            broken.append(f"{rule.__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return broken


@pytest.mark.parametrize("name", NAMES)
def test_notebook_keeps_every_rule(name):
    notebook = nbformat.read(authoring.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    lesson = Lesson(name, notebook, authoring.read_text(authoring.SOURCE / f"{name}.md"))
    assert broken_rules(lesson) == []


# The rules themselves, on a small lesson that keeps them all and is then damaged in one way.

STUB = '''\
def softmax_scale(head_dim):
    """{doc}"""
    raise NotImplementedError'''

CHECK_SOURCE = 'from courseware import check\n\ncheck("00.softmax_scale", softmax_scale)'


def good_lesson():
    url = authoring.repository_url()
    answer = registry.find("00.softmax_scale").answer
    picture = figures.Picture(1, 2, alt="A line that rises from 1 to 2 over the years 1970 to 1980.")
    figure = new_output("display_data", data={"text/html": picture._repr_html_()})
    ignore = "nbval-ignore-output"
    cells = [
        new_markdown_cell(f"# Title\n\n{authoring.badge('05_online_softmax', url)}\n\nWhy `a != b`?"),
        new_code_cell(authoring.bootstrap_source(url), metadata=authoring.BOOTSTRAP_METADATA),
        new_code_cell("show()", outputs=[figure]),
        new_code_cell("explore()", outputs=[figure], metadata={"tags": ["explorer", ignore]}),
        new_code_cell(STUB.format(doc=answer.__doc__), metadata={"tags": ["exercise"], "exercise": "00.softmax_scale"}),
        new_code_cell(CHECK_SOURCE, metadata={"tags": ["check"]}),
        new_markdown_cell("$$\n\\begin{aligned} a &= b \\end{aligned}\n$$\n\nFrom $a$ to $b$ costs $n!$."),
        new_code_cell('quiz("00")', metadata={"tags": ["quiz"]}),
    ]
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    notebook = new_notebook(cells=cells, metadata=authoring.NOTEBOOK_METADATA | {"title": "Title"})
    return Lesson("05_online_softmax", notebook, copy.deepcopy(notebook))


TITLE, BOOTSTRAP, FIGURE, EXPLORER, EXERCISE, CHECK, FORMULAS, QUIZ = range(8)


def source(cell, old, new):
    """A damage: `old` becomes `new` in the source of one cell."""

    def damage(notebook):
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return damage


def replace_in_picture(old, new):
    """A damage: `old` becomes `new` in the HTML of the figure."""

    def damage(notebook):
        data = notebook.cells[FIGURE].outputs[0].data
        data["text/html"] = data["text/html"].replace(old, new)

    return damage


def output(cell, *arguments, **keywords):
    return lambda notebook: notebook.cells[cell].outputs.append(new_output(*arguments, **keywords))


def metadata(cell, **values):
    return lambda notebook: notebook.cells[cell].metadata.update(values)


DAMAGES = [
    (valid_format, lambda notebook: notebook.cells[FIGURE].update(colour="red")),
    (links_to_the_glossary, source(TITLE, "glossary.md", "glossary.html")),
    (in_step_with_its_twin, source(FIGURE, "show()", "show( )")),
    (in_step_with_its_twin, metadata(FIGURE, tags=["nbval-ignore-output"])),
    (in_step_with_its_twin, metadata(FIGURE, execution={"iopub.status.busy": "2026-01-01T00:00:00Z"})),
    (in_step_with_its_twin, lambda notebook: notebook.cells.pop()),
    (neutral_metadata, lambda notebook: notebook.metadata.language_info.update(version="3.11.7")),
    (executed_in_order, lambda notebook: notebook.cells[FIGURE].update(execution_count=None)),
    (executed_in_order, lambda notebook: notebook.cells[FIGURE].update(execution_count=7)),
    (nothing_went_wrong, output(FIGURE, "error", ename="ValueError", evalue="", traceback=[])),
    (nothing_went_wrong, output(FIGURE, "stream", name="stderr", text="UserWarning")),
    (nothing_escapes_nbval, source(FIGURE, "show()", "# NBVAL_SKIP\nshow()")),
    (nothing_escapes_nbval, metadata(FIGURE, tags=["raises-exception"])),
    (opens_with_badge_and_bootstrap, source(TITLE, "/blob/main/notebooks/05", "/blob/main/notebooks/04")),
    (opens_with_badge_and_bootstrap, source(BOOTSTRAP, "\nstart()", "\nprint()")),
    (opens_with_badge_and_bootstrap, metadata(BOOTSTRAP, jupyter={"source_hidden": False})),
    (opens_with_badge_and_bootstrap, lambda notebook: notebook.cells.pop(BOOTSTRAP)),
    (short_cells, source(FORMULAS, "From", "\n" * 12 + "From")),
    (short_cells, source(FIGURE, "show()", "show()\n" * 26)),
    (short_cells, source(EXERCISE, "Returns", "\n" * 40 + "Returns")),
    (no_base64_in_markdown, source(FORMULAS, "From", "![](data:image/png;base64,iVBORw0KGgo=)")),
    (no_base64_in_markdown, lambda notebook: notebook.cells[TITLE].update(attachments={"a.png": {}})),
    (small_file, output(FIGURE, "display_data", data={"image/png": "A" * 600_000})),
    (plain_python, source(FIGURE, "show()", "%matplotlib inline")),
    (plain_python, source(FIGURE, "show()", "!pip install torch")),
    (plain_python, source(FIGURE, "show()", "show?")),
    (explorers_are_pictures, lambda notebook: notebook.cells[EXPLORER].outputs.clear()),
    (explorers_are_pictures, output(EXPLORER, "display_data", data={"text/plain": "HBox()"})),
    (pictures_say_what_they_show, output(FIGURE, "display_data", data={"image/png": "iVBORw0KGgo="})),
    (pictures_say_what_they_show, replace_in_picture("A line that rises from 1 to 2 over", "")),
    (pictures_say_what_they_show, replace_in_picture('width="200"', 'width="400"')),
    (no_widget_is_kept, output(CHECK, "display_data", data={"application/vnd.jupyter.widget-view+json": {}})),
    (predictions_are_kept_and_compared, source(FIGURE, "show()", "guess = None")),
    (predictions_are_kept_and_compared, source(FIGURE, "show()", 'g = predict("05.x", "?", number=True)')),
    (predictions_are_kept_and_compared, source(FIGURE, "show()", 'predict("04.x", "?", "ab").compare("a")')),
    (predictions_are_kept_and_compared, source(FIGURE, "show()", 'predict("05.x", "?", "ab").compare("a")\n' * 2)),
    (quizzes_hold_no_answers, source(QUIZ, '"00"', '[{"answers": [{"correct": True}]}]')),
    (stubs_repeat_the_answers, source(EXERCISE, "head_dim)", "head_dim=64)")),
    (stubs_repeat_the_answers, source(EXERCISE, "softmax_scale", "scale")),
    (stubs_repeat_the_answers, source(EXERCISE, "softmax", "soft-max")),
    (stubs_repeat_the_answers, source(EXERCISE, "raise NotImplementedError", "return head_dim**-0.5")),
    (checks_follow_their_stubs, source(CHECK, "00.softmax_scale", "00.softmax_scales")),
    (checks_follow_their_stubs, source(CHECK, "from courseware import check\n\n", "")),
    (checks_follow_their_stubs, lambda notebook: notebook.cells.pop(CHECK)),
    (renders_everywhere, source(FORMULAS, "aligned", "align*")),
    (renders_everywhere, source(FORMULAS, "$a$", r"$\operatorname{a}$")),
    (renders_everywhere, source(FORMULAS, "$a$", "$ a $")),
    (renders_everywhere, source(FORMULAS, "$a$", r"\(a\)")),
    (renders_everywhere, source(FORMULAS, "$$\n\n", "\n\n")),
    (no_emoji, source(FORMULAS, "From", "\N{ROCKET} From")),
    (plain_words, source(FORMULAS, "From", "Great! From")),
    (plain_words, source(FORMULAS, "From", "Simply from")),
]


def test_a_good_lesson_breaks_no_rule():
    assert broken_rules(good_lesson()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_rejects_what_it_is_about(rule):
    damages = [damage for broken, damage in DAMAGES if broken is rule]
    assert damages
    for number, damage in enumerate(damages):
        lesson = good_lesson()
        damage(lesson.notebook)
        names = [line.split(":")[0] for line in broken_rules(lesson)]
        assert rule.__name__ in names, f"damage {number}"
