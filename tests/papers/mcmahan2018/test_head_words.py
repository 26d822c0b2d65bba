"""The head-word histogram equals counting by sets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit_papers.mcmahan2018.head_words import head_word_histograms
from tests.evaluation.tiny import Table, tiny
from tests.oracles import scoring

BOS, SIZE = 0, 9
SEQUENCES = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=7), max_size=5)


def by_sets(distribution, sequences, frequent, heads, top):
    histograms = {n: [0] * (top + 1) for n in heads}
    for sequence in sequences:
        for place in range(1, len(sequence)):
            if sequence[place] != BOS:
                best = set(scoring.order(distribution(sequence[:place]))[:top])
                for n in heads:
                    histograms[n][len(best & set(frequent[:n]))] += 1
    return histograms


@given(SEQUENCES, st.permutations(range(1, SIZE)), st.integers(1, 5))
def test_histograms_equal_counting_by_sets(sequences, frequent, top):
    model = tiny("lstm", SIZE)
    found = head_word_histograms(model, sequences, frequent, bos=BOS, heads=(1, 3, 8), top=top)
    expected = by_sets(scoring.logits_of(model), sequences, frequent, (1, 3, 8), top)
    assert {n: histogram.tolist() for n, histogram in found.items()} == expected


def test_a_model_that_only_knows_head_words_has_all_mass_to_the_right():
    logits = torch.arange(20.0, 0, -1).expand(20, 20)
    found = head_word_histograms(
        Table(logits), [[0, 3, 4, 5]], list(range(20)), bos=0, heads=(10,), top=10
    )
    assert found[10].tolist() == [0] * 10 + [3]


@pytest.mark.parametrize(
    ("frequent", "heads", "top", "message"),
    [
        ([1, 1], (1,), 2, "lists a token twice"),
        ([1, 2], (3,), 2, "heads must be between 1 and the 2 frequent words given"),
        ([1, 2], (), 2, "heads must be between 1"),
        ([1, 2], (0,), 2, "heads must be between 1"),
        ([1, 2], (1,), 4, "top must be between 1 and 3, got 4"),
        ([1, 3], (1,), 2, "holds token 3"),
    ],
)
def test_what_makes_no_histogram_is_refused(frequent, heads, top, message):
    with pytest.raises(ValueError, match=message):
        head_word_histograms(
            Table(torch.zeros(3, 3)), [[0, 1]], frequent, bos=0, heads=heads, top=top
        )
