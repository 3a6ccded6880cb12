"""Triton's interpreter without the work that it does again and again to no effect: half of the time of a small launch.

Results and messages stay what they are. The functions replaced are internal to Triton; where one of them is missing,
nothing is replaced. `course_lib.language` calls `install`.
"""

import dataclasses
import functools
import inspect

import numpy as np

REPLACED = ("_patch_builtin", "_patch_attr", "_patch_lang", "_LangPatchScope", "_get_np_dtype", "interpreter_builder")


def install():
    """Replace them in this process, where Triton is imported and interprets. A second call does nothing."""
    from triton.runtime import interpreter

    language = interpreter.tl
    is_complete = all(hasattr(interpreter, name) for name in REPLACED)
    if not is_complete or _is_patched(language) or hasattr(interpreter, "faster"):
        return
    interpreter.faster = True

    # At each launch it searches the whole of triton.language for what it has to replace, and always finds the same.
    @functools.cache
    def builtins_of(package):
        is_builtin = language.core.is_builtin
        return [(name, member) for name, member in inspect.getmembers(package) if is_builtin(member)]

    for package in (language, language.core, language.math, language.tensor, language.core.tensor_descriptor_base):
        builtins_of(package)  # now, while nothing is replaced

    def patch_builtin(package, *how):
        for name, member in builtins_of(package):
            if getattr(package, name) is member:  # and not replaced already
                interpreter._patch_attr(package, name, member, *how)

    # It replaces all of it again at each call of one jitted function by another, where the launch has done so already.
    @functools.cache
    def languages_of(function):
        modules = filter(inspect.ismodule, function.__globals__.values())
        return [module for module in modules if module in (language, language.core)]

    patch_language = interpreter._patch_lang

    def patch_language_once(function):
        languages = languages_of(function)
        is_done = languages and all(map(_is_patched, languages))
        return interpreter._LangPatchScope() if is_done else patch_language(function)

    # It builds a dictionary of all types in order to look one up.
    dtype_of_scalar = functools.cache(interpreter._get_np_dtype)

    def get_np_dtype(dtype):
        return np.dtype(np.uint64) if dtype.scalar.is_ptr() else dtype_of_scalar(dtype.scalar)

    interpreter._patch_builtin, interpreter._patch_lang = patch_builtin, patch_language_once
    interpreter._get_np_dtype = get_np_dtype
    # It computes whether an integer overflows, for an assertion that it makes in debug mode alone.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=options.debug)


def _is_patched(language):
    return language.range.__name__ == "_new_range"
