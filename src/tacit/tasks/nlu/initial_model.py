"""The encoder and the initial model of a training: words or pieces, random or pre-trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tacit.models.base import require
from tacit.models.clc import Clc
from tacit.models.understanding import UnderstandingModel
from tacit.models.word_vectors import read_word_vectors
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.encoding import Encoder, Labels
from tacit.tasks.nlu.experiment import ModelChoice, NluExperiment
from tacit.tasks.nlu.registry import build
from tacit.tasks.nlu.word_encoder import WordEncoder
from tacit.tokenizers import provenance
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.wordpiece import PieceVocabulary


@dataclass(frozen=True)
class InitialModel:
    """How the model reads, and how to make it once the labels are known."""

    encoder: Encoder
    build: Callable[[Labels], UnderstandingModel]


def initial_model(experiment: NluExperiment, data: NLUData) -> InitialModel:
    """What the experiment's `[model]` asks for; a mistake in it comes before any work."""
    chosen = experiment.model
    return _initial_bert(chosen) if chosen.name == "bert" else _initial_clc(chosen, data)


def _initial_clc(chosen: ModelChoice, data: NLUData) -> InitialModel:
    if chosen.pretrained:
        raise ValueError("model.pretrained is for bert: clc begins with model.vectors")
    if chosen.vocabulary == "oracle":
        encoder = WordEncoder.oracle(data.train, chosen.vocabulary_size)
    else:
        encoder = WordEncoder.from_public(chosen.vocabulary, chosen.vocabulary_size)

    def build_model(labels: Labels) -> UnderstandingModel:
        model = build("clc", labels, encoder, chosen.options, chosen.seed)
        if chosen.vectors:
            _set_vectors(model, encoder, chosen.vectors)
        return model

    return InitialModel(encoder, build_model)


def _set_vectors(model: UnderstandingModel, encoder: WordEncoder, path: str) -> None:
    assert isinstance(model, Clc)
    model.set_word_vectors(read_word_vectors(path, encoder.words, model.config.word_size))


def _initial_bert(chosen: ModelChoice) -> InitialModel:
    if chosen.vectors:
        raise ValueError("model.vectors is for clc: bert begins with model.pretrained")
    require("transformers", extra="nlu", what="the model 'bert'")
    from tacit.models.bert import BertTagger, load_pretrained, pretrained_options
    from tacit.tasks.nlu.pieces import PieceEncoder

    options = dict(chosen.options)
    if chosen.pretrained:
        encoder = PieceEncoder.from_folder(chosen.pretrained)
        options = {**pretrained_options(chosen.pretrained), **options}
    elif chosen.vocabulary == "oracle":
        raise ValueError("model.vocabulary of bert must be a public text, got 'oracle'")
    else:
        texts = PublicSource(chosen.vocabulary).texts()
        origin = provenance.public(chosen.vocabulary)
        learnt = PieceVocabulary.learn(texts, chosen.vocabulary_size, provenance=origin)
        encoder = PieceEncoder(learnt)

    def build_model(labels: Labels) -> UnderstandingModel:
        model = build("bert", labels, encoder, options, chosen.seed)
        assert isinstance(model, BertTagger)
        if chosen.pretrained:
            load_pretrained(model, chosen.pretrained)
        return model

    return InitialModel(encoder, build_model)
