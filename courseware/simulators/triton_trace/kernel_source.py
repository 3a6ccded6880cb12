"""The source of a notebook's function together with everything it names, so that another process can define it too.

A notebook's kernel lives in `__main__`, which no other process can import. Its helpers, constants and imports are found
by name, as Python would find them when the function runs.
"""

import ast
import dis
import inspect
import pickle
import sys
import textwrap
import types


def is_importable(value, definition):
    """Whether importing `definition`'s name from `definition`'s module gives `value`."""
    module, name = getattr(definition, "__module__", None), getattr(definition, "__name__", None)
    return module != "__main__" and name and getattr(sys.modules.get(module), name, None) is value


def sources(function, given=()):
    """Pieces of Python that define, in this order, everything that a plain function names, and the function itself.

    given: names that the other process defines by itself. What a module holds becomes an import, a function that no
    module holds becomes its source, and any other value is pickled. Raises TypeError, naming the value, where none of
    the three is possible.
    """
    pieces = []
    _add_function(function, pieces, {*given, function.__name__})
    return pieces


def _add_function(function, pieces, defined):
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise TypeError(f"{function.__name__} was defined in another function, whose {names} it uses")
    source = textwrap.dedent(inspect.getsource(function))
    for name in sorted(_names_in_definition(source) | _names_in_code(function.__code__)):
        if name in function.__globals__ and name not in defined:
            defined.add(name)
            try:
                _add_value(name, function.__globals__, pieces, defined)
            except Exception as error:
                kind = type(function.__globals__[name]).__name__
                raise TypeError(f"{name}, a {kind}, cannot be sent to another process: {error}") from None
    pieces.append(source)


def _add_value(name, namespace, pieces, defined):
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    value = namespace[name]
    plain = inspect.unwrap(value.fn if isinstance(value, JITFunction | InterpretedFunction) else value)
    if isinstance(value, types.ModuleType):
        pieces.append(f"import importlib\n{name} = importlib.import_module({value.__name__!r})")
    elif is_importable(value, plain):
        pieces.append(f"from {plain.__module__} import {plain.__name__} as {name}")
    elif isinstance(plain, types.FunctionType):
        own_name = _name_in_source(plain)
        if namespace.get(own_name) is not value:
            raise TypeError(f"its source defines {own_name}, which is now something else")
        defined.add(own_name)
        _add_function(plain, pieces, defined)
        if own_name != name:
            pieces.append(f"{name} = {own_name}")
    else:
        pickled = pickle.dumps(value)
        if b"__main__" in pickled:
            raise TypeError("no module holds what it is made of")
        pieces.append(f"import pickle\n{name} = pickle.loads({pickled!r})")


def _name_in_source(function):
    """The name that a function's source defines: its own, or the one that a lambda is assigned to."""
    if function.__name__ != "<lambda>":
        return function.__name__
    (assignment,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    (target,) = assignment.targets
    return target.id


def _names_in_definition(source):
    """Names in a function's decorators, annotations and defaults, which are looked up when it is defined."""
    (definition,) = ast.parse(source).body
    if not isinstance(definition, ast.FunctionDef):
        return set()
    head = [*definition.decorator_list, definition.args, *filter(None, [definition.returns])]
    return {node.id for part in head for node in ast.walk(part) if isinstance(node, ast.Name)}


def _names_in_code(code):
    """Names that code, or code inside it (a comprehension, a lambda, a class), looks up among the globals."""
    # A class body looks names up by LOAD_NAME, its module's __name__ among them, which every module has.
    steps = [step for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    names = {step.argval for step in steps if step.argval != "__name__"}
    return names.union(*(_names_in_code(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))
