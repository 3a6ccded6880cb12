"""The course's attention in small random models of transformers: logits, gradients and generated tokens.

What is right is the model in float64 with transformers' own eager attention, each sequence alone where several share a
row. The error budget is set by eager attention in fp32, and by PyTorch's where a model takes it.
"""

import contextlib
import runpy
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, CompileConfig, DynamicCache, StaticCache
from transformers.masking_utils import create_causal_mask
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from course_lib import huggingface
from courseware.bench.accuracy import assert_within_budget
from tests.course_lib.kernels.common import DEVICE, ON_CPU, random
from tests.thorough import slow, some

huggingface.register()
N, WINDOW = 22, 6
SHAPE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    tie_word_embeddings=False,  # tied, they write one word again and again
    initializer_range=0.3,  # so large that it matters which keys are seen, and how much each counts
)  # fmt: skip
SLIDING = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
ONE_LAYER = dict(num_hidden_layers=1, layer_types=SLIDING["layer_types"][:1])
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1)
MODELS = {
    "llama": {},
    "qwen3": SLIDING | dict(use_sliding_window=True),
    "gemma2": SLIDING | dict(attn_logit_softcapping=1.5, query_pre_attn_scalar=16),
    "gemma3_text": SLIDING | dict(query_pre_attn_scalar=5),
    "gpt_oss": SLIDING | EXPERTS,
    # Chunks of 8 tokens.
    "llama4_text": EXPERTS | dict(
        attention_chunk_size=8, layer_types=["chunked_attention", "full_attention"], intermediate_size_mlp=32
    ),
    # Values of 6 numbers, queries and keys of 12.
    "deepseek_v3": dict(
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6, first_k_dense_replace=2,
        num_key_value_heads=4, head_dim=4,
    ),
}  # fmt: skip
NO_SDPA = {"gemma2", "gpt_oss"}  # soft caps and sinks
# Where masks are made without position_ids, only cu_seq_lens_q says that a row is packed.
BY_LENGTHS = {"gpt_oss"}
PROMPTS = torch.randint(1, 64, (3, N), generator=torch.Generator().manual_seed(3)).to(DEVICE)
PADDING = torch.ones(3, N, dtype=torch.int64, device=DEVICE)
PADDING[0, :9], PADDING[1, 18:] = 0, 0  # in front; behind, where a window still shows other tokens; none
LENGTHS = (5, 13, 4)
POSITIONS = torch.cat([torch.arange(n) for n in LENGTHS])[None].to(DEVICE)
CU_SEQ_LENS = torch.tensor([0, 5, 18, 22], dtype=torch.int32, device=DEVICE)


def made(name, implementation="course", **changes):
    """The model, with the same weights for every implementation."""
    torch.manual_seed(1)
    config = CONFIG_MAPPING[name](**SHAPE | MODELS[name] | changes)
    how = dict(attn_implementation=implementation, experts_implementation="eager")  # the others have no float64
    model = AutoModelForCausalLM.from_config(config, **how).to(DEVICE).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=1.5)
    return model


@contextlib.contextmanager
def in_float64(monkeypatch):
    """What a model computes in fp32 whatever its dtype, softmax and norms, is computed in float64."""
    with monkeypatch.context() as patched:
        patched.setattr(torch, "float32", torch.float64)
        yield


def results(model, counted, **given):
    """The logits of the tokens that count, and the gradients of a loss that depends on all of them."""
    logits = model(**given, use_cache=False).logits[counted]
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)).to(DEVICE, logits.dtype)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad((logits * weights).sum(), parameters, allow_unused=True)
    return {"logits": logits.detach()} | {n: g for n, g in zip(names, gradients, strict=True) if g is not None}


def of_each_alone(model):
    """`results` of the sequences that PROMPTS[:1] has one behind the other, each in a row of its own."""
    rows = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64, device=DEVICE)
    is_token = torch.arange(max(LENGTHS), device=DEVICE) < torch.tensor(LENGTHS, device=DEVICE)[:, None]
    rows[is_token] = PROMPTS[0]
    return results(model, is_token, input_ids=rows, attention_mask=is_token.long())


def check(name, monkeypatch, of_course, of_others):
    plain = [of_others(made(name, other)) for other in ("eager", "sdpa") if other == "eager" or name not in NO_SDPA]
    exact_model = made(name, "eager").double()
    with in_float64(monkeypatch):
        exact = of_others(exact_model)
    answer = of_course(made(name))
    assert answer.keys() == exact.keys()
    for tensor in exact:
        for of_plain in plain:
            # Gradients are sums of terms of either sign. Of a sink's, each token brings one: with random signs they are
            # together sqrt(N) times as large as their sum.
            terms = None if tensor == "logits" else exact[tensor].abs() + exact[tensor].abs().max()
            terms = N**0.5 * terms if tensor.endswith("sinks") else terms
            assert_within_budget(tensor, answer[tensor], of_plain[tensor], exact[tensor], torch.float32, terms=terms)


# Each kind of mask and of layer is in one of the models that `make test` tries here, and in one further below.
@pytest.mark.parametrize("name", some(MODELS, {"gemma2", "llama4_text", "deepseek_v3"}))
def test_logits_and_gradients(name, monkeypatch):
    def of_all(model):
        return results(model, slice(None), input_ids=PROMPTS[:1])

    check(name, monkeypatch, of_all, of_all)


@pytest.mark.parametrize("name", some(MODELS, {"gpt_oss", "llama4_text"}))
def test_padding_in_front_and_behind(name, monkeypatch):
    """Padding that sees nothing but padding counts for nothing: others have an average there, we have 0."""
    sees, given = PADDING[:2].cumsum(1) > 0, dict(input_ids=PROMPTS[:2], attention_mask=PADDING[:2])

    def of_tokens(model):
        return results(model, sees, **given)

    check(name, monkeypatch, of_tokens, of_tokens)


@pytest.mark.parametrize("name", some(MODELS, {"gpt_oss", "gemma2", "llama4_text"}))
def test_packed_rows(name, monkeypatch):
    how = dict(cu_seq_lens_q=CU_SEQ_LENS, cu_seq_lens_k=CU_SEQ_LENS) if name in BY_LENGTHS else {}
    how |= dict(input_ids=PROMPTS[:1], position_ids=POSITIONS)
    check(name, monkeypatch, lambda model: results(model, 0, **how), of_each_alone)


def test_values_larger_than_keys():
    q, k, v = random(1, 2, 9, 8), random(1, 2, 9, 8, seed=1), random(1, 2, 9, 12, seed=2)
    found, _ = huggingface.attend(torch.nn.Module(), q, k, v, None)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# Caches.


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions that attention calls."""
    names = []

    def counted(function):
        return lambda *arguments, **how: names.append(function.__name__) or function(*arguments, **how)

    for function in (huggingface.flash_attention, huggingface.flash_decode):
        monkeypatch.setattr(huggingface, function.__name__, counted(function))
    return names


def generated(model, cache, **how):
    """Seven tokens behind five, of which one has padding in front: beyond a window, and beyond a chunk."""
    prompts = {"input_ids": PROMPTS[[0, 2], 7:12], "attention_mask": PADDING[[0, 2], 7:12]}
    return model.generate(
        **prompts, max_new_tokens=7, do_sample=False, cache_implementation=cache, output_logits=True,
        return_dict_in_generate=True, **how,
    )  # fmt: skip


@pytest.mark.parametrize("name", some(MODELS, {"gpt_oss", "llama4_text"}))
def test_generated_tokens_are_eagers_whatever_the_cache(name, calls):
    model, expected = made(name), generated(made(name, "eager"), "dynamic")
    model.generation_config.disable_compile = True  # which a static cache brings about on a GPU
    assert len(set(expected.sequences[:, 5:].flatten().tolist())) > 3
    for cache in ("dynamic", "static"):
        calls.clear()
        found = generated(model, cache)
        assert torch.equal(found.sequences, expected.sequences), cache
        torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)
        assert calls == 2 * ["flash_attention"] + 2 * 6 * ["flash_decode"]


@pytest.mark.parametrize("name", some(("llama", "gemma2"), {"gemma2"}))
@pytest.mark.parametrize("is_static", (False, True))
def test_a_prompt_in_parts(name, is_static):
    """Several tokens come where others are in the cache, which in a static one is neither empty nor full."""
    model = made(name)
    with torch.no_grad():
        whole = model(PROMPTS[:1], use_cache=False).logits
        cache = StaticCache(model.config, max_cache_len=N + 5) if is_static else DynamicCache(config=model.config)
        parts = [model(part, cache=cache).logits for part in PROMPTS[:1].split((9, 1, 4, 8), dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


# Training.


def test_gradient_checkpointing_repeats_dropout():
    """What is computed once more for the backward draws what the forward drew."""
    found = []
    for is_checkpointed in (False, True):
        model = made("qwen3", attention_dropout=0.5, **ONE_LAYER).train()
        if is_checkpointed:
            model.activation_checkpointing_enable()
        torch.manual_seed(7)
        found.append(results(model, PADDING.bool(), input_ids=PROMPTS, attention_mask=PADDING))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    without = results(model.eval(), PADDING.bool(), input_ids=PROMPTS, attention_mask=PADDING)
    assert not torch.allclose(found[0]["logits"], without["logits"])


def compiled(model):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    return model


@pytest.mark.parametrize("name", some(("llama", "gemma2"), {"gemma2"}))
def test_compiled_whole(name):
    """One graph for the forward and one for the backward, in which masks, too, are computed."""
    packed = dict(input_ids=PROMPTS[:1], position_ids=POSITIONS)
    given = packed if name == "gemma2" else dict(input_ids=PROMPTS, attention_mask=PADDING)
    model = made(name, **ONE_LAYER)
    expected = results(model, slice(None), **given)
    torch.testing.assert_close(results(compiled(model), slice(None), **given), expected, rtol=1e-4, atol=1e-5)


@slow
def test_decoding_compiled_whole():
    """As `generate` does on a GPU, with a static cache."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    config._compile_all_devices = True
    expected = generated(made("gemma2", "eager"), "dynamic")
    found = generated(made("gemma2"), "static", compile_config=config)
    # Not one: until a window is full, its cache counts in a Python number, with eager attention as well.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert torch.equal(found.sequences, expected.sequences)


# What is refused.


def with_gaps(model):
    mask = PADDING.clone()
    mask[2, 4] = 0
    return model(PROMPTS, attention_mask=mask)


def mask_of(**how):
    config = made("llama").config
    return create_causal_mask(
        config=config, inputs_embeds=torch.zeros(1, N, 1, device=DEVICE), attention_mask=None, cache=None, **how
    )


BLOCKS = torch.tensor([[-1] * 10 + [0] * 12], device=DEVICE)
REFUSALS = {
    "output_attentions asks for the weights": lambda model: model(PROMPTS, output_attentions=True),
    "attention_mask is torch.float32 .3, 1, 22, 22.; accepted: .batch, tokens.": lambda model: model(
        PROMPTS, attention_mask=torch.zeros(3, 1, N, N, device=DEVICE)
    ),
    "attention_mask has gaps; accepted: causal masks": with_gaps,
    "the model's mask shows later tokens; accepted: causal": lambda _: made("llama", is_causal=False)(PROMPTS),
    "the model changes its mask by or_mask_function or and_mask_function; accepted": lambda _: mask_of(
        or_mask_function=lambda b, h, i, j: j < 3
    ),
    "the model's mask shows later tokens; accepted": lambda _: mask_of(block_sequence_ids=BLOCKS),
    "cu_seq_lens_q comes with 1 queries and 23 keys": lambda model: model(
        PROMPTS[:, :1], cache=model(PROMPTS, use_cache=True).cache, cu_seq_lens_q=CU_SEQ_LENS
    ),
    **{
        f"{name} asks for .*; not with the course": lambda model, name=name: model(PROMPTS, **{name: PROMPTS})
        for name in ("position_bias", "indices", "block_indices", "sinks", "block_table")
    },
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refused_by_name(message):
    with pytest.raises(NotImplementedError, match=message):
        REFUSALS[message](made("llama"))


@pytest.mark.skipif(not ON_CPU, reason="a GPU runs nothing after a failed assertion")
def test_a_compiled_model_refuses_as_well():
    with pytest.raises(RuntimeError, match="attention_mask has gaps"):
        with_gaps(compiled(made("llama", num_hidden_layers=1)))


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"needs transformers 5.24 or newer: pip install 'flash-attention-course\[mod"
    ):
        runpy.run_path(huggingface.__file__)


def test_names():
    huggingface.register("course")
    for name in ("sdpa", "flash_attention_2", "my_flash", "a/b", ""):
        with pytest.raises(ValueError, match=f"name is {name!r}; accepted: a new identifier without eager, sdpa"):
            huggingface.register(name)
