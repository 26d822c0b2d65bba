"""From an experiment to the parts that a training of a language model runs with.

An experiment says what; here it becomes objects: the users' update, the server's optimizer, the
tokenizer, the starting model.  Whatever in it contradicts the corpus, or would void the guarantee
that it asks for, is refused here, before anything is written.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.config.experiment import Experiment, Pretraining
from tacit.corpus.people import is_same_people
from tacit.corpus.public_inputs import refuse_private_origin
from tacit.corpus.source import UserCorpus, UserSource
from tacit.federated.averaging import IterateAveraging
from tacit.federated.schedule import RateSchedule
from tacit.federated.server import OPTIMIZERS, ServerOptimizer
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.sampled_softmax import SampledSoftmax
from tacit.models import registry, weights
from tacit.models.base import LanguageModel, to_vector, train_only
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import PriorCost
from tacit.public.pretrain import Settings, StepReport, pretrain
from tacit.public.text import read_public_text
from tacit.tasks.language.people import public_frequencies
from tacit.tasks.language.starts import refuse_other_tokenizer, weights_file
from tacit.tasks.task import Announce
from tacit.tokenizers import build
from tacit.tokenizers.base import path_of
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer


def user_update(experiment: Experiment) -> FedAvg | FedSGD:
    """What users compute: E epochs of SGD (FedAvg), or one gradient (FedSGD), of Algorithm 1."""
    settings = experiment.update
    negatives = settings.sampled_negatives
    common: dict[str, Any] = {
        **settings.model_dump(
            include={"batch_size", "unroll", "learning_rate", "rows", "tokens_per_round"}
        ),
        "sampled_softmax": None if negatives is None else SampledSoftmax(negatives),
    }
    if settings.algorithm == "fedsgd":
        return FedSGD(**common)
    return FedAvg(
        **common,
        **settings.model_dump(include={"local_epochs", "update_penalty", "shuffle"}),
        clip_each_step=settings.clip == "greedy" and experiment.plan.clipping != "none",
    )


def server_optimizer(experiment: Experiment) -> ServerOptimizer:
    """What the server does with an average: the named optimizer with the settings that it has."""
    settings = experiment.server.model_dump()
    optimizer: Any = OPTIMIZERS[settings["optimizer"]]  # a dataclass; the base has no fields
    names = [field.name for field in fields(optimizer) if field.name in settings]
    server: ServerOptimizer = optimizer(**{name: settings[name] for name in names})
    return server


def rate_schedule(experiment: Experiment) -> RateSchedule:
    """The server's learning rate over the rounds; without a schedule it is constant."""
    settings = experiment.server.schedule
    return RateSchedule() if settings is None else RateSchedule(**settings.model_dump())


def iterate_averaging(experiment: Experiment) -> IterateAveraging | None:
    """Which rounds' models the released one is a mean of; None: it is that of the last round."""
    settings = experiment.server.averaging
    return None if settings is None else IterateAveraging(**settings.model_dump())


def tokenizer_of(experiment: Experiment, users: UserSource) -> LearntTokenizer:
    """The tokenizer, which is part of the release (design rule 9), and where it comes from.

    A file or folder is loaded; "oracle" learns from the users' own text, which voids the guarantee
    and has to be accepted; anything else names a public text or word list.
    """
    choice = experiment.tokenizer
    source, accept_oracle = choice.source, choice.accept_oracle
    if source.endswith(FILE_NAME) or (path_of(source) / FILE_NAME).is_file():
        return load_tokenizer(source, accept_oracle)
    if source == "oracle":
        tokenizer = build.oracle(users, choice.kind, choice.size, choice.normalisation)
    else:
        named = PublicSource(source)
        tokenizer = named.tokenizer(choice.kind, choice.size, choice.normalisation)
    return _refuse_void(LearntTokenizer(tokenizer), source, accept_oracle)


def load_tokenizer(source: str, accept_oracle: bool) -> LearntTokenizer:
    """A tokenizer from a file or folder; one that voids every guarantee has to be accepted."""
    return _refuse_void(LearntTokenizer.load(path_of(source)), source, accept_oracle)


def _refuse_void(learnt: LearntTokenizer, source: str, accept_oracle: bool) -> LearntTokenizer:
    if learnt.why_void and not accept_oracle:
        raise ValueError(
            f"the tokenizer {source} voids every guarantee: {learnt.why_void}; take a public"
            " one, or say tokenizer.accept_oracle = true for a run that claims nothing"
        )
    return learnt


def untrained_model(experiment: Experiment, tokenizer: Tokenizer) -> LanguageModel:
    """The experiment's model with random weights, whatever it starts from."""
    choice = experiment.model
    return registry.build(choice.name, tokenizer.vocab_size, seed=choice.seed, **choice.options)


@dataclass(frozen=True)
class StartingModel:
    """A model before its first round, and whose text is in it already."""

    model: LanguageModel
    trained_on: tuple[str, ...] = ()
    costs: tuple[PriorCost, ...] = ()  # what that has cost those people, if it is known

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        tokenizer: Tokenizer,
        corpus: UserCorpus,
        announce: Announce | None = None,
    ) -> StartingModel:
        """The model before its first round: random, or from public text.

        It must not come from the people's text that is to be protected: weights that were trained
        on it outside of this run's ledger are refused.  Weights that other people's text is in are
        named in the claim, with what that has cost them if a ledger beside the weights says so.

        Raises:
            ValueError: if the weights are of another shape, or the settings contradict each other.
        """
        choice = experiment.model
        size = tokenizer.vocab_size
        fresh = untrained_model(experiment, tokenizer)
        if choice.start and (choice.pretrain or choice.public_output_bias):
            raise ValueError(
                "model.start has weights already: leave out pretrain and public_output_bias"
            )
        if not choice.start:
            if source := choice.public_output_bias:
                named = source if isinstance(source, str) else experiment.tokenizer.source
                _set_public_output_bias(fresh, tokenizer, named)
            if choice.pretrain is not None:
                _pretrain(fresh, tokenizer, choice.pretrain, announce)
            return cls(train_only(fresh, choice.trained))
        refuse_other_tokenizer(choice.start, tokenizer)
        path = weights_file(choice.start)
        model = weights.load(path, vocab_size=size, own_factory=choice.own_factory)
        if model.config != fresh.config:
            raise ValueError(
                f"model.start: {path} holds {model.config}, and the experiment asks for"
                f" {fresh.config}"
            )
        origins = weights.trained_on(path)
        if any(is_same_people(corpus.identity, origin) for origin in origins):
            raise ValueError(
                f"model.start: the weights {path} were trained on this very corpus, outside of"
                " this run's ledger; go on from a run with --from RUN@ROUND, or start from public"
                " weights"
            )
        texts = ", ".join(weights.public_texts(path))
        refuse_private_origin(f"model.start: {choice.start}", texts, corpus)
        return cls(train_only(model, choice.trained), origins, tuple(_start_costs(path, origins)))


def _start_costs(path: Path, origins: Sequence[str]) -> Iterator[PriorCost]:
    """What the starting weights have cost the people of other corpora; a bundle's ledger says."""
    book = path.with_name("ledger.jsonl")
    ledger = Ledger.read(book) if origins and book.is_file() else None
    for people in origins:
        known = ledger if ledger is not None and ledger.header.people == people else None
        yield PriorCost(
            what="starting weights",
            whom="elsewhere",
            people=people,
            releases=known.composition() if known else None,
            head=known.head if known else None,
        )


# What this process pre-trained last: the variants of a recipe start from the same weights.
_LAST_PRETRAINED: dict[bytes, dict[str, torch.Tensor]] = {}


def _pretrain(
    model: LanguageModel,
    tokenizer: Tokenizer,
    choice: Pretraining,
    announce: Announce | None,
) -> None:
    """Plain training on public text, in place; it costs no privacy."""
    source = choice.source
    is_file = Path(source).is_file()
    texts = read_public_text([source]).train if is_file else PublicSource(source).texts()
    settings = Settings(
        learning_rate=choice.learning_rate,
        epochs=choice.epochs,
        batch=choice.batch_size,
        unroll=choice.unroll,
    )

    def progress(now: StepReport) -> None:
        if announce is not None:
            announce("pre-training on public text", round(1000 * now.share), 1000)

    encoded = tokenizer.encode_batch(texts)
    what = json.dumps([repr(model.config), asdict(settings), tokenizer.bos, encoded])
    key = hashlib.sha256(what.encode() + to_vector(model).tobytes()).digest()
    if key in _LAST_PRETRAINED:
        model.load_state_dict(_LAST_PRETRAINED[key])
    else:
        pretrain(model, encoded, settings, bos=tokenizer.bos, progress=progress)
        _LAST_PRETRAINED.clear()
        _LAST_PRETRAINED[key] = copy.deepcopy(model.state_dict())
    model.eval()


def _set_public_output_bias(model: LanguageModel, tokenizer: Tokenizer, source: str) -> None:
    """Begin with the word frequencies of public text: log((count + 1) / total)."""
    bias = getattr(getattr(model, "embedding", None), "output_bias", None)
    if bias is None:
        raise ValueError("model.public_output_bias needs a model with output_bias = true")
    counts = public_frequencies(tokenizer, source)
    logs = np.log(counts / counts.sum())
    with torch.no_grad():
        bias.copy_(torch.from_numpy(logs - logs.mean()))
