"""Where an answer's syntax tree differs from the right one's, once both use the same names.

Differences are found by hierarchical delta debugging (Misherghi and Su, ICSE 2006): from the whole body inwards, as
long as fewer or smaller differences are enough to make the answer right.
"""

import ast
import contextlib
import copy
import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

MIN_LIKENESS = 0.35  # of two statements that stand for each other
MAX_DIFFERENCES = 2  # that are reported
MAX_SHARE = 0.5  # of both answers' nodes that may be in differences: beyond, it is another answer


class Difference(NamedTuple):
    """old: a node of the answer, or None where one is missing. new: the right one's, or None where none belongs.

    parent, field, place: where old is, or what new comes before; place is None of what is not in a list.
    """

    parent: ast.AST
    field: str
    place: int | None
    old: ast.AST | None
    new: ast.AST | None


def fewest_differences(tree: ast.Module, reference: ast.Module, is_right: Callable[[str], bool]) -> list[Difference]:
    """The differences that are enough to make the answer right, or none if that takes many of them.

    tree, reference: modules of one function without docstring. is_right(source): whether that passes.
    """
    (wrong,), (right,) = tree.body, _in_names_of(tree, reference).body

    def is_enough(differences):
        with applied(differences):
            return is_right(ast.unparse(tree))

    active = _of_blocks(wrong, "body", wrong.body, right.body)
    if not is_enough(active):
        return []
    active = _needed(active, is_enough)
    while (smaller := _smaller(active, is_enough)) is not None:
        active = _needed(smaller, is_enough)
    active = _where_it_is_made(wrong, active, is_enough)
    olds = [each.old for each in active if each.old is not None]
    kept = {ast.dump(node) for node in olds}  # a step more on what is there is small, however long it is
    news = [each.new for each in active if each.new and not kept & {ast.dump(node) for node in ast.walk(each.new)}]
    is_small = len(active) <= MAX_DIFFERENCES and all(
        _size(*nodes) <= MAX_SHARE * _size(whole) for nodes, whole in ((olds, wrong), (news, right))
    )
    return active if is_small and not any(map(_assigns_more, active)) else []


def _size(*nodes):
    return sum(1 for node in nodes for _ in ast.walk(node))


def _assigns_more(difference):
    """Whether a statement of ours comes in that gives values to other variables, too, which may be what is wrong."""
    old, new = difference.old, difference.new
    return isinstance(old, ast.stmt) and new is not None and not set(_stored(new)) <= set(_stored(old))


def _where_it_is_made(definition, active, is_enough):
    """The one difference where a variable gets its value, in place of one where it is used, or none if that is all."""
    match active:
        case [Difference(old=ast.Name(id=name), new=new)] if not isinstance(new, ast.Name):
            made = [each for each in ast.walk(definition) if isinstance(each, ast.Assign | ast.AugAssign)]
            made = [each for each in made if _stored(each) == [name]]
            moved = [Difference(each, "value", None, each.value, new) for each in made[-1:]]
            if moved and name not in {node.id for node in ast.walk(new) if isinstance(node, ast.Name)}:
                return moved if is_enough(moved) else []
    return active


def _needed(differences, is_enough):
    """One of them if that is enough, otherwise those that cannot be left out one by one."""
    for each in differences if len(differences) > 1 else ():
        if is_enough([each]):
            return [each]
    for each in list(differences) if len(differences) > 2 else ():
        rest = [other for other in differences if other is not each]
        if rest and is_enough(rest):
            differences = rest
    return differences


def _smaller(differences, is_enough):
    """The differences with parts of one of them in its place, if these are enough, or None."""
    for each in differences:
        parts, others = _parts_of(each), [other for other in differences if other is not each]
        if parts and is_enough(others + parts):
            needed = _needed(parts, lambda some, others=others: is_enough(others + some))
            if len(needed) == 1 or not isinstance(each.old, ast.expr):  # an expression is wrong in one part, or whole
                return others + needed
    return None


@contextlib.contextmanager
def applied(differences: list[Difference]) -> Iterator[None]:
    """The tree has the differences' new nodes as long as this lasts."""
    values = [getattr(each.parent, each.field) for each in differences]
    saved = [value[:] if isinstance(value, list) else value for value in values]
    try:
        # From the end, so that places stay; what stands at a place goes before another comes in there.
        for each in sorted(differences, key=lambda each: (each.place or 0, each.old is not None), reverse=True):
            if each.place is None:
                setattr(each.parent, each.field, each.new)
                continue
            block = getattr(each.parent, each.field)
            block[each.place : each.place + (each.old is not None)] = [each.new] if each.new is not None else []
        for each in differences:
            if each.field == "body" and not getattr(each.parent, "body", True):
                each.parent.body.append(ast.Pass())
        yield
    finally:
        for each, value in zip(differences, saved, strict=True):
            setattr(each.parent, each.field, value)


def _parts_of(difference) -> list[Difference]:
    """The differences inside one, or none if its nodes are of different kinds."""
    old, new = difference.old, difference.new
    if old is None or type(old) is not type(new):
        return []
    parts = []
    for field in old._fields:
        one, other = getattr(old, field, None), getattr(new, field, None)
        if isinstance(one, list) and (one or other) and isinstance((one or other)[0], ast.stmt):
            parts += _of_blocks(old, field, one, other)
        elif isinstance(one, list):
            if len(one) != len(other):
                return []
            for place, pair in enumerate(zip(one, other, strict=True)):
                parts += _of_nodes(old, field, place, *pair)
        else:
            parts += _of_nodes(old, field, None, one, other)
    return [] if any(part is None for part in parts) else parts


def _of_nodes(parent, field, place, old, new):
    if not isinstance(old, ast.AST) or not isinstance(new, ast.AST):
        return [] if old == new else [None]
    if ast.dump(old) == ast.dump(new):
        return []
    can_stand = not isinstance(getattr(old, "ctx", ast.Load()), ast.Store) and isinstance(old, ast.expr | ast.operator)
    can_stand |= isinstance(old, ast.cmpop | ast.unaryop | ast.boolop) or type(old) is type(new)
    return [Difference(parent, field, place, old, new) if can_stand else None]


def _of_blocks(parent, field, old, new):
    """The differences of two blocks of statements, of which those that are most alike stand for each other."""
    texts = {statement: ast.unparse(statement) for statement in (*old, *new)}
    pairs = _aligned(old, new, lambda one, other: _likeness(texts[one], texts[other]))
    found, ours, theirs = [], dict(pairs), {j: i for i, j in pairs}
    for i, statement in enumerate(old):
        other = new[ours[i]] if i in ours else None
        if other is None or ast.dump(statement) != ast.dump(other):
            found.append(Difference(parent, field, i, statement, other))
    before = len(old)
    for j in reversed(range(len(new))):  # of several before one place, the last comes in first
        before = theirs.get(j, before)
        if j not in theirs:
            found.append(Difference(parent, field, before, None, new[j]))
    return found


def _aligned(old, new, likeness):
    """Pairs (i, j) in order, of those that are most alike together."""
    best = [[(0.0, ())] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, one in enumerate(old):
        for j, other in enumerate(new):
            alike = likeness(one, other) if type(one) is type(other) else 0.0
            here = (best[i][j][0] + alike, (*best[i][j][1], (i, j))) if alike >= MIN_LIKENESS else (0.0, ())
            best[i + 1][j + 1] = max(here, best[i][j + 1], best[i + 1][j], key=lambda each: each[0])
    return best[-1][-1][1]


def _likeness(one, other):
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= MIN_LIKENESS else 0.0


def _in_names_of(tree, reference):
    """The reference with its arguments and variables called as in the tree."""
    ours, theirs = (each.body[0].args.args for each in (tree, reference))
    names = {other.arg: one.arg for one, other in zip(ours, theirs, strict=False)}
    statements, texts = [], {}
    for each in (tree, reference):
        nodes = list(ast.walk(each))
        variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        statements.append([node for node in nodes if isinstance(node, ast.stmt)][1:])
        texts |= {statement: _masked(statement, variables) for statement in statements[-1]}
    votes = Counter()
    for i, j in _aligned(*statements, lambda one, other: _likeness(texts[one], texts[other])):
        one, other = statements[0][i], statements[1][j]
        ours, theirs = _stored(one), _stored(other)
        if len(ours) == len(theirs):
            for pair in zip(theirs, ours, strict=True):
                votes[pair] += _likeness(texts[one], texts[other]) + 0.5 * (pair[0] == pair[1])
    for (theirs, ours), _ in votes.most_common():
        if theirs not in names and ours not in names.values():
            names[theirs] = ours
    return _Renamed(names).visit(copy.deepcopy(reference))


def _masked(statement, names):
    """The text of a statement, of a compound one without its body, with its variables' names hidden."""
    statement = copy.deepcopy(statement)
    for field in ("body", "orelse"):
        if isinstance(getattr(statement, field, None), list):
            setattr(statement, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(_Renamed(dict.fromkeys(names, "_")).visit(statement))


def _stored(statement):
    """The names that a statement itself assigns, in order."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]


class _Renamed(ast.NodeTransformer):
    def __init__(self, names):
        self.names = names

    def visit_Name(self, node):
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node):
        return ast.copy_location(ast.arg(self.names.get(node.arg, node.arg)), node)
