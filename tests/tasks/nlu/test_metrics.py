"""SER, intent accuracy and slot F1: hand-computed cases, and the definitions tried literally."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.metrics import NLUMetrics, Prediction, by_intent, compare, slots

TAGS = ["O", "B-a", "I-a", "B-b", "I-b"]
INTENTS = ["ask", "tell"]


@st.composite
def pairs(draw):
    length = draw(st.integers(1, 8))
    tags = st.lists(st.sampled_from(TAGS), min_size=length, max_size=length)
    intents = st.sampled_from(INTENTS)
    return tuple(Prediction(draw(tags), draw(intents)) for _ in range(2))


def counts(reference: str, predicted: str) -> tuple[int, int, int, int]:
    """(correct, substitutions, deletions, insertions)"""
    found = compare(Prediction(reference.split(), "x"), Prediction(predicted.split(), "x"))
    return found.correct_slots, found.substitutions, found.deletions, found.insertions


@pytest.mark.parametrize(
    ("reference", "predicted", "expected"),
    [
        pytest.param("B-a I-a O", "B-a I-a O", (1, 0, 0, 0), id="right"),
        pytest.param("B-a I-a O", "B-b I-b O", (0, 1, 0, 0), id="right span, wrong type"),
        pytest.param("B-a I-a O", "B-a O O", (0, 1, 0, 0), id="right type, too short"),
        pytest.param("B-a O O", "B-a I-a I-a", (0, 1, 0, 0), id="right type, too long"),
        pytest.param("B-a I-a O", "O B-a I-a", (0, 1, 0, 0), id="right type, shifted by one"),
        pytest.param("B-a O O", "O O B-a", (0, 0, 1, 1), id="right type at other tokens"),
        pytest.param("B-a O O", "O B-b O", (0, 0, 1, 1), id="nothing in common"),
        pytest.param("B-a B-b", "B-a I-a", (0, 1, 1, 0), id="one over two"),
        pytest.param("B-a I-a", "B-a B-b", (0, 1, 0, 1), id="two over one"),
        pytest.param("B-a I-a B-a I-a", "O B-b I-b O", (0, 1, 1, 0), id="one between two"),
        pytest.param("B-a I-a B-b I-b", "B-b B-a I-a B-a", (0, 2, 0, 1), id="three over two"),
        pytest.param("O I-a I-a", "O B-a I-a", (1, 0, 0, 0), id="I without B begins a slot"),
        pytest.param("B-a B-a", "B-a I-a", (0, 1, 1, 0), id="neighbours of one type run together"),
        pytest.param("O O", "O O", (0, 0, 0, 0), id="no slots"),
    ],
)
def test_alignment_of_slots_by_hand(reference, predicted, expected):
    assert counts(reference, predicted) == expected


def test_the_figures_of_a_small_corpus_by_hand():
    said = [
        # All right: 2 slots.
        (("O B-to I-to B-date", "fly"), ("O B-to I-to B-date", "fly")),
        # A wrong type and a missing slot: S = 1, D = 1.
        (("B-to O B-date", "fly"), ("B-from O O", "fly")),
        # A wrong intent and an invented slot: I = 1, one intent error.
        (("O O", "stop"), ("O B-to", "fly")),
    ]
    table = by_intent(
        [Prediction(tags.split(), intent) for (tags, intent), _ in said],
        [Prediction(tags.split(), intent) for _, (tags, intent) in said],
    )
    whole = sum(table.values(), NLUMetrics())
    assert whole == NLUMetrics(3, 1, 1, 4, 4, 2, 1)
    assert whole.semantic_error_rate == (1 + 1 + 1 + 1) / (4 + 3)
    assert whole.intent_accuracy == 2 / 3
    assert whole.exact_match == 1 / 3
    assert (whole.slot_precision, whole.slot_recall, whole.slot_f1) == (2 / 4, 2 / 4, 2 / 4)
    assert list(table) == ["fly", "stop"]
    assert table["fly"].semantic_error_rate == 2 / (4 + 2)
    assert table["stop"].semantic_error_rate == 2 / (0 + 1)  # above 1: more errors than there is


def test_ser_of_one_utterance_is_over_its_slots_and_one():
    reference = Utterance(("to", "new", "york", "today"), ("O", "B-to", "I-to", "B-date"), "fly")
    wrong = compare(reference, Prediction(("O", "B-to", "O", "B-date"), "walk"))
    assert wrong.semantic_error_rate == 2 / 3


@given(st.lists(pairs(), min_size=1))
def test_perfect_predictions_have_no_error(said):
    references = [reference for reference, _ in said]
    whole = sum(by_intent(references, references).values(), NLUMetrics())
    assert whole.semantic_error_rate == 0
    assert whole.intent_accuracy == whole.exact_match == 1
    if whole.reference_slots:
        assert whole.slot_f1 == whole.slot_precision == whole.slot_recall == 1
    else:
        assert math.isnan(whole.slot_f1)


@given(st.lists(pairs(), min_size=1))
def test_predicting_nothing_deletes_every_slot(said):
    references = [reference for reference, _ in said]
    nothing = [Prediction(["O"] * len(one.tags), one.intent) for one in references]
    whole = sum(by_intent(references, nothing).values(), NLUMetrics())
    count = sum(len(slots(one.tags)) for one in references)
    assert (whole.deletions, whole.substitutions, whole.insertions) == (count, 0, 0)
    assert whole.semantic_error_rate == count / (count + len(references))
    assert whole.slot_f1 == 0 if count else math.isnan(whole.slot_f1)


@given(pairs())
def test_errors_are_the_fewest_that_turn_one_into_the_other(pair):
    """S + D + I is the cost of the best pairing at 0 for equal, 1 for overlapping slots."""
    reference, prediction = pair

    def cost(left, right):
        if not left:
            return len(right)
        best = 1 + cost(left[1:], right)
        for place, other in enumerate(right):
            if left[0].start < other.end and other.start < left[0].end:
                rest = right[:place] + right[place + 1 :]
                best = min(best, int(left[0] != other) + cost(left[1:], rest))
        return best

    found = compare(reference, prediction)
    errors = found.substitutions + found.deletions + found.insertions
    assert errors == cost(slots(reference.tags), slots(prediction.tags))
    assert min(found.substitutions, found.deletions, found.insertions) >= 0
    assert found.exact == (errors + found.intent_errors == 0)


@given(st.lists(pairs(), min_size=1))
def test_f1_is_the_one_of_sets_of_exact_slots(said):
    expected, found = set(), set()
    for place, (reference, prediction) in enumerate(said):
        expected |= {(place, slot) for slot in slots(reference.tags)}
        found |= {(place, slot) for slot in slots(prediction.tags)}
    whole = sum(by_intent(*zip(*said, strict=True)).values(), NLUMetrics())
    common = len(expected & found)
    if expected and found and common:
        precision, recall = common / len(found), common / len(expected)
        assert whole.slot_precision == precision
        assert whole.slot_recall == recall
        assert whole.slot_f1 == pytest.approx(2 * precision * recall / (precision + recall))
    elif expected or found:
        assert whole.slot_f1 == whole.slot_precision * whole.slot_recall == 0


@given(st.lists(pairs()), st.lists(pairs()))
def test_metrics_of_two_sets_add_up_to_those_of_both(some, others):
    def whole(said):
        return sum((compare(*pair) for pair in said), NLUMetrics())

    assert whole(some) + whole(others) == whole(some + others)


def test_row_has_numbers_or_null():
    row = NLUMetrics().as_row()
    assert row["semantic_error_rate"] is row["slot_f1"] is row["intent_accuracy"] is None
    assert row["utterances"] == row["deletions"] == 0
    right = compare(Prediction(["B-a"], "x"), Prediction(["B-a"], "x")).as_row()
    assert right["slot_f1"] == right["intent_accuracy"] == 1
    assert right["semantic_error_rate"] == 0


def test_tags_of_another_length_are_refused():
    with pytest.raises(ValueError, match="1 predicted tags for 2 tokens: predict one tag for each"):
        compare(Prediction(["O", "O"], "x"), Prediction(["O"], "x"))


@pytest.mark.parametrize(("left", "right"), [(2, 1), (1, 2)])
def test_a_prediction_too_few_or_too_many_is_refused(left, right):
    one = Prediction(["O"], "x")
    with pytest.raises(ValueError, match=r"argument 2 is (shorter|longer) than argument 1"):
        by_intent([one] * left, [one] * right)
