"""The character model: what it computes, the weights that are shipped, and the command that trained them."""

import json

import pytest
import torch

from course_lib.serving import model
from course_lib.serving.model import ALPHABET, TinyModel, causal_attention, decode, encode, generate, load
from tools import train_tiny_model

RECORD = json.loads(model.WEIGHTS.with_suffix(".json").read_text())


def test_text_becomes_tokens_and_back():
    assert decode(encode(ALPHABET)) == ALPHABET and encode(ALPHABET) == list(range(len(ALPHABET))) and encode("") == []
    with pytest.raises(ValueError, match="the text contains 'Q'; accepted: "):
        encode("a Q")


def logits_of(text, positions=None, model=None):
    positions = torch.arange(len(text)) if positions is None else positions
    return (model or load())(torch.tensor([encode(text)]), positions[None], causal_attention)[0]


def test_a_character_depends_on_those_before_it_alone():
    one, other = logits_of("each row sums to 1"), logits_of("each row sends")
    assert torch.allclose(one[:10], other[:10], atol=1e-4) and (one[10:14] - other[10:]).abs().max() > 1


def test_distances_count_and_positions_do_not():
    model, text = load().double(), "each row sums to 1"
    near, far = (logits_of(text, torch.arange(len(text)) + start, model) for start in (0, 1000))
    assert torch.allclose(near, far, atol=1e-9)
    assert (logits_of(text, 2 * torch.arange(len(text)), model) - near).abs().max() > 0.1


def test_attention_gets_fewer_heads_of_keys_and_each_layer_its_own():
    shapes = []

    def attend(layer, q, k, v):
        shapes.append((layer, *(list(x.shape) for x in (q, k, v))))
        return causal_attention(layer, q, k, v)

    model = TinyModel(n_layers=2, width=12, heads=6, kv_heads=2, head_dim=4)
    model(torch.zeros(3, 5).long(), torch.arange(5)[None], attend)
    assert shapes == [(layer, [3, 6, 5, 4], [3, 2, 5, 4], [3, 2, 5, 4]) for layer in (0, 1)]


def test_the_shipped_weights_are_small_and_as_good_as_recorded():
    assert model.WEIGHTS.stat().st_size < 2**20
    loss = train_tiny_model.held_out_loss(load(), "\n".join(RECORD["held_out"]))
    assert loss == pytest.approx(RECORD["held_out_loss_nats"], abs=1e-4)
    assert loss < 2, "guessing among all characters costs 3.9 nats"


def test_asked_for_a_word_it_gives_the_glossary_s_meaning():
    """Of most words; and the glossary may change a little before the model has to be trained again."""
    entries = dict(entry.split(": ", 1) for entry in train_tiny_model.entries())
    words = list(entries)[::10]
    right = [word for word in words if entries[word].startswith(generate(load(), f"{word}: ", 15))]
    assert len(right) > 0.6 * len(words), right


def test_training_learns_and_repeats():
    text, held_out = train_tiny_model.training_and_held_out()
    assert set(text) <= set(ALPHABET) and len(text) > 10 * len(held_out) > 0
    assert not set(text.split("\n")) & set(held_out.split("\n"))
    losses = [[loss for _, loss, _ in train_tiny_model.train(text[:5000], steps=steps)] for steps in (6, 6)]
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0] - 0.5, losses
