"""flash-attention's own tests, run against our kernels: `python -m tools.peer_tests CHECKOUT`.

CHECKOUT is a folder with that project's repository (github.com/Dao-AILab/flash-attention), whose tests import einops.
They call our kernels through flash_attn_adapter.py. A test has up to a hundred thousand cases, so cases are
drawn at random. A case is refused if it needs what our kernels do not do, and skipped if the test itself skips it;
neither counts as run. Without a GPU, the smallest cases run in the interpreter.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import math
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode

from course_lib import runtime

FILE = "tests/test_flash_attn.py"
TESTS = (
    "test_flash_attn_output", "test_flash_attn_causal", "test_flash_attn_qkvpacked", "test_flash_attn_splitkv",
    "test_flash_attn_varlen_output", "test_flash_attn_varlen_causal", "test_flash_attn_varlen_qkvpacked",
    "test_flash_attn_kvcache", "test_flash_attn_kvcache_paged_block_table_bounds", "test_flash_attn_bwd_overflow",
    "test_flash_attn_bwd_transpose",
)  # fmt: skip
# Up to 72 heads of so many products, forward and backward, take the interpreter a minute or two.
MOST_PRODUCTS_INTERPRETED = 2**20


class OutOfTime(BaseException):
    """Triton's interpreter would take an Exception for the kernel's."""


class OnTheCpu(TorchFunctionMode):
    """Inside, tensors asked for on "cuda" are made on the CPU."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        return function(*arguments, **options)


def without_a_gpu():
    """A context in which code written for an A100 runs on the CPU."""
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (8, 0)))
    gpu = SimpleNamespace(total_memory=80 * 2**30)
    stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", lambda *_: gpu))
    stack.enter_context(OnTheCpu())
    return stack


def load(checkout):
    """The module of their tests, in which flash_attn is our adapter. What it lacks raises NotImplementedError."""
    from tools import flash_attn_adapter

    def standing_in(name):
        def refuse(*_, **__):
            raise NotImplementedError(f"{name} is called, which the adapter does not have")

        return getattr(flash_attn_adapter, name, refuse)

    modules = {}
    for name in ("", ".bert_padding", ".flash_attn_interface", ".layers", ".layers.rotary"):
        modules[f"flash_attn{name}"] = module = ModuleType(f"flash_attn{name}")
        module.__path__, module.__getattr__ = [], standing_in
    modules["flash_attn.flash_attn_interface"].USE_TRITON_ROCM = False
    spec = importlib.util.spec_from_file_location("peer_tests_of_flash_attn", Path(checkout) / FILE)
    theirs = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, modules):
        spec.loader.exec_module(theirs)
    return theirs


def cases_of(test):
    """Every combination of a test's parameters, as dictionaries."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
            axes.append([dict(zip(names, value, strict=True)) for value in values])
    return [dict(item for part in parts for item in part.items()) for parts in itertools.product(*axes)]


def products(case):
    """How many products of numbers Q K^T takes in one head."""
    n_q, n_k = (case.get(name, case.get("seqlen", 1)) for name in ("seqlen_q", "seqlen_k"))
    return n_q * n_k * case.get("d", 1)


def outcome(test, case, limit_s):
    """ "held", "failed: why", "refused: an argument", "skipped" or "out of time" for one case."""

    def stop(*_):
        raise OutOfTime

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit_s)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test(**case)
    except NotImplementedError as error:
        return f"refused: {str(error).partition(' ')[0]}"
    except pytest.skip.Exception:
        return "skipped"
    except OutOfTime:
        return "out of time"
    except Exception as error:  # a test may fail in any way
        return f"failed: {type(error).__name__} {str(error).partition(chr(10))[0]}"
    finally:
        signal.alarm(0)
    return "held"


def run(test, *, n_run, seed, limit_s, most_products=math.inf):
    """Cases of a test in random order until n_run of them have run; returns a Counter of outcomes. Prints failures."""
    cases = [case for case in cases_of(test) if products(case) <= most_products]
    random.Random(seed).shuffle(cases)
    found = Counter()
    for case in cases:
        if found["held"] + found["failed"] + found["out of time"] == n_run:
            break
        result = outcome(test, case, limit_s)
        kind, _, why = result.partition(": ")
        found[kind if kind == "failed" else result] += 1
        if kind == "failed":
            print(f"  {why}: {case}", flush=True)
    return found


def main(argv=None):
    parser = argparse.ArgumentParser("python -m tools.peer_tests", description=__doc__.splitlines()[0])
    parser.add_argument("checkout", metavar="CHECKOUT", help="a folder with flash-attention's repository")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="NAME", help=f"of {FILE}")
    parser.add_argument("--sample", type=int, default=20, help="how many cases of each test to run; 20 by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="for a case; 60 by default")
    options = parser.parse_args(argv)
    interpreting = runtime.choose() == "interpreter"
    all_held = True
    with without_a_gpu() if interpreting else contextlib.nullcontext():
        theirs = load(options.checkout)
        for name in options.tests:
            begin_s = time.perf_counter()
            found = run(
                getattr(theirs, name), n_run=options.sample, seed=options.seed, limit_s=options.limit,
                most_products=MOST_PRODUCTS_INTERPRETED if interpreting else math.inf,
            )  # fmt: skip
            ran = found["held"] + found["failed"] + found["out of time"]
            others = "; ".join(f"{what} {n}" for what, n in sorted(found.items()) if what != "held")
            seconds = time.perf_counter() - begin_s
            print(f"{name}: {found['held']} of {ran} held in {seconds:.0f} s; {others}", flush=True)
            all_held &= found["held"] == ran > 0
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main())
