"""What a model says of utterances: its answers, how good they are, and how sure it is of them.

Utterances are put together by their lengths, so that little is computed for padding, and results
come in the order in which the utterances were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tacit.models.understanding import UnderstandingModel
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Encoder, Integers, Labels, Prepared, Ragged
from tacit.tasks.nlu.metrics import NLUMetrics, Prediction, compare, total
from tacit.tasks.nlu.model_files import TrainedModel
from tacit.tasks.nlu.scored import Scored
from tacit.tasks.nlu.slots import slots

Progress = Callable[[int, int], None]  # utterances done, of how many


class Said(Protocol):
    """An utterance whose labels need not be known."""

    @property
    def tokens(self) -> Sequence[str]: ...


def predict(
    model: UnderstandingModel,
    encoder: Encoder,
    labels: Labels,
    utterances: Sequence[Said],
    batch_size: int = 64,
    progress: Progress | None = None,
) -> list[Prediction]:
    """The likeliest intent and the likeliest tags of each utterance."""
    _check_labels(model, labels)
    answers: dict[int, Prediction] = {}
    prepared = encoder.prepare([utterance.tokens for utterance in utterances])
    with _asked(model):
        for places, inputs, mask in _batches(prepared, batch_size, progress):
            intents, tags = model.decode(inputs, mask)
            for place, intent, row in zip(places, intents.tolist(), tags, strict=True):
                named = tuple(labels.tags[tag] for tag in row)
                answers[int(place)] = Prediction(named, labels.intents[intent])
    return [answers[place] for place in range(len(utterances))]


@dataclass(frozen=True)
class Text:
    """What somebody says, without labels."""

    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Understood:
    """The intent of an utterance, and its slots as (type, words)."""

    intent: str
    slots: tuple[tuple[str, str], ...]


def understand(stored: TrainedModel, text: str) -> Understood:
    """What a model makes of an utterance, whose tokens are separated by spaces."""
    tokens = tuple(text.split())
    if not tokens:
        raise ValueError("there is nothing to understand in an empty utterance")
    [answer] = predict(stored.model, stored.encoder, stored.labels, [Text(tokens)])
    named = ((slot.type, " ".join(tokens[slot.start : slot.end])) for slot in slots(answer.tags))
    return Understood(answer.intent, tuple(named))


def evaluate(
    model: UnderstandingModel,
    encoder: Encoder,
    labels: Labels,
    utterances: Sequence[Utterance],
    batch_size: int = 64,
    progress: Progress | None = None,
) -> NLUMetrics:
    """How the answers compare with the utterances' own labels, known to the model or not."""
    answers = predict(model, encoder, labels, utterances, batch_size, progress)
    return total(map(compare, utterances, answers))


def score(
    model: UnderstandingModel,
    encoder: Encoder,
    labels: Labels,
    utterances: Sequence[Utterance],
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Scored:
    """Intent probabilities, each token's largest tag marginal, and log p of the true labels."""
    _check_labels(model, labels)
    known = np.array([labels.knows(utterance) for utterance in utterances], bool)
    # What is computed for a label that the model does not know is thrown away below.
    tags = Ragged.of(
        [
            labels.tag_ids(utterance.tags) if knows else [0] * len(utterance.tags)
            for utterance, knows in zip(utterances, known, strict=True)
        ]
    )
    intents = np.array(
        [
            labels.intent_id(utterance.intent) if knows else 0
            for utterance, knows in zip(utterances, known, strict=True)
        ],
        np.int64,
    )
    prepared = encoder.prepare([utterance.tokens for utterance in utterances])
    probabilities = np.empty((len(utterances), len(labels.intents)))
    likelihood = np.empty(len(utterances))
    tokens: dict[int, NDArray[np.float64]] = {}
    with _asked(model):
        for places, inputs, mask in _batches(prepared, batch_size, progress):
            found = model.scores(inputs, mask)
            logits = found.intents.double()
            true_tags = torch.from_numpy(tags.padded(places)[0])
            true_intents = torch.from_numpy(intents[places])
            log_p = model.crf(found.emissions, true_tags, mask).double()
            log_p = log_p - functional.cross_entropy(logits, true_intents, reduction="none")
            probabilities[places] = torch.softmax(logits, dim=1).numpy()
            likelihood[places] = log_p.clamp(max=0.0).numpy()  # rounding can exceed 0
            surest = model.crf.marginals(found.emissions, mask).amax(dim=2).double().clamp(max=1.0)
            for place, row, length in zip(
                places.tolist(), surest.numpy(), prepared.lengths[places], strict=True
            ):
                tokens[place] = row[:length]
    likelihood[~known] = np.nan
    ordered = tuple(tokens[place] for place in range(len(utterances)))
    return Scored(probabilities, ordered, likelihood)


def _batches(
    prepared: Prepared, batch_size: int, progress: Progress | None
) -> Iterator[tuple[Integers, dict[str, Tensor], Tensor]]:
    """The places of utterances of about the same length, and what the model reads of them."""
    checks.whole("batch_size", batch_size, at_least=1)
    order = np.argsort(-prepared.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        inputs, mask = prepared.batch(places)
        yield places, inputs, mask
        if progress is not None:
            progress(start + len(places), len(order))


@contextmanager
def _asked(model: UnderstandingModel) -> Iterator[None]:
    """Without dropout and gradients; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _check_labels(model: UnderstandingModel, labels: Labels) -> None:
    if model.crf.tags != len(labels.tags):
        raise ValueError(
            f"the model has {model.crf.tags} tags, and {len(labels.tags)} are listed: use the"
            " labels that it was trained with"
        )
