"""Pre-trained BERT weights from a local folder in HuggingFace's layout.

The folder has config.json and model.safetensors, of a BertModel or of one with heads, which are
passed over.  Nothing is fetched and no pickle is opened.  Where the weights come from is not known
here: see `tacit.public.masked`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tacit.models.bert import BertSizes
from tacit.models.bert_tagger import BertTagger

WEIGHTS, CONFIG = "model.safetensors", "config.json"

_FIELDS = {
    "pieces": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
}
# What else decides about a BERT's output; the values are the ones that are built here.
_FIXED = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def pretrained_sizes(folder: str | Path) -> BertSizes:
    """The sizes of the model in a folder, for a model that is to begin with its weights."""
    folder = Path(folder)
    content = _config(folder)
    try:
        return BertSizes(**{ours: content[theirs] for ours, theirs in _FIELDS.items()})
    except KeyError as missing:
        raise ValueError(f"{folder / CONFIG} has no {missing}, which a BERT's has") from None
    except ValueError as mistake:
        raise ValueError(f"{folder / CONFIG} is not valid: {mistake}") from None


def pretrained_options(folder: str | Path) -> dict[str, int]:
    """The sizes that are the model's alone: no vocabulary decides them."""
    sizes = pretrained_sizes(folder)
    return {name: getattr(sizes, name) for name in ("width", "layers", "heads", "intermediate")}


def load_pretrained(model: BertTagger, folder: str | Path) -> None:
    """Give the model the folder's weights, in place; its intent layer, tags and CRF stay.

    A folder of another size is refused.  Nothing is changed if anything is refused.
    """
    folder = Path(folder)
    found = pretrained_sizes(folder)
    for name, theirs in _FIELDS.items():
        ours, value = getattr(model.config, name), getattr(found, name)
        if ours != value:
            raise ValueError(
                f"{folder / CONFIG} has {theirs} {value}, and the model wants {ours}: set its"
                f" {name} to {value}, or use another folder"
            )
    wanted = model.bert.state_dict()
    tensors = _read(folder / WEIGHTS, wanted)
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(tensors[name])


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected one with {CONFIG} and {WEIGHTS}")
    if not (folder / WEIGHTS).is_file() and (folder / "pytorch_model.bin").exists():
        raise ValueError(
            f"{folder} has pytorch_model.bin, a pickle, which can run any code and is not opened;"
            f" convert it to {WEIGHTS}"
        )
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}; expected a BERT in HuggingFace's layout")
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{folder / CONFIG} is cut off or not valid JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{folder / CONFIG} is no table of settings")
    for name, wanted in _FIXED.items():
        if content.get(name, wanted) != wanted:
            raise ValueError(
                f"{folder / CONFIG} has {name} {content[name]!r}; only {wanted!r} can be used"
            )
    return content


def _read(path: Path, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the names in `wanted`; sizes are compared before any is read."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            stored = {_plain(name): name for name in file.keys()}  # noqa: SIM118
            found = {}
            for name, like in wanted.items():
                if name not in stored:
                    raise ValueError(f"{path} has no {name}, which config.json promises")
                shape = file.get_slice(stored[name]).get_shape()
                if shape != list(like.shape):
                    raise ValueError(f"{path}: {name} must be {list(like.shape)}, got {shape}")
                found[name] = file.get_tensor(stored[name]).to(like.dtype)
                if not torch.isfinite(found[name]).all():
                    raise ValueError(f"{path}: {name} has values that are NaN or infinite")
            return found
    except SafetensorError as mistake:
        raise ValueError(f"{path} is truncated, or no safetensors file: {mistake}") from mistake


def _plain(name: str) -> str:
    """A tensor's name in a bare BertModel of today."""
    name = name.removeprefix("bert.")
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
