"""The character model: what it computes, the weights that are shipped, and the command that trained them."""

import json

import pytest

from course_lib.serving import model
from course_lib.serving.model import ALPHABET, generate, load
from tools import train_tiny_model

RECORD = json.loads(model.WEIGHTS.with_suffix(".json").read_text())


def test_the_shipped_weights_are_small_and_as_good_as_recorded():
    """So the model is what it was: a character depends on those before it alone, and distances count."""
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
