"""Intent and slot models: kinds by name, the initial model of a training, and models as files.

A model file is one safetensors file with weights, sizes, labels and vocabulary.  The vocabulary's
provenance is in it too, so that an oracle's vocabulary stays one.

Guarantee: loading runs no code that the file chooses (there are no pickles), and sets no memory
aside for sizes that the file's own tensors do not have.  The same model makes the same bytes.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from tacit.models import weights
from tacit.models.base import require
from tacit.models.clc import Clc, ClcConfig
from tacit.models.understanding import UnderstandingModel
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.encoding import Encoder, Labels, PieceEncoder, WordEncoder
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.word_vectors import read_word_vectors
from tacit.tokenizers import provenance
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.wordpiece import PieceVocabulary

_NAMES = ("clc", "bert")

_KEY = "tacit-nlu"


@dataclass(frozen=True)
class _Kind:
    """What a kind of model is made of; `config` is a frozen dataclass of sizes."""

    config: type[Any]
    model: Callable[[Any, int | Generator], UnderstandingModel]
    encoder: type[Any]


def _kind_named(name: str) -> _Kind:
    if name == "clc":
        return _Kind(ClcConfig, Clc, WordEncoder)
    if name == "bert":
        require("transformers", extra="nlu", what="the model 'bert'")
        from tacit.models.bert import BertTagger, BertTaggerConfig

        return _Kind(BertTaggerConfig, BertTagger, PieceEncoder)
    raise ValueError(f"there is no intent and slot model {name!r}: known are {', '.join(_NAMES)}")


def _decided(labels: Labels, encoder: Encoder) -> dict[str, int]:
    """The sizes of a model that labels and encoder decide."""
    return {"intents": len(labels.intents), "tags": len(labels.tags), **encoder.sizes}


def build(
    kind: str,
    labels: Labels,
    encoder: Encoder,
    options: Mapping[str, Any] | None = None,
    seed: int | Generator = 0,
) -> UnderstandingModel:
    """A new model for these labels and this encoder, with initial weights drawn from the seed.

    Args:
        kind: "clc" or "bert".
        labels: the intents and tags that it can answer.
        encoder: how it reads; it has to be of the kind's own class.
        options: the sizes that neither labels nor encoder decide, such as `hidden` of "clc".
        seed: of the initial weights.
    """
    known = _kind_named(kind)
    if not isinstance(encoder, known.encoder):
        raise ValueError(
            f"the model {kind!r} reads with a {known.encoder.__name__}, got a"
            f" {type(encoder).__name__}"
        )
    decided = _decided(labels, encoder)
    chosen = dict(options or {})
    free = [field.name for field in dataclasses.fields(known.config) if field.name not in decided]
    for name in chosen:
        if name in decided:
            raise ValueError(f"{name} is not an option: labels and encoder decide it")
        if name not in free:
            [near] = difflib.get_close_matches(name, free, n=1, cutoff=0.0)
            raise ValueError(
                f"the model {kind!r} has no option {name!r}; did you mean {near!r}?  It has"
                f" {', '.join(free)}"
            )
    return known.model(known.config(**decided, **chosen), seed)


def initial_encoder(experiment: NluExperiment, data: NLUData) -> Encoder:
    """How the experiment's model reads; a mistake in its `[model]` comes before any work."""
    chosen = experiment.model
    if chosen.name == "clc":
        if chosen.pretrained:
            raise ValueError("model.pretrained is for bert: clc begins with model.vectors")
        if chosen.vocabulary == "oracle":
            return WordEncoder.oracle(data.train, chosen.vocabulary_size)
        return WordEncoder.from_public(chosen.vocabulary, chosen.vocabulary_size)
    if chosen.vectors:
        raise ValueError("model.vectors is for clc: bert begins with model.pretrained")
    if chosen.pretrained:
        require("transformers", extra="nlu", what="the model 'bert'")
        return PieceEncoder.from_folder(chosen.pretrained)
    if chosen.vocabulary == "oracle":
        raise ValueError("model.vocabulary of bert must be a public text, got 'oracle'")
    texts = PublicSource(chosen.vocabulary).texts()
    origin = provenance.public(chosen.vocabulary)
    return PieceEncoder(PieceVocabulary.learn(texts, chosen.vocabulary_size, provenance=origin))


def initial_model(
    experiment: NluExperiment, encoder: Encoder, labels: Labels
) -> UnderstandingModel:
    """What the experiment's `[model]` asks for, with the weights that its training begins with."""
    chosen, options = experiment.model, dict(experiment.model.options)
    if chosen.pretrained:
        from tacit.models.bert import BertTagger, load_pretrained, pretrained_sizes

        sizes = pretrained_sizes(chosen.pretrained)
        own = ("width", "layers", "heads", "intermediate")  # no vocabulary decides these
        options = {name: getattr(sizes, name) for name in own} | options
    model = build(chosen.name, labels, encoder, options, chosen.seed)
    if chosen.pretrained:
        assert isinstance(model, BertTagger)
        load_pretrained(model, chosen.pretrained)
    if chosen.vectors:
        assert isinstance(model, Clc)
        assert isinstance(encoder, WordEncoder)
        vectors = read_word_vectors(chosen.vectors, encoder.words, model.config.word_size)
        for word, vector in vectors.items():
            model.set_word_vector(encoder.id(word), vector)
    return model


@dataclass(frozen=True)
class NluModel:
    """A model, how it reads, and its labels: all that is needed to ask it about an utterance."""

    model: UnderstandingModel
    encoder: Encoder
    labels: Labels
    trained_on: tuple[str, ...] = ()  # identities of the sets of people's utterances

    @classmethod
    def load(cls, path: str | Path) -> NluModel:
        """The model of a file, ready to be asked or trained on."""
        path = Path(path)
        metadata, tensors = weights.unpack(path, _KEY, "an intent and slot model")
        kind, config, labels, encoder, trained_on = _read_parts(path, metadata)
        with torch.device("meta"):  # sizes are compared before any memory is set aside for them
            expected = kind.model(config, 0).state_dict()
        weights.check_tensors(path, expected, tensors)
        model = kind.model(config, 0)
        model.load_state_dict(tensors)
        return cls(model.eval(), encoder, labels, trained_on)

    def to_bytes(self) -> bytes:
        """The model as a file; `ValueError` if the weights are not finite numbers of float32."""
        config, state = self.model.config, self.model.state_dict()
        tensors = {name: value.detach().contiguous() for name, value in state.items()}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise ValueError(f"{name} is {tensor.dtype}, not float32")
        content = {
            "model": config.kind,
            "config": {
                each.name: getattr(config, each.name) for each in dataclasses.fields(config)
            },
            "labels": dataclasses.asdict(self.labels),
            "encoder": self.encoder.to_json(),
            "trained_on": sorted(set(self.trained_on)),
        }
        return weights.pack(tensors, _KEY, json.dumps(content, sort_keys=True))


def _read_parts(path: Path, metadata: str) -> tuple[_Kind, Any, Labels, Encoder, tuple[str, ...]]:
    """Kind, sizes, labels and encoder, which have to agree with each other, and `trained_on`."""
    try:
        content = json.loads(metadata)
        kind = _kind_named(content["model"])
        config = kind.config(**content["config"])
        labels = Labels(tuple(content["labels"]["intents"]), tuple(content["labels"]["tags"]))
        encoder: Encoder = kind.encoder.from_json(content["encoder"])
        trained_on = tuple(map(str, content.get("trained_on", ())))
    except (KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError(
            f"{path} has metadata in which something is missing or malformed:"
            f" {type(problem).__name__}: {problem}"
        ) from problem
    except ValueError as problem:
        raise ValueError(f"{path} has metadata that is not valid: {problem}") from problem
    for name, value in _decided(labels, encoder).items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{path} has a model for {getattr(config, name)} {name}, and lists {value}"
            )
    return kind, config, labels, encoder, trained_on
