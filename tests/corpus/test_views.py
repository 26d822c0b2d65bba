"""Views: what they change, and that they change nothing else."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.builtin import SyntheticCorpus, SyntheticOptions
from tacit.corpus.hashing import Permutation, derived
from tacit.corpus.source import IID, Subset, UserSource


class Plain(UserSource):
    """The least that a source can be."""

    def __init__(self, users):
        self.users = users

    def __len__(self):
        return len(self.users)

    def user_id(self, index):
        return f"{index:032x}"

    def texts(self, index):
        return list(self.users[index])

    @property
    def fingerprint(self):
        return derived("plain", self.users)


texts = st.lists(st.text("ab \n", max_size=6), max_size=5)
sources = st.lists(texts, min_size=1, max_size=8).map(Plain)


def records(source):
    return Counter(text for i in range(len(source)) for text in source.texts(i))


@given(size=st.integers(1, 300), seed=st.integers(0, 9))
def test_a_permutation_hits_everything_once(size, seed):
    found = Permutation(size, seed)(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


def test_a_permutation_depends_on_the_seed_and_shuffles():
    size = 10_000
    one, two = (Permutation(size, seed)(np.arange(size)) for seed in (1, 2))
    assert (one == two).mean() < 0.01
    for found in (one, two):
        # The correlation of a random order with the old one has standard deviation 0.01.
        assert abs(np.corrcoef(found, np.arange(size))[0, 1]) < 0.05
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.05


@given(source=sources, seed=st.integers(0, 5))
def test_iid_keeps_all_records_and_sizes_and_says_that_nobody_is_behind_its_users(source, seed):
    view = IID(source, seed)
    assert records(view) == records(source)
    assert [len(view.texts(i)) for i in range(len(view))] == [len(u) for u in source.users]
    assert view.is_synthetic_users
    assert Subset(view, [0]).is_synthetic_users
    assert len({view.user_id(i) for i in range(len(view))}) == len(view)
    assert view.user_id(0) != source.user_id(0)
    for i, count in enumerate(view.text_counts()):
        assert [view.text(i, j) for j in range(count)] == view.texts(i)


def test_iid_spreads_one_persons_records():
    source = Plain([[f"{user} {j}" for j in range(50)] for user in range(50)])
    view = IID(source)
    owners = [len({text.split()[0] for text in view.texts(i)}) for i in range(50)]
    assert min(owners) > 20  # 32 expected of 50 when records are dealt at random
    assert view.texts(0) == IID(source, 0).texts(0) != IID(source, 1).texts(0)
    assert len({view.fingerprint, IID(source, 1).fingerprint, source.fingerprint}) == 3


def test_held_out_marks_travel_with_their_records():
    source = SyntheticCorpus(SyntheticOptions(users=10, held_out_fraction=0.4))
    view = IID(source.train)
    assert records(view.kept()) == records(source.train.kept())
    assert records(view.held_out()) == records(source.train.held_out())


@given(source=sources, data=st.data())
def test_a_subset_is_those_users_in_that_order(source, data):
    chosen = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=6))
    for indices in (chosen, np.array(chosen, dtype=np.int64), range(len(source))):
        view = Subset(source, indices)
        assert [view.texts(i) for i in range(len(view))] == [source.texts(i) for i in indices]
        assert [view.user_id(i) for i in range(len(view))] == [source.user_id(i) for i in indices]
        assert view.text_counts().tolist() == [len(source.texts(i)) for i in indices]
    assert isinstance(view, UserSource)


def test_a_subset_outside_of_the_source_is_refused():
    source = Plain([["a"], ["b"]])
    for indices in ([2], [-1], range(3)):
        with pytest.raises(ValueError, match="indices must be from 0 to 1"):
            Subset(source, indices)
    with pytest.raises(ValueError, match="whole numbers"):
        Subset(source, [0.5])
    assert Subset(source, range(0, 2, 2)).text_counts().tolist() == [1]


def test_a_source_without_marks_has_no_held_out_texts():
    with pytest.raises(ValueError, match="does not say which texts are held out"):
        Plain([["a"]]).kept().texts(0)
    assert Plain([["a"]]).text_counts().tolist() == [1]
