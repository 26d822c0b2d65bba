"""Sketches: exact for small sets, close for large ones, and blind without the key."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.sketches import Sketch

KEY = bytes(range(32))
SIZE = 1024


def members(start, stop):
    return [b"user %d" % i for i in range(start, stop)]


def sketch(start, stop, size=SIZE, key=KEY):
    return Sketch.of(members(start, stop), key, size)


sets = st.sets(st.integers(0, 60), max_size=40)


@given(one=sets, other=sets)
def test_the_share_is_exact_if_both_sets_are_kept_whole(one, other):
    a, b = (Sketch.of((b"%d" % i for i in s), KEY) for s in (one, other))
    small = min(len(one), len(other))
    assert a.share(b) == b.share(a)
    if small == 0:
        assert a.share(b) == 0
    elif len(one) != len(other):
        assert a.share(b) == len(one & other) / small


def test_a_large_subset_is_wholly_shared_and_a_disjoint_set_not_at_all():
    whole = sketch(0, 50_000)
    assert whole.share(sketch(0, 20_000)) == 1
    assert whole.share(sketch(0, 500)) == 1
    assert whole.share(sketch(100_000, 150_000)) == 0


def test_a_set_that_grew_is_recognised_as_it_grows():
    first = sketch(0, 10_000)
    for count in (10_000, 11_000, 30_000, 200_000):
        assert first.share(sketch(0, count)) == 1


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_the_estimate_is_within_five_standard_errors_and_not_elsewhere(share):
    """False-alarm rate: below 1e-5 for each of the sketches compared."""
    count = 20_000
    for key in range(5):
        other = int(count * (1 - share))
        one, two = (sketch(a, a + count, key=b"%d" % key) for a in (0, other))
        # Of k kept members of equal sets, those below the bound are about k as well.
        error = 5 * (share * (1 - share) / (0.9 * SIZE)) ** 0.5
        assert one.share(two) == pytest.approx(share, abs=error)
        assert one.share(two) != pytest.approx(share + 0.2, abs=error)


def test_a_member_that_comes_twice_counts_once():
    found = Sketch.of([*members(0, 100), *members(50, 150)], KEY, 16)
    assert found.count == 150
    assert found == Sketch(found.values, 150, 16)
    assert found.values.tolist() == sketch(0, 150, 16).values.tolist()


def test_another_key_tells_nothing():
    assert sketch(0, 5000).share(sketch(0, 5000, key=b"another")) == 0


def test_a_sketch_comes_back_from_json_as_it_was():
    for made in (sketch(0, 3000), sketch(0, 10), sketch(0, 0)):
        again = Sketch.from_json(json.loads(json.dumps(made.to_json())))
        assert again.values.tolist() == made.values.tolist()
        assert (again.count, again.size) == (made.count, made.size)


@pytest.mark.parametrize(
    "change",
    [{"values": "zz"}, {"count": 7}, {"count": "3"}, {"values": "00" * 24}, {"size": None}],
)
def test_a_damaged_sketch_is_refused(change):
    with pytest.raises(ValueError, match="a sketch is damaged"):
        Sketch.from_json(sketch(0, 3).to_json() | change)
