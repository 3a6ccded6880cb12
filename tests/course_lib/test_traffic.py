"""The closed forms, against figures done by hand. The reference's tests compare them with the machine."""

import functools

import pytest

from course_lib import traffic


@pytest.mark.parametrize(
    "form",
    [traffic.standard_attention, functools.partial(traffic.flash_attention_backward, block_q=8, block_k=16)],
    ids=["standard", "backward"],
)
def test_heads_and_batch_multiply_everything(form):
    one, many = form(20, 30, 4), form(20, 30, 4, heads=3, batch=2)
    for field in ("read_bytes", "write_bytes", "flops", "peak_bytes"):
        assert getattr(many, field) == 6 * getattr(one, field)


def test_folklore_f25_decoding_is_about_one_flop_a_byte_and_head():
    """fp16 and many keys: a FLOP for each byte, times the query heads that share the keys."""
    for group in (1, 4, 8):
        form = traffic.decode([8192, 5000], 128, heads=8, kv_heads=8 // group)
        assert 0.995 * group < form.arithmetic_intensity < group
    split = traffic.decode([8192, 5000], 128, heads=8, kv_heads=1, splits=8)
    assert split.peak_bytes == 2 * 8 * 8 * 130 * 4 and split.flops == form.flops == 4 * 8 * 13_192 * 128


def test_a_training_step_s_flops_are_those_of_the_model_s_numbers_and_visible_pairs():
    from course_lib.serving.model import Block

    shape = {"width": 12, "heads": 6, "kv_heads": 2, "head_dim": 4}
    numbers = sum(x.numel() for x in Block(**shape).parameters() if x.dim() == 2)
    for n in (1, 7):
        matrices, attention = traffic.training_flops(n, **shape, hidden=48)
        pairs = sum(range(1, n + 1))
        assert matrices == 6 * numbers and n * attention == 7 * 2 * 4 * 6 * pairs
