"""Intent and slot models as files: weights, sizes, labels and vocabulary in one safetensors file.

Guarantee: loading runs no code that the file chooses (there are no pickles), and sets no memory
aside for sizes that the file's own tensors do not have.  A file is written beside its place and
renamed, so it exists whole or not at all, and the same model makes the same bytes.

The file has the encoder's provenance in it, so that an oracle's vocabulary stays one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tacit.models.understanding import UnderstandingModel
from tacit.privacy import durable
from tacit.tasks.nlu.encoding import Encoder, Labels
from tacit.tasks.nlu.registry import Kind, kind_named

# One key only: with several, safetensors writes them in an order that changes from run to run.
_KEY = "tacit-nlu"


@dataclass(frozen=True)
class TrainedModel:
    """All that is needed to ask a model about an utterance."""

    model: UnderstandingModel
    encoder: Encoder
    labels: Labels
    trained_on: tuple[str, ...] = ()  # identities of the sets of people's utterances


def save(path: str | Path, stored: TrainedModel) -> None:
    """Write the model, in the place of any that was there."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} must be a file's name in a folder that exists")
    try:
        data = to_bytes(stored)
    except ValueError as problem:
        raise ValueError(f"{path} was not written: {problem}") from problem
    durable.write_whole(path, data)


def to_bytes(stored: TrainedModel) -> bytes:
    """What `save` writes; `ValueError` if the weights are not finite numbers of float32."""
    tensors = {
        name: value.detach().contiguous() for name, value in stored.model.state_dict().items()
    }
    config = stored.model.config
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tensor.dtype}, not float32")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are NaN or infinite")
    content = {
        "model": config.kind,
        "config": {field.name: getattr(config, field.name) for field in dataclasses.fields(config)},
        "labels": dataclasses.asdict(stored.labels),
        "encoder": stored.encoder.to_json(),
        "trained_on": sorted(set(stored.trained_on)),
    }
    return safetensors.torch.save(tensors, {_KEY: json.dumps(content, sort_keys=True)})


def load(path: str | Path) -> TrainedModel:
    """The model of a file, ready to be asked or trained on."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"{path} is not a file; expected an intent and slot model's (*.safetensors)"
        )
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            content = _content(path, (file.metadata() or {}).get(_KEY))
            kind, config, labels, encoder = _parts(path, content)
            with torch.device("meta"):
                expected = kind.model(config, 0).state_dict()
            _check_sizes(path, file, expected)
            tensors = {name: file.get_tensor(name) for name in expected}
    except SafetensorError as problem:
        raise ValueError(f"{path} is truncated, or no safetensors file: {problem}") from problem
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {name} has values that are NaN or infinite")
    model = kind.model(config, 0)
    model.load_state_dict(tensors)
    trained_on = tuple(map(str, content.get("trained_on", ())))
    return TrainedModel(model.eval(), encoder, labels, trained_on)


def _content(path: Path, metadata: str | None) -> dict[str, Any]:
    if metadata is None:
        raise ValueError(f"{path} is a safetensors file, but not of an intent and slot model")
    try:
        content = json.loads(metadata)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} has metadata that cannot be read")
    return content


def _parts(path: Path, content: dict[str, Any]) -> tuple[Kind, Any, Labels, Encoder]:
    """Kind, sizes, labels and encoder, which have to agree with each other."""
    try:
        kind = kind_named(content["model"])
        config = kind.config(**content["config"])
        labels = Labels(tuple(content["labels"]["intents"]), tuple(content["labels"]["tags"]))
        encoder: Encoder = kind.encoder.from_json(content["encoder"])
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{path} has metadata in which something is missing or malformed:"
            f" {type(problem).__name__}: {problem}"
        ) from problem
    except ValueError as problem:
        raise ValueError(f"{path} has metadata that is not valid: {problem}") from problem
    decided = {"intents": len(labels.intents), "tags": len(labels.tags), **kind.sizes(encoder)}
    for name, value in decided.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{path} has a model for {getattr(config, name)} {name}, and lists {value}"
            )
    return kind, config, labels, encoder


def _check_sizes(path: Path, file: Any, expected: dict[str, Tensor]) -> None:
    """The file has what the model has: names, shapes and types, all of it in the file's header."""
    names = set(file.keys())
    if missing := sorted(expected.keys() - names):
        raise ValueError(f"{path} holds another model than it says: {missing[0]} is missing")
    if extra := sorted(names - expected.keys()):
        raise ValueError(f"{path} holds another model than it says: {extra[0]} is unexpected")
    for name, wanted in expected.items():
        found = file.get_slice(name)
        if found.get_shape() != list(wanted.shape):
            raise ValueError(
                f"{path}: {name} must have the shape {list(wanted.shape)}, got {found.get_shape()}"
            )
        if found.get_dtype() != _TYPES.get(wanted.dtype):
            raise ValueError(f"{path}: {name} must be {wanted.dtype}, got {found.get_dtype()}")


_TYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}
