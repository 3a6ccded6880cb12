"""A function with parts of its source replaced: wrong answers, right variants, and kernels with a few words changed."""

import ast
import copy
import inspect
import linecache
import re
import textwrap
import zlib

import numpy as np


def with_edits(function, edits, name):
    """The function that `function`'s source defines when each key of `edits` in it is replaced by its value.

    function: a Python function or a Triton kernel. Its source must stand alone: of its module's globals, the new
    function finds np, triton and tl, as in a learner's cell. name: stands for the file in tracebacks.
    Raises ValueError unless each text to be replaced occurs exactly once.
    """
    plain, source = _source_of(function)
    return _defined(plain, edited_text(source, edits, name, plain.__name__), name)


def _source_of(function):
    plain = getattr(function, "fn", function)  # a Triton kernel holds the Python function that it was made from
    return plain, textwrap.dedent(inspect.getsource(plain))


def _defined(plain, source, name):
    namespace = {"np": np} | {key: plain.__globals__[key] for key in ("triton", "tl") if key in plain.__globals__}
    # Of two kernels that share a file name, Triton would run the second in place of the first.
    run_source(source, f"<{name} {zlib.crc32(source.encode()):08x}>", namespace)
    return namespace[plain.__name__]


def with_nodes_replaced(function, edits, name):
    """As `with_edits`, with the edits made on the syntax tree: spaces, comments and line breaks do not matter.

    edits: (old, new) pairs of Python. old: an expression, or statements that follow one another; a compound statement
    whose body is `...` stands for one with any body. new: what comes in its place; no text removes it. Of a function
    that returns CUDA C++, both are C++.
    Raises ValueError unless each old occurs exactly once, and SyntaxError for what is no Python.
    """
    plain, source = _source_of(function)
    replaced = _tokens_replaced if "__global__" in source else _nodes_replaced
    for old, new in edits:
        source, count = replaced(source, old, new)
        if count != 1:
            raise ValueError(f"{name}: {old!r} occurs {count} times in {plain.__name__}, not once")
    return _defined(plain, source, name)


def _nodes_replaced(source, old, new):
    """(the source with old replaced, how often it occurs)."""
    tree, pattern, replacement = ast.parse(source), ast.parse(old).body, ast.parse(new).body
    is_expression = all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in (pattern, replacement))
    count = 0
    for parent in list(ast.walk(tree)):
        for field, value in ast.iter_fields(parent):
            places = range(len(value) if isinstance(value, list) else 1)
            if is_expression:
                nodes = value if isinstance(value, list) else [value]
                found = [i for i in places if isinstance(nodes[i], ast.expr) and _is_like(nodes[i], pattern[0].value)]
                for place in found:
                    nodes[place] = replacement[0].value
                if found and nodes is not value:
                    setattr(parent, field, nodes[0])
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                windows = [value[i : i + len(pattern)] for i in places]
                alike = (len(nodes) == len(pattern) and all(map(_is_like, nodes, pattern)) for nodes in windows)
                found = [i for i, is_alike in zip(places, alike, strict=True) if is_alike]
                for place in found[:1]:
                    value[place : place + len(pattern)] = replacement or [ast.Pass()]
            else:
                continue
            count += len(found)
    return ast.unparse(ast.fix_missing_locations(tree)), count


def _is_like(node, pattern):
    """Whether they are the same, but for a body, where the pattern's is `...`."""
    if isinstance(getattr(pattern, "body", None), list) and type(node) is type(pattern):
        if ast.unparse(pattern.body) == "...":
            node = copy.copy(node)
            vars(node).update(body=pattern.body, orelse=getattr(pattern, "orelse", []))
    return ast.dump(node) == ast.dump(pattern)


def _tokens_replaced(source, old, new):
    tokens = (rf"\b{word}\b" if word else re.escape(sign) for word, sign in re.findall(r"(\w+)|(\S)", old))
    return re.subn(r"\s*".join(tokens), lambda _: new, source)


def specialized(function, constants):
    """The lines of a function as it is left when some names have values: no branch stays that is never taken.

    constants: name -> value; `...` for one that is not known, but not None. In calls they are left out.
    """
    (tree,) = ast.parse(_source_of(function)[1]).body
    tree.body = tree.body[ast.get_docstring(tree) is not None :]
    body = ast.unparse(ast.fix_missing_locations(_Specialized(constants).visit(ast.Module(tree.body, []))))
    return [f"def {tree.name}(...):", *textwrap.indent(body, "    ").splitlines()]


class _Specialized(ast.NodeTransformer):
    def __init__(self, constants):
        self.constants = dict(constants)

    def value_of(self, node):
        """Raises NameError if it is not known."""
        return eval(ast.unparse(node), {"__builtins__": {}}, self.constants)

    def visit_Name(self, node):
        value = self.constants.get(node.id, ...)
        return node if value is ... or isinstance(node.ctx, ast.Store) else ast.Constant(value)

    def visit_Call(self, node):
        node.args = [arg for arg in node.args if getattr(arg, "id", None) not in self.constants]
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in self.constants]
        return self.generic_visit(node)

    def visit_If(self, node):
        try:
            taken = node.body if self.value_of(node.test) else node.orelse
        except NameError:
            return self.generic_visit(node)
        return [self.visit(each) for each in taken] if isinstance(taken, list) else self.visit(taken)

    visit_IfExp = visit_If

    def visit_For(self, node):
        node.iter = self.visit(node.iter)
        once = re.fullmatch(r"tl\.static_range\((\d+), (\d+)\)", ast.unparse(node.iter))
        if once is None or int(once[2]) - int(once[1]) > 1:
            return self.generic_visit(node)
        self.constants[node.target.id] = int(once[1])
        return [self.visit(each) for each in node.body]


def edited_text(text, edits, name, place):
    """The text with each key of `edits` in it replaced by its value, one after the other.

    name, place: of the edits and the text, for the ValueError unless each text to be replaced occurs exactly once.
    """
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {text.count(old)} times in {place}, not once")
        text = text.replace(old, new)
    return text


def run_source(source, filename, namespace):
    """Run a piece of Python, as if from a file of that name, such as "<answer>"."""
    # Tracebacks look for the source here, and so does Triton when it compiles or interprets a kernel.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def edited(function, edits, name="edited"):
    """`with_edits`, of a kernel the plain function inside @triton.jit."""
    built = with_edits(function, edits, name)
    return getattr(built, "fn", built)


def edits_of(diff):
    """The edits {old lines: new lines} that a diff stands for, to be made one after the other.

    Lines that go begin with "-", those that come with "+", and those that stay and show the place with a space. A line
    "@@" parts places that are not neighbours. Raises ValueError for a line that begins otherwise. No diff, no edits.
    """
    edits = {}
    for part in re.split(r"^@@\n", diff, flags=re.MULTILINE) if diff else ():
        lines = part.splitlines(keepends=True)
        if strange := [line for line in lines if line[0] not in "-+ "]:
            raise ValueError(f"the line {strange[0]!r} of a diff begins with none of '-', '+', ' '")
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in ("- ", "+ "))
        edits[old] = new
    return edits
