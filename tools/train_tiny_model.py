"""Trains lesson 14's character model on the course's own prose: `python -m tools.train_tiny_model`.

It takes about two minutes of one core and writes the weights, course_lib/serving/tiny-model.npz, and tiny-model.json:
how they were made, how long that took, and the text that they were not trained on, with their loss on it. The model
sees what the lessons and the exercises say, without code and formulas, and the glossary so often that it knows most
entries by heart: asked for "tile: ", it says what a tile is.
"""

import json
import random
import time

import numpy as np
import torch

from course_lib.serving import training
from course_lib.serving.model import WEIGHTS, TinyModel, encode, generate, load
from courseware.bench import records
from courseware.bench.training_timing import entries, prose

from .authoring import ROOT, SOURCE

STEPS, BATCH, LENGTH, LEARNING_RATE = 1400, 8, 128, 4e-3
GLOSSARY_SHARE = 0.8  # of the text
HELD_OUT = 12  # one paragraph in so many is not trained on
PROMPTS = ("tile: ", "online softmax: ", "each query ")


def training_and_held_out():
    """Two texts, their paragraphs on lines of their own. The first is GLOSSARY_SHARE glossary, over and over."""
    every = prose([*SOURCE.glob("[0-9]*.md"), *(ROOT / "courseware/exercises").glob("*/*.md")])
    trained_on, held_out = [p for i, p in enumerate(every) if i % HELD_OUT], every[::HELD_OUT]
    copies = round(GLOSSARY_SHARE / (1 - GLOSSARY_SHARE) * len("".join(trained_on)) / len("".join(entries())))
    shuffled = random.Random(0)
    # Each copy in another order, so that what a word means is learnt, and not which entry follows which.
    glossary = [entry for _ in range(copies) for entry in shuffled.sample(entries(), len(entries()))]
    return "\n".join(trained_on + glossary), "\n".join(held_out)


def held_out_loss(model, text):
    """The mean loss over a text, cut into pieces of LENGTH, in nats a character."""
    tokens = torch.tensor(encode(text))
    windows = training.windows(tokens, torch.arange(0, len(tokens) - LENGTH, LENGTH), LENGTH)
    with torch.no_grad():
        return float(training.mean_loss(model, *windows))


def train(text, *, steps=STEPS, seed=0):
    """Train a model on random windows of a text. Yields (step, the step's loss, the model after it)."""
    torch.manual_seed(seed)
    model, tokens = TinyModel(), torch.tensor(encode(text))
    how = {"steps": steps, "batch": BATCH, "length": LENGTH, "learning_rate": LEARNING_RATE}
    for step, loss in training.train(model, tokens, **how):
        yield step, loss, model


def main():
    # With more threads, sums would depend on how many there are.
    torch.set_num_threads(1)
    text, held_out = training_and_held_out()
    begin_s = time.process_time()
    for step, loss, model in train(text):  # noqa: B007
        if step % 50 == 0:
            print(f"step {step}: {loss:.3f} nats a character", flush=True)
    cpu_s = time.process_time() - begin_s
    np.savez_compressed(WEIGHTS, **{name: weight.half().numpy() for name, weight in model.state_dict().items()})
    model = load()
    made = {
        "command": "python -m tools.train_tiny_model",
        "commit": records.head(),
        "date": records.today(),
        "torch": torch.__version__,
        "cpu_seconds_on_one_thread": round(cpu_s, 1),
        "training_characters": len(text),
        "held_out_loss_nats": held_out_loss(model, held_out),
        "samples": {prompt: generate(model, prompt, 60) for prompt in PROMPTS},
        "held_out": held_out.split("\n"),
    }
    print(json.dumps({name: value for name, value in made.items() if name != "held_out"}, indent=1))
    WEIGHTS.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
