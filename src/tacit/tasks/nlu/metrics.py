"""Semantic error rate, intent accuracy and slot F1 (Dupuy et al. 2021, section 4.2).

The semantic error rate counts the intent as one more slot:

    SER = (S + D + I + intent errors) / (reference slots + utterances)

with all counts summed over the utterances before dividing, so a long utterance weighs more than a
short one, and SER can exceed 1 where much is predicted that is not there.  For one utterance it is
(S + D + I + intent error) / (reference slots + 1).  The paper does not say how slots are aligned;
here:

- A predicted slot is correct if a reference slot has its first token, its last token and its type.
- Otherwise it is a substitution if it shares at least one token with a reference slot, each
  slot being in one pair at most and as many pairs formed as possible.  So the right span with the
  wrong type is one substitution, and so is the right type with a span too long, too short or
  shifted by less than its length.
- A reference slot without a partner is a deletion and a predicted one an insertion.  So the right
  type at other tokens altogether is a deletion and an insertion; one predicted slot over two
  reference slots is a substitution and a deletion; two predicted over one, a substitution and an
  insertion.

Slot F1 is the one of seqeval's default mode (and of conlleval): a slot counts if span and type are
exactly right; precision, recall and F1 are micro-averaged, that is, from counts summed over all
types.  Predicted tags are read leniently: an I- tag with no B- before it begins a slot.  Where
there is no slot on either side seqeval answers 0; the answer here is NaN: nothing was measured.

Intents are compared as whole strings: of ATIS's joined intents ("a#b") a half is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from tacit.tasks.nlu.data import OUTSIDE, Utterance, slot_type

_DERIVED = (  # the rates and counts of `NLUMetrics` that follow from its fields
    *("deletions", "insertions", "semantic_error_rate", "intent_accuracy", "exact_match"),
    *("slot_precision", "slot_recall", "slot_f1"),
)


class Slot(NamedTuple):
    """A slot: the tokens from `start` up to, and without, `end`, and their type."""

    start: int
    end: int
    type: str


def slots(tags: Sequence[str]) -> tuple[Slot, ...]:
    """The slots of a tag sequence, in order and without overlap.

    Tags are read leniently, as the CoNLL-2000 evaluation script (conlleval) and seqeval's default
    mode do: an I- tag after O, or after a tag of another type, begins a new slot.
    """
    closed: list[Slot] = []
    start, current = 0, ""  # the open slot's first token and type; "" if none is open
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            kind, continues = "", False
        else:
            kind = slot_type(tag)
            continues = kind == current and tag[0] == "I"
        if continues:
            continue
        if current:
            closed.append(Slot(start, index, current))
        start, current = index, kind
    if current:
        closed.append(Slot(start, len(tags), current))
    return tuple(closed)


def _overlapping(
    reference: Sequence[Slot], predicted: Sequence[Slot]
) -> Iterator[tuple[Slot, Slot]]:
    """The most pairs (reference, predicted) of slots that share a token, each slot in one at most.

    Both are in order and without overlap, as `slots` gives them.  Of the two slots at hand, the one
    that ends first can share a token with no later slot of the other side; so to pair it where it
    overlaps, and to drop it where not, never costs a pair.  Equal slots are always a pair: no other
    slot shares a token with either.
    """
    i = j = 0
    while i < len(reference) and j < len(predicted):
        one, other = reference[i], predicted[j]
        if one.start < other.end and other.start < one.end:
            yield one, other
            i, j = i + 1, j + 1
        elif one.end <= other.end:
            i += 1
        else:
            j += 1


@dataclass(frozen=True)
class Prediction:
    """What a model says of an utterance; its tags need not be well formed."""

    tags: Sequence[str]
    intent: str


@dataclass(frozen=True)
class NLUMetrics:
    """Counts, so that the metrics of two sets of utterances add up to those of both."""

    utterances: int = 0
    intent_errors: int = 0
    exact: int = 0  # utterances with the intent and every slot right
    reference_slots: int = 0
    predicted_slots: int = 0
    correct_slots: int = 0
    substitutions: int = 0

    def __add__(self, other: NLUMetrics) -> NLUMetrics:
        names = self.__dataclass_fields__
        return NLUMetrics(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def deletions(self) -> int:
        """Reference slots that no predicted slot stands for."""
        return self.reference_slots - self.correct_slots - self.substitutions

    @property
    def insertions(self) -> int:
        """Predicted slots where there is no slot."""
        return self.predicted_slots - self.correct_slots - self.substitutions

    @property
    def semantic_error_rate(self) -> float:
        """SER; see the module."""
        errors = self.substitutions + self.deletions + self.insertions + self.intent_errors
        return _share(errors, self.reference_slots + self.utterances)

    @property
    def intent_accuracy(self) -> float:
        """The share of utterances with the right intent."""
        return _share(self.utterances - self.intent_errors, self.utterances)

    @property
    def exact_match(self) -> float:
        """The share of utterances with nothing wrong."""
        return _share(self.exact, self.utterances)

    @property
    def slot_precision(self) -> float:
        """The share of predicted slots that are right; 0 if no slot is predicted."""
        return self._of_slots(self.predicted_slots)

    @property
    def slot_recall(self) -> float:
        """The share of reference slots that are predicted; 0 if all predicted ones are wrong."""
        return self._of_slots(self.reference_slots)

    @property
    def slot_f1(self) -> float:
        """The harmonic mean of precision and recall: 2 correct / (reference + predicted)."""
        return _share(2 * self.correct_slots, self.reference_slots + self.predicted_slots)

    def _of_slots(self, count: int) -> float:
        if not count and (self.reference_slots or self.predicted_slots):
            return 0.0
        return _share(self.correct_slots, count)

    def as_row(self) -> dict[str, Any]:
        """Counts and rates under the names that files and scripts rely on; NaN becomes None."""
        row: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _DERIVED:
            value = getattr(self, name)
            row[name] = value if math.isfinite(value) else None
        return row


def compare(reference: Utterance, prediction: Prediction) -> NLUMetrics:
    """The metrics of one utterance; see the module for how slots are paired.

    Raises:
        ValueError: if the prediction has not one tag for each token.
    """
    if len(reference.tags) != len(prediction.tags):
        raise ValueError(
            f"{len(prediction.tags)} predicted tags for {len(reference.tags)} tokens: predict one"
            " tag for each token"
        )
    expected, predicted = slots(reference.tags), slots(prediction.tags)
    pairs = list(_overlapping(expected, predicted))
    correct = sum(one == other for one, other in pairs)
    right_intent = reference.intent == prediction.intent
    return NLUMetrics(
        utterances=1,
        intent_errors=int(not right_intent),
        exact=int(right_intent and expected == predicted),
        reference_slots=len(expected),
        predicted_slots=len(predicted),
        correct_slots=correct,
        substitutions=len(pairs) - correct,
    )


def by_intent(
    references: Sequence[Utterance], predictions: Sequence[Prediction]
) -> dict[str, NLUMetrics]:
    """The metrics of the utterances of each reference intent, in order of the intents' names.

    Raises:
        ValueError: if there are more references than predictions, or fewer.
    """
    table: dict[str, NLUMetrics] = {}
    for reference, prediction in zip(references, predictions, strict=True):
        one = compare(reference, prediction)
        table[reference.intent] = table.get(reference.intent, NLUMetrics()) + one
    return dict(sorted(table.items()))


def _share(count: int, of: int) -> float:
    return count / of if of else math.nan
