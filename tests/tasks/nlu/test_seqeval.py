"""Slot F1 is seqeval's: on random tags, and on tags that a model could have made."""

import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tasks.nlu.generated import generate
from tacit.tasks.nlu.metrics import NLUMetrics, Prediction, compare

seqeval = pytest.importorskip("seqeval.metrics")

TAGS = ["O", "B-a", "I-a", "B-b", "I-b", "B-long_name", "I-long_name"]


def theirs(references: list[list[str]], predictions: list[list[str]]) -> tuple[float, float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a share of nothing is 0
        return tuple(
            getattr(seqeval, name)(references, predictions)
            for name in ("precision_score", "recall_score", "f1_score")
        )


def ours(references: list[list[str]], predictions: list[list[str]]) -> tuple[float, float, float]:
    found = sum(
        (
            compare(Prediction(reference, "x"), Prediction(predicted, "x"))
            for reference, predicted in zip(references, predictions, strict=True)
        ),
        NLUMetrics(),
    )
    figures = found.slot_precision, found.slot_recall, found.slot_f1
    # Where nothing was measured we say NaN and seqeval says 0.
    return tuple(0.0 if math.isnan(figure) else figure for figure in figures)


@st.composite
def tagged(draw):
    """References and predictions of the same lengths; any tags at all, well formed or not."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    rows = st.tuples(*(st.lists(st.sampled_from(TAGS), min_size=n, max_size=n) for n in lengths))
    return [list(row) for row in draw(rows)], [list(row) for row in draw(rows)]


@given(tagged())
@settings(max_examples=120, deadline=None)
def test_precision_recall_and_f1_are_seqevals(case):
    assert ours(*case) == pytest.approx(theirs(*case))


def test_they_agree_on_generated_utterances_with_mistakes():
    references = [list(utterance.tags) for utterance in generate(400, seed=3)]
    # Each third tag is the one before it: wrong types, cut slots and orphaned I- tags.
    predictions = [
        [tags[max(0, place - 1)] if place % 3 == 2 else tag for place, tag in enumerate(tags)]
        for tags in references
    ]
    precision, recall, f1 = ours(references, predictions)
    assert (precision, recall, f1) == pytest.approx(theirs(references, predictions))
    assert 0.2 < f1 < 0.95  # the mistakes are felt
