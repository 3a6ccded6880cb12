"""A small language model, character by character, to serve in lesson 14: a decoder with grouped-query attention.

It is built like the large ones (RMSNorm, rotary positions, heads that share keys) and is the size of a picture. The
caller decides how attention is computed, by passing a function to `forward`. Training and `generate` pass PyTorch's
attention over the whole text; `serving` passes one that keeps keys and values in pages.

`python -m tools.train_tiny_model` trains it on the course's own prose, and writes tiny-model.npz (the weights, in
fp16) and tiny-model.json (how they were made, and how well they predict text that they were not trained on).

Reading order: text, rotary positions, the model, the trained weights, generating without a cache.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:;?'()/-"
# Added to the mean square in every RMSNorm: fp32's epsilon, in every dtype. PyTorch's default changes with the dtype.
EPSILON = 2.0**-23
WEIGHTS = Path(__file__).with_name("tiny-model.npz")


def encode(text):
    """The tokens of a text: each character's index in ALPHABET. Raises ValueError for one that is not in it."""
    for character in text:
        if character not in ALPHABET:
            raise ValueError(f"the text contains {character!r}; accepted: {ALPHABET!r}")
    return [ALPHABET.index(character) for character in text]


def decode(tokens):
    """The text of these tokens."""
    return "".join(ALPHABET[token] for token in tokens)


def rotate(x, cos, sin):
    """x with each pair of elements (i, i + head_dim / 2) of a row turned by the angle of the row's position.

    x: [batch, heads, n, head_dim]; cos, sin: [batch, 1, n, head_dim / 2]. The score of a rotated query with a rotated
    key depends on how far apart they are, not on where. Su et al., "RoFormer" (2021).
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    """One layer: attention, then two matrix products with a GELU between them. Each adds to what came in."""

    def __init__(self, width, heads, kv_heads, head_dim):
        super().__init__()
        self.heads = (heads, kv_heads, kv_heads)
        self.norm_1, self.norm_2 = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.qkv = nn.Linear(width, sum(self.heads) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin, attend):
        """x: [batch, n, width]. attend(q, k, v) -> o, [batch, heads or kv_heads, n, head_dim]."""
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (sum(self.heads), -1)).transpose(1, 2)
        q, k, v = qkv.split(self.heads, dim=1)
        o = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class TinyModel(nn.Module):
    """A decoder for ALPHABET. kv_heads divides heads, and head_dim is even."""

    def __init__(self, *, n_layers=2, width=128, heads=4, kv_heads=2, head_dim=32):
        super().__init__()
        self.n_layers, self.kv_heads, self.head_dim = n_layers, kv_heads, head_dim
        self.embedding = nn.Embedding(len(ALPHABET), width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, head_dim) for _ in range(n_layers))
        self.norm = nn.RMSNorm(width, EPSILON)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.5 / math.sqrt(weight.shape[1]))

    def forward(self, tokens, positions, attend):
        """The logits of the token after each of these, [batch, n, len(ALPHABET)].

        tokens, positions: int64 [batch, n]; a token's position is how many there are before it in its text.
        attend(layer, q, k, v) -> o: q and o are [batch, heads, n, head_dim], k and v [batch, kv_heads, n, head_dim].
        """
        x = self.embedding(tokens)
        half = self.head_dim // 2
        frequency = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
        angle = positions[:, None, :, None] * frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, lambda *qkv, layer=layer: attend(layer, *qkv))
        return self.norm(x) @ self.embedding.weight.T


def causal_attention(layer, q, k, v):
    """PyTorch's attention of whole texts, as `TinyModel.forward` takes it."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def load():
    """The trained model, in fp32 on the CPU."""
    model = TinyModel()
    with np.load(WEIGHTS) as weights:
        model.load_state_dict({name: torch.from_numpy(weights[name]).float() for name in weights.files})
    return model.requires_grad_(False)


def generate(model, prompt, n_new):
    """The n_new characters that `model` thinks most likely after `prompt`, one after the other.

    Without a cache: each is computed from the whole text before it. This is what serving has to equal.
    """
    tokens = encode(prompt)
    device = model.embedding.weight.device
    for _ in range(n_new):
        positions = torch.arange(len(tokens), device=device)[None]
        logits = model(torch.tensor([tokens], device=device), positions, causal_attention)[0, -1]
        tokens.append(int(logits.argmax()))
    return decode(tokens[len(tokens) - n_new :])
