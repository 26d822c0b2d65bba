"""Slots from tags, strictly and leniently, against a literal reading of conlleval's rules."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.tasks.nlu.data import checked_tags
from tacit.tasks.nlu.metrics import Slot, _overlapping, slots

TAGS = st.lists(st.sampled_from(["O", "B-a", "I-a", "B-b", "I-b"]), max_size=9)


def spans_by_definition(tags: list[str]) -> set[tuple[int, int, str]]:
    """Every span (start, end, type) that begins, goes on and ends as conlleval says."""

    def begins(i: int) -> bool:
        before = tags[i - 1] if i else "O"
        return tags[i][0] == "B" or (tags[i][0] == "I" and before[1:] != tags[i][1:])

    def goes_on(i: int) -> bool:
        return i < len(tags) and tags[i][0] == "I" and not begins(i)

    return {
        (i, j, tags[i][2:])
        for i in range(len(tags))
        for j in range(i + 1, len(tags) + 1)
        if tags[i] != "O" and begins(i) and all(map(goes_on, range(i + 1, j))) and not goes_on(j)
    }


@given(TAGS)
def test_slots_are_the_spans_of_the_definition_in_order(tags):
    found = slots(tags)
    assert set(found) == spans_by_definition(tags)
    assert list(found) == sorted(found)
    assert all(one.end <= other.start for one, other in pairwise(found))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-a I-a O B-b", [(0, 2, "a"), (3, 4, "b")]),
        ("B-a B-a I-a", [(0, 1, "a"), (1, 3, "a")]),
        ("O I-a I-a", [(1, 3, "a")]),
        ("B-a I-b I-b", [(0, 1, "a"), (1, 3, "b")]),
        ("I-a O I-a", [(0, 1, "a"), (2, 3, "a")]),
        ("B-to.city I-to.city", [(0, 2, "to.city")]),
        ("B-a-b I-a-b", [(0, 2, "a-b")]),
    ],
)
def test_slots_of_known_tags(tags, expected):
    assert [tuple(slot) for slot in slots(tags.split())] == expected


@given(TAGS)
def test_strict_reading_accepts_exactly_tags_in_which_every_slot_begins_with_b(tags):
    every_begins = all(tags[start][0] == "B" for start, _, _ in spans_by_definition(tags))
    if every_begins:
        assert checked_tags(tuple(tags)) == tuple(tags)
    else:
        with pytest.raises(ValueError, match="continues no slot"):
            checked_tags(tuple(tags))


@pytest.mark.parametrize("tag", ["", "B", "B-", "I-", "E-a", "S-a", "b-a", "o", "0", "BB-a"])
def test_what_is_no_tag_is_refused_by_both_readings(tag):
    with pytest.raises(ValueError, match="write O, B-type or I-type"):
        slots(["O", tag])
    with pytest.raises(ValueError, match="write O, B-type or I-type"):
        checked_tags(("O", tag))


def test_orphan_is_named_with_what_would_be_right():
    with pytest.raises(ValueError, match=r"'I-b' of token 2 continues no slot: put B-b or I-b"):
        checked_tags(("B-a", "I-b"))


def test_equal_tags_come_back_as_one_object():
    assert checked_tags(tuple(["O", "B-x"])) is checked_tags(tuple(["O", "B-x"]))


def most_pairs(reference: tuple[Slot, ...], predicted: tuple[Slot, ...]) -> int:
    """By trying everything."""
    if not reference:
        return 0
    first, rest = reference[0], reference[1:]
    best = most_pairs(rest, predicted)
    for place, other in enumerate(predicted):
        if set(range(first.start, first.end)) & set(range(other.start, other.end)):
            without = predicted[:place] + predicted[place + 1 :]
            best = max(best, 1 + most_pairs(rest, without))
    return best


@given(TAGS, TAGS)
def test_pairs_share_a_token_are_disjoint_and_as_many_as_possible(one, other):
    reference, predicted = slots(one), slots(other)
    pairs = list(_overlapping(reference, predicted))
    assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)
    for ours, theirs in pairs:
        assert set(range(ours.start, ours.end)) & set(range(theirs.start, theirs.end))
    assert len(pairs) == most_pairs(reference, predicted)
    equal = set(reference) & set(predicted)
    assert {ours for ours, theirs in pairs if ours == theirs} == equal
