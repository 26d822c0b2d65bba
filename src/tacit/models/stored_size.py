"""How large a stored model is, from the head of its file alone: without torch, and at once."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open


def stored_numbers(path: Path) -> int:
    """How many numbers a model's file holds: the parameters of any model of ours, and no more."""
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    except SafetensorError as mistake:
        raise ValueError(f"{path} is truncated, or no safetensors file: {mistake}") from mistake
    return sum(math.prod(shape) for shape in shapes)
