"""The closed forms, against figures done by hand. The reference's tests compare them with the machine."""

import functools

import pytest

from course_lib import traffic


def flash(n, d, block_q, **options):
    return traffic.flash_attention(n, n, d, block_q=block_q, block_k=64, **options)


def test_folklore_f1_figures():
    """N = 4096, d = 128, fp16: traffic is not linear, and with small tiles flash moves hardly less."""
    standard = traffic.standard_attention(4096, 4096, 128)
    assert (standard.total_bytes, standard.peak_bytes) == (138_412_032, 4 * 4096**2)
    assert flash(4096, 128, 64).total_bytes == 136_314_880
    assert flash(4096, 128, 128).total_bytes == 69_206_016
    growth = flash(8192, 128, 128).total_bytes / flash(4096, 128, 128).total_bytes
    assert 3.9 < growth < 4


BLOCKS = {"block_q": 8, "block_k": 16, "causal": True}
FORMS = {
    "standard": traffic.standard_attention,
    **{
        order: functools.partial(traffic.flash_attention, **BLOCKS, order=order, return_lse=True)
        for order in ("q_outer", "kv_outer")
    },
    "backward": functools.partial(traffic.flash_attention_backward, **BLOCKS),
}


@pytest.mark.parametrize("name", FORMS)
def test_heads_and_batch_multiply_everything(name):
    one, many = FORMS[name](20, 30, 4), FORMS[name](20, 30, 4, heads=3, batch=2)
    for field in ("read_bytes", "write_bytes", "flops", "peak_bytes", "total_bytes"):
        assert getattr(many, field) == 6 * getattr(one, field)
    assert many.by_tensor["K"].read_bytes == 6 * one.by_tensor["K"].read_bytes
    assert many.arithmetic_intensity == one.arithmetic_intensity


def test_folklore_f25_decoding_is_about_one_flop_a_byte_and_head():
    """fp16 and many keys: a FLOP for each byte, times the query heads that share the keys. Splits hardly matter."""
    for group in (1, 4, 8):
        form = traffic.decode([8192, 5000], 128, heads=8, kv_heads=8 // group)
        assert 0.995 * group < form.arithmetic_intensity < group
    split = traffic.decode([8192, 5000], 128, heads=8, kv_heads=1, splits=8)
    # m and l of 8 splits and 16 rows, written once, and read by a program for each 32 of 128 columns.
    assert split.by_tensor["stats"] == (4 * 1024, 1024)
    assert split.peak_bytes == 2 * 8 * 8 * 130 * 4 and split.flops == form.flops == 4 * 8 * 13_192 * 128
    assert form.total_bytes < split.total_bytes < 1.2 * form.total_bytes


def test_the_lower_bound_takes_elements():
    assert traffic.lower_bound_elems(4096, 64, 65_536) == 4096**2 * 64**2 / 65_536
    for sram_elems in (63, 4096 * 64 + 1):
        with pytest.raises(ValueError, match=f"sram_elems is {sram_elems}; accepted: from d = 64 to n d = 262144"):
            traffic.lower_bound_elems(4096, 64, sram_elems)


def test_a_training_step_s_flops_are_those_of_the_model_s_numbers_and_visible_pairs():
    from course_lib.serving.model import Block

    shape = {"width": 12, "heads": 6, "kv_heads": 2, "head_dim": 4}
    numbers = sum(x.numel() for x in Block(**shape).parameters() if x.dim() == 2)
    for n in (1, 7):
        matrices, attention = traffic.training_flops(n, **shape, hidden=48)
        pairs = sum(range(1, n + 1))
        assert matrices == 6 * numbers and n * attention == 7 * 2 * 4 * 6 * pairs
