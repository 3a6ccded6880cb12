"""FlashAttention from First Principles: the finished implementations that the notebooks import.

The map, in reading order:

    reference/   the mathematics in NumPy, float64-capable, clarity first: softmax, attention, tiled, backward
    machine      a memory of two levels that counts every byte moved and refuses a tile that does not fit
    masks        which query sees which key, and so which tiles are visited
    paged_cache  a cache of keys and values in pages: which sequence has which, shared pages, copy on write
    tiny_model   a character model trained on the course's own prose, to be served
    serving      requests that come and go, in one batch, with their keys and values in pages
    traffic      the same counts as closed forms: bytes, FLOPs, peak memory
    hardware     GPU specifications, each with its source
    kernels/     the same mathematics in Triton, compiled on a GPU or interpreted without one
    tracer       the bytes that a real Triton kernel requests, and what it touches out of bounds; tracing/ has its parts
    measure/     timing, experiments, the ladder, the error budget; the records are in data/
    exercises/   one module a lesson: answers, hints, properties and plausible wrong answers
    components/  what notebooks show besides figures: predictions, tables, cards
    grading/     the engine behind check, hint, solution and progress
    explorers/   one module a widget: model, drawing, thin shell
    runtime      chooses GPU or interpreter before Triton is imported; `python -m course_lib doctor`
    language     Triton's names where it is installed, and stand-ins to write kernels with where it is not
    faster_interpreter  what Triton's interpreter does to no effect, left out
    workspace    a learner's working copies of the notebooks

`reference` and `kernels` never import each other: they are two independent statements of one mathematics.

Importing this module loads only the standard library, so that a notebook's first cell is quick. Everything in the map,
and the glossary, is loaded when it is first used. Words and symbols are defined in glossary.toml, which `GLOSSARY`,
`SYMBOLS` and `TERMS` hold as {name: (lesson that introduces it, meaning)}: code and prose use the same words.
"""

import importlib

_FROM_COMPONENTS = {"predict", "table"}
_FROM_GRADING = {"check", "hint", "solution", "restore", "progress", "quiz"}
_FROM_GLOSSARY = {"GLOSSARY", "SYMBOLS", "TERMS"}
_SUBMODULES = {
    "components", "exercises", "explorers", "grading", "hardware", "kernels", "machine",
    "masks", "measure", "paged_cache", "reference", "runtime", "serving", "tiny_model", "tracer", "traffic",
    "workspace",
}  # fmt: skip

__all__ = sorted(_FROM_COMPONENTS | _FROM_GRADING | _FROM_GLOSSARY | _SUBMODULES)


def __getattr__(name):
    if name in _FROM_COMPONENTS:
        return getattr(importlib.import_module("course_lib.components"), name)
    if name in _FROM_GRADING:
        return getattr(importlib.import_module("course_lib.grading"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"course_lib.{name}")
    if name in _FROM_GLOSSARY:
        globals().update(_read_glossary())
        return globals()[name]
    raise AttributeError(f"module 'course_lib' has no attribute {name!r}")


def _read_glossary():
    import tomllib
    from pathlib import Path

    tables = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    symbols, terms = ({name: tuple(entry) for name, entry in tables[kind].items()} for kind in ("symbols", "terms"))
    return {"SYMBOLS": symbols, "TERMS": terms, "GLOSSARY": symbols | terms}


def __dir__():
    return __all__
