"""Kinds of intent and slot models by name: what each is made of, and the encoder it reads with."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Generator

from tacit.models.base import require
from tacit.models.understanding import UnderstandingModel
from tacit.tasks.nlu.encoding import Encoder, Labels


@dataclass(frozen=True)
class Kind:
    """`config` is a frozen dataclass of sizes, with `intents` and `tags` among them."""

    config: type[Any]
    model: Callable[[Any, int | Generator], UnderstandingModel]
    encoder: type[Any]  # an `Encoder` with a `from_json`
    sizes: Callable[[Any], dict[str, int]]  # the fields of the config that an encoder decides


def _clc() -> Kind:
    from tacit.models.clc import Clc, ClcConfig
    from tacit.tasks.nlu.word_encoder import WordEncoder

    def sizes(encoder: WordEncoder) -> dict[str, int]:
        return {"words": encoder.word_count, "characters": encoder.character_count}

    return Kind(ClcConfig, Clc, WordEncoder, sizes)


def _bert() -> Kind:
    require("transformers", extra="nlu", what="the model 'bert'")
    from tacit.models.bert import BertTagger, BertTaggerConfig
    from tacit.tasks.nlu.pieces import PieceEncoder

    def sizes(encoder: PieceEncoder) -> dict[str, int]:
        return {"pieces": len(encoder.vocabulary), "positions": encoder.longest}

    return Kind(BertTaggerConfig, BertTagger, PieceEncoder, sizes)


# Each is imported when it is asked for: a kind may need a package that not everybody has.
_KINDS: dict[str, Callable[[], Kind]] = {
    "clc": _clc,
    "bert": _bert,
}

NAMES = tuple(_KINDS)


def kind_named(name: str) -> Kind:
    """What there is to know of a kind."""
    if name not in _KINDS:
        raise ValueError(f"there is no intent and slot model {name!r}: known are {_listed(NAMES)}")
    return _KINDS[name]()


def build(
    kind: str,
    labels: Labels,
    encoder: Encoder,
    options: Mapping[str, Any] | None = None,
    seed: int | Generator = 0,
) -> UnderstandingModel:
    """A new model for these labels and this encoder, with initial weights drawn from the seed.

    `options` are the sizes that neither labels nor encoder decide, such as `hidden` of "clc".
    """
    known = kind_named(kind)
    if not isinstance(encoder, known.encoder):
        raise ValueError(
            f"the model {kind!r} reads with a {known.encoder.__name__}, got a"
            f" {type(encoder).__name__}"
        )
    decided = {"intents": len(labels.intents), "tags": len(labels.tags), **known.sizes(encoder)}
    chosen = dict(options or {})
    free = [field.name for field in dataclasses.fields(known.config) if field.name not in decided]
    for name in chosen:
        if name in decided:
            raise ValueError(f"{name} is not an option: labels and encoder decide it")
        if name not in free:
            [near] = difflib.get_close_matches(name, free, n=1, cutoff=0.0)
            raise ValueError(
                f"the model {kind!r} has no option {name!r}; did you mean {near!r}?  It has"
                f" {_listed(free)}"
            )
    return known.model(known.config(**decided, **chosen), seed)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
