"""Trains lesson 14's character model on the course's own prose: `python -m tools.train_tiny_model`.

It takes about two minutes of one core and writes the weights, course_lib/serving/tiny-model.npz, and tiny-model.json:
how they were made, how long that took, and the text that they were not trained on, with their loss on it. The model
sees what the lessons and the exercises say, without code and formulas, and the glossary so often that it knows most
entries by heart: asked for "tile: ", it says what a tile is.
"""

import datetime
import json
import math
import random
import re
import subprocess
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from course_lib.serving.model import ALPHABET, WEIGHTS, TinyModel, causal_attention, encode, generate, load
from courseware import TERMS

from .authoring import ROOT, SOURCE

STEPS, BATCH, LENGTH, LEARNING_RATE = 1400, 8, 128, 4e-3
GLOSSARY_SHARE = 0.8  # of the text
HELD_OUT = 12  # one paragraph in so many is not trained on
PROMPTS = ("tile: ", "online softmax: ", "each query ")


def known(text):
    """A text in lower case, in the characters of ALPHABET; None where much of it is code, symbols or a list."""
    words = " ".join(text.lower().replace("`", "").replace("*", "").split())
    kept = "".join(filter(ALPHABET.__contains__, words))
    return kept if len(kept) > 0.97 * len(words) and not words.startswith("- ") else None


def paragraphs():
    """The prose of the lessons and exercises, without code, formulas, tables and headings."""
    found = []
    for path in sorted([*SOURCE.glob("[0-9]*.md"), *(ROOT / "courseware/exercises").glob("*/*.md")]):
        text = re.sub(r"\A---\n.*?^---$|^```.*?^```$|\$\$.*?\$\$|^[|#+].*?$", "", path.read_text(), flags=re.S | re.M)
        text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)  # a link's words without its address
        found += [known(paragraph) for paragraph in re.split(r"\n\s*\n", text)]
    return list(dict.fromkeys(text for text in found if text and len(text) > 40))


def entries():
    """The glossary's, as "word: meaning"."""
    return list(filter(None, (known(f"{word}: {meaning}") for word, (_, meaning) in TERMS.items())))


def training_and_held_out():
    """Two texts, their paragraphs on lines of their own. The first is GLOSSARY_SHARE glossary, over and over."""
    every = paragraphs()
    prose, held_out = [p for i, p in enumerate(every) if i % HELD_OUT], every[::HELD_OUT]
    copies = round(GLOSSARY_SHARE / (1 - GLOSSARY_SHARE) * len("".join(prose)) / len("".join(entries())))
    shuffled = random.Random(0)
    # Each copy in another order, so that what a word means is learnt, and not which entry follows which.
    glossary = [entry for _ in range(copies) for entry in shuffled.sample(entries(), len(entries()))]
    return "\n".join(prose + glossary), "\n".join(held_out)


def windows(tokens, starts):
    """(tokens, the tokens after them), [len(starts), LENGTH] each."""
    index = starts[:, None] + torch.arange(LENGTH + 1)
    found = tokens[index]
    return found[:, :-1], found[:, 1:]


def mean_loss(model, tokens, following):
    """Nats a character."""
    positions = torch.arange(LENGTH).expand(len(tokens), -1)
    return cross_entropy(model(tokens, positions, causal_attention).flatten(0, 1), following.flatten())


def held_out_loss(model, text):
    """The mean loss over a text, cut into pieces of LENGTH, in nats a character."""
    tokens = torch.tensor(encode(text))
    with torch.no_grad():
        return float(mean_loss(model, *windows(tokens, torch.arange(0, len(tokens) - LENGTH, LENGTH))))


def train(text, *, steps=STEPS, seed=0):
    """Train a model on random windows of a text. Yields (step, the step's loss, the model after it)."""
    torch.manual_seed(seed)
    model, tokens = TinyModel(), torch.tensor(encode(text))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        warm = min(1.0, (step + 1) / 30)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * warm * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        loss = mean_loss(model, *windows(tokens, torch.randint(len(tokens) - LENGTH, (BATCH,))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss.item(), model


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
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "date": datetime.date.today().isoformat(),
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
