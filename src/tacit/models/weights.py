"""Models as files: safetensors, with the model's name and sizes as JSON in the metadata.

Guarantee: loading runs no code that the file chooses.  There are no pickles, and a file that names
a model of the user's own is loaded only by a caller who names the same factory.

The same model makes the same bytes, which `durable.write_whole` makes a file of.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tacit.models.base import LanguageModel, ModelConfig, lasting_tensors, train_only
from tacit.models.registry import NAMES, OwnConfig, build, make_config

_KEY = "tacit"


def to_bytes(
    model: LanguageModel, *, trained_on: Sequence[str] = (), public_texts: Sequence[str] = ()
) -> bytes:
    """The file of a model, which `load` reads; `ValueError` if the weights are not finite.

    `trained_on` are the identities of the corpora whose users' text is in the weights, and
    `public_texts` the names of public texts they were trained on, of files with a digest.
    """
    is_own = isinstance(model.config, OwnConfig)
    # Tensors that share memory are refused by safetensors; only the user's own module may have any.
    tensors = {
        name: value.clone(memory_format=torch.contiguous_format) if is_own else value.contiguous()
        for name, value in _tensors(model).items()
    }
    for name, tensor in tensors.items():
        if not is_own and tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tensor.dtype}, not float32")
    return pack(tensors, _KEY, _to_json(model.config, trained_on, public_texts))


def pack(tensors: dict[str, Tensor], key: str, metadata: str) -> bytes:
    """A safetensors file; `ValueError` if a tensor is not finite.

    There is one key of metadata only: safetensors writes several in an order that changes from run
    to run.
    """
    for name, tensor in tensors.items():
        if problem := _not_finite(tensor):
            raise ValueError(f"{name} has {problem}")
    return safetensors.torch.save(tensors, {key: metadata})


def load(
    path: str | Path,
    *,
    vocab_size: int | None = None,
    own_factory: str | None = None,
    trained: Sequence[str] = (),
) -> LanguageModel:
    """The model of a file.

    `vocab_size` is that of the tokenizer the model is to be used with.  `own_factory` allows the
    file to hold a model of the user's own, and has to be the "package.module:factory" of that.
    All parameters but those of `trained` are frozen (`train_only`); none are if it is empty.

    Raises `ValueError` if the file is damaged, names an unknown model, has other tensors than the
    model, or holds numbers that are not finite.  No memory is set aside before sizes are compared.
    """
    path = Path(path)
    metadata, tensors = unpack(path)
    config = _from_json(path, metadata, own_factory)
    if vocab_size is not None and config.vocab_size != vocab_size:
        raise ValueError(
            f"{path} has a vocabulary of {config.vocab_size} tokens and the tokenizer one of"
            f" {vocab_size}: use the tokenizer that the model was trained with"
        )
    # Sizes are compared before any memory is set aside for them.  A module of the user's own may
    # not know the meta device, and is trusted with its sizes.
    is_own = isinstance(config, OwnConfig)
    with torch.device("cpu" if is_own else "meta"):
        model = build(config)
    check_tensors(path, _tensors(model), tensors)
    with torch.no_grad():
        if is_own:
            for name, tensor in _tensors(model).items():
                tensor.copy_(tensors[name])
        else:
            model.load_state_dict(tensors, assign=True)
    return train_only(model, trained)


def load_config(path: str | Path, *, own_factory: str | None = None) -> ModelConfig:
    """The configuration of a file, without its weights."""
    path = Path(path)
    metadata, _ = unpack(path, with_tensors=False)
    return _from_json(path, metadata, own_factory)


def trained_on(path: str | Path) -> tuple[str, ...]:
    """The identities of the corpora of people's text that a file's weights were trained on."""
    return _listed(path, "trained_on")


def public_texts(path: str | Path) -> tuple[str, ...]:
    """The public texts that a file's weights were trained on, as `to_bytes` was given them."""
    return _listed(path, "public_texts")


def _listed(path: str | Path, key: str) -> tuple[str, ...]:
    """The names under a key of a file's metadata; none without the key."""
    metadata, _ = unpack(Path(path), with_tensors=False)
    try:
        return tuple(map(str, json.loads(metadata).get(key, ())))
    except (ValueError, AttributeError, TypeError, RecursionError) as mistake:
        raise ValueError(f"{path} has metadata that cannot be read") from mistake


def _tensors(model: LanguageModel) -> dict[str, Tensor]:
    """What a file holds."""
    return {name: value.detach() for name, value in lasting_tensors(model).items()}


def unpack(
    path: Path, key: str = _KEY, what: str = "a tacit model", *, with_tensors: bool = True
) -> tuple[str, dict[str, Tensor]]:
    """The metadata of a file, and its tensors unless `with_tensors` is False.

    Raises `ValueError` for a file that is cut off, or without metadata of this key.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file; expected a model's weights (*.safetensors)")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = (file.metadata() or {}).get(key)
            names = file.keys() if with_tensors else []
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as mistake:
        raise ValueError(f"{path} is truncated, or no safetensors file: {mistake}") from mistake
    if metadata is None:
        raise ValueError(f"{path} is a safetensors file, but not of {what}")
    return metadata, tensors


def check_tensors(path: Path, expected: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    """The file has what the model has: names, shapes, types; and numbers that are numbers."""
    missing = sorted(expected.keys() - stored.keys())
    extra = sorted(stored.keys() - expected.keys())
    if missing or extra:
        raise ValueError(
            f"{path} holds another model than it says: missing {_few(missing)}, unexpected"
            f" {_few(extra)}"
        )
    for name, like in expected.items():
        tensor = stored[name]
        if tensor.shape != like.shape:
            raise ValueError(
                f"{path}: {name} must have the shape {list(like.shape)}, got {list(tensor.shape)}"
            )
        if tensor.dtype != like.dtype:
            raise ValueError(f"{path}: {name} must be {like.dtype}, got {tensor.dtype}")
        if problem := _not_finite(tensor):
            raise ValueError(f"{path}: {name} has {problem}; the training that made it diverged")


def _not_finite(tensor: Tensor) -> str | None:
    """How many values of a tensor are NaN or infinite, in words; None if none are."""
    if not tensor.is_floating_point() or torch.isfinite(tensor).all():
        return None
    count = tensor.numel() - int(torch.isfinite(tensor).sum())
    return f"{count} of {tensor.numel()} values that are NaN or infinite"


def _few(names: list[str]) -> str:
    """At most three names, and how many more there are."""
    shown = ", ".join(names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _to_json(config: ModelConfig, trained_on: Sequence[str], public_texts: Sequence[str]) -> str:
    """The metadata of a file: the model's kind and sizes, and what it was trained on."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, OwnConfig):
        fields["options"] = dict(config.options)
    content = {"model": config.kind, "config": fields}
    if trained_on:
        content["trained_on"] = sorted(set(trained_on))
    if public_texts:
        content["public_texts"] = list(public_texts)
    return json.dumps(content, sort_keys=True)


def _from_json(path: Path, text: str, own_factory: str | None) -> ModelConfig:
    """The inverse of `_to_json`, for the configuration; `ValueError` for anything unexpected."""
    try:
        content: Any = json.loads(text)
        kind, fields = content["model"], dict(content["config"])
        if kind == OwnConfig.kind:
            if fields["factory"] != own_factory:
                raise ValueError(
                    f"it holds a model made by {fields['factory']!r}; if that code is yours, load"
                    f" it with own_factory={fields['factory']!r}"
                )
            return OwnConfig(**fields)
        if kind not in NAMES:
            raise ValueError(f"it names the model {kind!r}, and there are {', '.join(NAMES)}")
        return make_config(kind, fields.pop("vocab_size"), **fields)
    except (KeyError, TypeError, RecursionError) as mistake:
        raise ValueError(
            f"{path} has a configuration that cannot be read: {type(mistake).__name__}: {mistake}"
        ) from mistake
    except ValueError as mistake:
        raise ValueError(f"{path} has a configuration that is not valid: {mistake}") from mistake
