"""The models' equations, one text, one step and one gate at a time, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

Weights = Mapping[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gate(layer: Weights, name: str, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """W [x, h] + b."""
    return layer[f"{name}_kernel"] @ np.concatenate([x, h]) + layer[f"{name}_bias"]


def lstm_step(layer: Weights, x: np.ndarray, h: np.ndarray, c: np.ndarray):
    i = sigmoid(gate(layer, "input", x, h))
    f = sigmoid(gate(layer, "forget", x, h))
    o = sigmoid(gate(layer, "output", x, h))
    c = f * c + i * np.tanh(gate(layer, "cell", x, h))
    return o * np.tanh(c), c


def cifg_step(layer: Weights, x: np.ndarray, h: np.ndarray, c: np.ndarray):
    f = sigmoid(gate(layer, "forget", x, h))
    o = sigmoid(gate(layer, "output", x, h))
    c = f * c + (1 - f) * np.tanh(gate(layer, "cell", x, h))
    return o * np.tanh(c), c


def projected_cifg_step(layer: Weights, x: np.ndarray, h: np.ndarray, c: np.ndarray):
    h, c = cifg_step(layer, x, h, c)
    return layer["projection"] @ h, c


def gru_step(layer: Weights, x: np.ndarray, h: np.ndarray, c: np.ndarray):
    r = sigmoid(gate(layer, "reset", x, h))
    z = sigmoid(gate(layer, "update", x, h))
    n = np.tanh(gate(layer, "candidate", x, r * h))
    return z * h + (1 - z) * n, c


STEPS = {
    "lstm": lstm_step,
    "cifg": cifg_step,
    "cifg-projected": projected_cifg_step,
    "gru": gru_step,
    "lstm-14m": lstm_step,
}


def recurrent_logits(
    kind: str, weights: Weights, tokens: Sequence[int], context: Sequence[float] = ()
) -> np.ndarray:
    """[time, vocabulary] for one text."""
    layers = []
    while any(name.startswith(f"layers.{len(layers)}.") for name in weights):
        start = f"layers.{len(layers)}."
        layers.append({k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)})
    embedding = weights["embedding.weight"]
    cells = [len(layer["cell_bias" if "cell_bias" in layer else "update_bias"]) for layer in layers]
    c = [np.zeros(n) for n in cells]
    h = [np.zeros(len(layer.get("projection", own))) for layer, own in zip(layers, c, strict=True)]
    rows = []
    for token in tokens:
        x = np.concatenate([embedding[token], context])
        for depth, layer in enumerate(layers):
            h[depth], c[depth] = STEPS[kind](layer, x, h[depth], c[depth])
            x = h[depth]
        if "projection.weight" in weights:
            x = weights["projection.weight"] @ x + weights["projection.bias"]
        rows.append(embedding @ x + weights.get("embedding.output_bias", 0.0))
    return np.stack(rows)


def transformer_logits(
    weights: Weights, heads: int, tokens: Sequence[int], context: Sequence[float] = ()
) -> np.ndarray:
    """[time, vocabulary] for one text: attention over the past, position by position."""
    embedding = weights["embedding.weight"]
    size = embedding.shape[1]

    def affine(name: str, x: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return centred * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def position(t: int) -> np.ndarray:
        angles = [t / 10_000 ** (2 * i / size) for i in range(size // 2)]
        return np.array([*map(math.sin, angles), *map(math.cos, angles)])

    gelu = np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)
    stream = [embedding[token] * math.sqrt(size) + position(t) for t, token in enumerate(tokens)]
    if len(context):
        stream = [x + affine("context", np.asarray(context)) for x in stream]
    depth = 0
    while f"blocks.{depth}.query.weight" in weights:
        block = f"blocks.{depth}"
        inputs = [norm(f"{block}.attention_norm", x) for x in stream]
        queries = [np.split(affine(f"{block}.query", x), heads) for x in inputs]
        keys = [np.split(affine(f"{block}.key", x), heads) for x in inputs]
        values = [np.split(affine(f"{block}.value", x), heads) for x in inputs]
        for t in range(len(tokens)):
            parts = []
            for head in range(heads):
                scores = [queries[t][head] @ keys[s][head] for s in range(t + 1)]
                chances = np.exp(np.array(scores) / math.sqrt(size // heads))
                chances /= chances.sum()
                parts.append(sum(chances[s] * values[s][head] for s in range(t + 1)))
            x = stream[t] + affine(f"{block}.attention_output", np.concatenate(parts))
            wide = gelu(affine(f"{block}.widen", norm(f"{block}.feed_forward_norm", x)))
            stream[t] = x + affine(f"{block}.narrow", wide)
        depth += 1
    outputs = [norm("output_norm", x) for x in stream]
    return np.stack([embedding @ o + weights.get("embedding.output_bias", 0.0) for o in outputs])
