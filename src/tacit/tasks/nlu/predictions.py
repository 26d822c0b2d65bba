"""What a model says of utterances: its answers, how good they are, and how sure it is of them.

Utterances are put together by their lengths, so that little is computed for padding, and results
come in the order in which the utterances were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tacit.mechanisms.method import Indices
from tacit.models.understanding import UnderstandingModel
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Ragged
from tacit.tasks.nlu.metrics import NLUMetrics, Prediction, compare, slots
from tacit.tasks.nlu.models import NluModel

_Floats = NDArray[np.float64]
_Progress = Callable[[int, int], None]  # utterances done, of how many

_ROUNDING = 1e-3  # of probabilities that were computed in float32, over a few hundred intents


@dataclass(frozen=True)
class Understood:
    """The intent of an utterance, and its slots as (type, words)."""

    intent: str
    slots: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model with I intents says of n utterances: all that an attack on it gets to see.

    It is computed from people's text, members' among it, so it is internal to the holder of that
    text (design rule 5): it belongs in `private/` and in no report for others.

    A log-likelihood is NaN where the model does not know a label of the utterance: an intent or a
    tag that was not in its training.  Its other scores are valid nevertheless.
    """

    intents: _Floats  # [n, I] probabilities
    tokens: tuple[_Floats, ...]  # of each utterance, per token: the likeliest tag's CRF marginal
    log_likelihood: _Floats  # [n] log p(the true intent) + log p(the true tags), natural

    def __post_init__(self) -> None:
        # Copied, so that nobody changes what was checked.
        for name in ("intents", "log_likelihood"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        tokens = tuple(np.array(each, dtype=np.float64) for each in self.tokens)
        object.__setattr__(self, "tokens", tokens)
        shapes = (self.intents.shape[:-1], self.log_likelihood.shape)
        if shapes != ((len(tokens),), (len(tokens),)):
            raise ValueError(
                f"intents and log_likelihood must have a row for each of the {len(tokens)}"
                f" utterances, got the shapes {self.intents.shape} and {self.log_likelihood.shape}"
            )
        is_valid = np.array([_are_probabilities(each) for each in tokens], bool)
        is_valid &= _are_probabilities(self.intents)
        is_valid &= np.abs(self.intents.sum(axis=1) - 1) <= _ROUNDING
        is_valid &= ~(np.isinf(self.log_likelihood) | (self.log_likelihood > _ROUNDING))
        if not is_valid.all():  # the message must not quote scores, which are private
            raise ValueError(
                f"the scores of utterance {int(np.argmin(is_valid))} must be probabilities, those"
                " of the intents with the sum 1, and a finite log-likelihood of at most 0, or NaN"
                " where a label is unknown"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def known(self) -> NDArray[np.bool_]:
        """[n]: whether the model knows all labels of the utterance."""
        return ~np.isnan(self.log_likelihood)

    def only(self, indices: NDArray[Any] | Iterable[int]) -> Scored:
        """The scores of some utterances, by indices or by a mask, in the order asked for."""
        chosen = indices if isinstance(indices, np.ndarray) else np.array(list(indices), np.int64)
        chosen = np.arange(len(self))[chosen]
        return Scored(
            self.intents[chosen],
            tuple(self.tokens[index] for index in chosen.tolist()),
            self.log_likelihood[chosen],
        )


def predict(
    nlu: NluModel,
    utterances: Sequence[Sequence[str]],
    batch_size: int = 64,
    progress: _Progress | None = None,
) -> list[Prediction]:
    """The likeliest intent and the likeliest sequence of tags of each utterance.

    Args:
        nlu: the model to ask.
        utterances: the tokens of each; labels are not needed.
        batch_size: utterances at once; it does not change the answers.
        progress: told after each batch how many utterances are done, of how many.
    """
    labels, answers = nlu.labels, dict[int, Prediction]()
    with _answering(nlu.model):
        for indices, inputs, mask in _batches(nlu, utterances, batch_size, progress):
            intents, tags = nlu.model.decode(inputs, mask)
            for index, intent, row in zip(indices.tolist(), intents.tolist(), tags, strict=True):
                named = tuple(labels.tags[tag] for tag in row)
                answers[index] = Prediction(named, labels.intents[intent])
    return [answers[index] for index in range(len(utterances))]


def understand(nlu: NluModel, text: str) -> Understood:
    """What a model makes of an utterance, whose tokens are separated by spaces."""
    tokens = text.split()
    if not tokens:
        raise ValueError("there is nothing to understand in an empty utterance")
    [answer] = predict(nlu, [tokens])
    named = ((slot.type, " ".join(tokens[slot.start : slot.end])) for slot in slots(answer.tags))
    return Understood(answer.intent, tuple(named))


def evaluate(nlu: NluModel, utterances: Sequence[Utterance]) -> NLUMetrics:
    """How the answers compare with the utterances' own labels, known to the model or not."""
    answers = predict(nlu, [utterance.tokens for utterance in utterances])
    return sum(map(compare, utterances, answers), NLUMetrics())


def score(
    nlu: NluModel,
    utterances: Sequence[Utterance],
    batch_size: int = 64,
    progress: _Progress | None = None,
) -> Scored:
    """Intent probabilities, each token's largest tag marginal, and log p of the true labels.

    An utterance with a label that the model does not know gets NaN as its log-likelihood.
    """
    model, labels = nlu.model, nlu.labels
    # Labels that the model does not know count as 0 here, and what comes of it is thrown away.
    known = np.ones(len(utterances), bool)
    all_tags, all_intents = [], np.zeros(len(utterances), np.int64)
    for index, utterance in enumerate(utterances):
        try:
            all_intents[index], tag_ids = labels.ids(utterance)
        except ValueError:
            known[index], tag_ids = False, [0] * len(utterance.tags)
        all_tags.append(tag_ids)
    ragged_tags = Ragged.of(all_tags)
    probabilities = np.empty((len(utterances), len(labels.intents)))
    likelihood = np.empty(len(utterances))
    marginals: dict[int, _Floats] = {}
    every = [utterance.tokens for utterance in utterances]
    with _answering(model):
        for indices, inputs, mask in _batches(nlu, every, batch_size, progress):
            scores = model.scores(inputs, mask)
            logits = scores.intents.double()
            tags = torch.from_numpy(ragged_tags.padded(indices)[0])
            intents = torch.from_numpy(all_intents[indices])
            log_p = model.crf(scores.emissions, tags, mask).double()
            log_p = log_p - functional.cross_entropy(logits, intents, reduction="none")
            probabilities[indices] = torch.softmax(logits, dim=1).numpy()
            likelihood[indices] = log_p.clamp(max=0.0).numpy()  # rounding can exceed 0
            surest = model.crf.marginals(scores.emissions, mask).amax(dim=2).double()
            for index, row in zip(indices.tolist(), surest.clamp(max=1.0).numpy(), strict=True):
                marginals[index] = row[: len(every[index])]
    likelihood[~known] = np.nan
    return Scored(probabilities, tuple(marginals[index] for index in range(len(every))), likelihood)


def _batches(
    nlu: NluModel,
    utterances: Sequence[Sequence[str]],
    batch_size: int,
    progress: _Progress | None,
) -> Iterator[tuple[Indices, dict[str, Tensor], Tensor]]:
    """The indices of utterances of about the same length, and what the model reads of them."""
    tags, listed = nlu.model.crf.tags, len(nlu.labels.tags)
    if tags != listed:
        raise ValueError(
            f"the model has {tags} tags, and {listed} are listed: use the labels that it was"
            " trained with"
        )
    checks.whole("batch_size", batch_size, at_least=1)
    prepared = nlu.encoder.prepare(utterances)
    order = np.argsort(-prepared.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield indices, *prepared.batch(indices)
        if progress is not None:
            progress(start + len(indices), len(order))


@contextmanager
def _answering(model: UnderstandingModel) -> Iterator[None]:
    """Without dropout and gradients; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _are_probabilities(values: _Floats) -> NDArray[np.bool_]:
    """Whether there are some values along the last dimension, and all of them are probabilities."""
    in_range = (values >= 0) & (values <= 1 + _ROUNDING)
    all_in_range: NDArray[np.bool_] = in_range.all(axis=-1) & (values.shape[-1] > 0)
    return all_in_range
