from itertools import product

import numpy as np

from course_lib import traffic
from course_lib.hardware import GIB, GPUS, KIB, MIB
from course_lib.machine import Machine
from course_lib.reference.attention import standard_attention_on_machine
from courseware.explorers import attention_memory as explorer

from .conftest import numbers, shapes, tips

SETTINGS = list(
    product(explorer.LENGTHS[::5], explorer.HEAD_DIMS[::3], explorer.HEADS[::4], explorer.DTYPE_BYTES, GPUS)
)


def test_model_and_page_agree_with_the_closed_forms_and_the_gpu():
    for setting in SETTINGS:
        n, d, heads, dtype, gpu = setting
        model, of, size = explorer.run(*setting), GPUS[gpu], {"fp16": 2, "fp32": 4}[dtype]
        page = explorer.page(**dict(zip(("n", "d", "heads", "dtype", "gpu"), setting, strict=True)))
        moved = traffic.standard_attention(n, n, d, dtype_bytes=size, heads=heads)
        assert model.moved == moved
        assert model.matrix_bytes == heads * n * n * size
        assert model.held_bytes == heads * (2 * n * n + 4 * n * d) * size
        assert model.fits == (model.held_bytes <= of.hbm_bytes) == ("does not fit" not in page.text)
        assert explorer.run(model.longest, *setting[1:]).fits and not explorer.run(model.longest + 1, *setting[1:]).fits
        memory_ms = 1e3 * moved.total_bytes / of.hbm_bytes_per_s
        tflops = of.fp16_tensor_tflops if dtype == "fp16" else of.fp32_tflops
        arithmetic_ms = moved.flops / tflops / 1e9
        ridge = tflops * 1e12 / of.hbm_bytes_per_s
        assert f"bound by <b>{'memory' if memory_ms > arithmetic_ms else 'arithmetic'}</b>" in page.text, setting
        held, requested = page.text.split("<br>")
        assert numbers(held)[:3] == [n, d, heads] and numbers(held)[-1] == model.longest
        for n_bytes in (model.matrix_bytes, model.held_bytes, of.hbm_bytes):
            assert explorer.size(n_bytes) in held, setting
        unit_bytes = 1e6 if " MB." in requested else 1e9
        expected = [moved.total_bytes / unit_bytes, moved.flops / moved.total_bytes, ridge, memory_ms, arithmetic_ms]
        np.testing.assert_allclose(numbers(requested), expected, atol=0.0501)
        assert [*tips(page, "bytes: "), *tips(page, "FLOPs: ")] == [f"{memory_ms:,.3f} ms", f"{arithmetic_ms:,.3f} ms"]
        curve = [explorer.size(explorer.run(length, *setting[1:]).held_bytes) for length in explorer.LENGTHS]
        assert tips(page, r"N = [\d,]+: ") == curve
        widths = [float(bar["width"]) for bar in shapes(page) if bar["data-tip"].startswith(("S =", "softmax", "O ="))]
        shares = [n_bytes for moves in explorer.by_pass(moved.by_tensor).values() for n_bytes in moves.values()]
        np.testing.assert_allclose(np.array(widths) / sum(widths), np.array(shares) / moved.total_bytes, atol=1e-3)


def test_the_passes_are_the_machines_and_hold_every_byte_once():
    machine = Machine()
    columns = {"Q": 2, "K": 2, "V": 2, "S": 9, "P": 9, "O": 2}
    handles = [machine.hbm(np.ones((9, width), np.float32), name) for name, width in columns.items()]
    standard_attention_on_machine(machine, *handles, block_q=4)
    report, ways = machine.report(), {"load": "read", "store": "written"}
    order = [next(i for i, moves in enumerate(explorer.PASSES.values()) if (e.tensor, ways[e.kind]) in moves)
             for e in report.events]  # fmt: skip
    assert order == sorted(order) and set(order) == {0, 1, 2}
    passes = explorer.by_pass(report.by_tensor)
    assert [sum(moves.values()) for moves in passes.values()] == [4 * (2 * 18 + 81), 4 * 2 * 81, 4 * (81 + 2 * 18)]
    assert passes == explorer.by_pass(traffic.standard_attention(9, 9, 2, dtype_bytes=4).by_tensor)


def test_sizes_are_written_in_the_unit_that_fits():
    sizes = {100: "100 bytes", KIB: "1.00 KiB", 3 * MIB // 2: "1.50 MiB", 1100 * GIB: "1,100.00 GiB"}
    assert {n_bytes: explorer.size(n_bytes) for n_bytes in sizes} == sizes
    assert explorer.longest_that_fits(64, 1, 2, 100) == 0
