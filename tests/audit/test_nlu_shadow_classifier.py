"""The classifier finds what there is to find, and nothing where nothing is; always the same."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from tacit.audit.nlu_shadow import _Classifier
from tacit.audit.roc import auc

SIZE = 6


def normal(count: int, shift: float, seed: int) -> np.ndarray:
    """Features of which the first two are shifted, each on a scale of its own."""
    values = np.random.default_rng(seed).normal(size=(count, SIZE))
    values[:, :2] += shift
    return values * [1, 100, 0.01, 5, 5, 5] + [0, 1000, 0, -7, 0, 0]


@pytest.mark.parametrize("hidden", [0, 16])
def test_auc_is_near_that_of_the_best_classifier(hidden):
    found = _Classifier.fit(normal(800, 0.5, 1), normal(800, 0, 2), hidden=hidden)
    reached = auc(found.scores(normal(20_000, 0.5, 3)), found.scores(normal(20_000, 0, 4)))
    # Normal laws at a distance d: no classifier has a larger AUC than Phi(d / sqrt 2).
    best = NormalDist().cdf(0.5 * math.sqrt(2) / math.sqrt(2))
    assert best - 0.02 < reached.value < best + 0.01
    assert found.held_out_loss < math.log(2)


def test_a_hidden_layer_finds_what_no_line_divides():
    def ring(count, radius, seed):
        angles = np.random.default_rng(seed).uniform(0, 2 * math.pi, count)
        return radius * np.column_stack([np.cos(angles), np.sin(angles)])

    reached = {}
    for hidden in (0, 16):
        found = _Classifier.fit(ring(300, 2, 1), ring(300, 1, 2), hidden=hidden, steps=1000)
        reached[hidden] = auc(found.scores(ring(500, 2, 3)), found.scores(ring(500, 1, 4))).value
    assert reached[16] > 0.95
    assert reached[0] < 0.65


def test_nothing_is_found_where_there_is_nothing_and_the_stop_is_early():
    covered = 0
    for seed in range(20):
        found = _Classifier.fit(normal(200, 0, 4 * seed), normal(200, 0, 4 * seed + 1))
        assert found.step < 100
        assert found.held_out_loss > math.log(2) - 0.05
        inside, outside = normal(300, 0, 4 * seed + 2), normal(300, 0, 4 * seed + 3)
        reached = auc(found.scores(inside), found.scores(outside))
        covered += reached.low < 0.5 < reached.high
    assert covered >= 15  # by chance less at a coverage of 95%: 3 times in 10,000


def test_the_same_whatever_the_order_and_the_global_random_state():
    members, others = normal(60, 1, 1), normal(50, 0, 2)
    first = _Classifier.fit(members, others)
    torch.manual_seed(12345)
    second = _Classifier.fit(members[::-1], np.roll(others, 7, axis=0))
    asked = normal(20, 0.5, 3)
    assert (first.scores(asked) == second.scores(asked)).all()
    other = _Classifier.fit(members, others, seed=1)
    assert (first.scores(asked) != other.scores(asked)).any()


def test_a_score_depends_on_its_row_alone():
    found = _Classifier.fit(normal(60, 1, 1), normal(60, 0, 2))
    asked = normal(40, 0.5, 3)
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(found.scores(asked[order]), found.scores(asked)[order], rtol=1e-9)


def test_a_feature_that_never_varied_is_no_reason_to_fail():
    members, others = normal(60, 1, 1), normal(60, 0, 2)
    members[:, 3] = others[:, 3] = 13.815509557963774
    found = _Classifier.fit(members, others)
    asked = normal(10, 0, 3)
    asked[:, 3] = 13.815509557963774
    assert np.abs(found.scores(asked)).max() < 50


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        (normal(0, 0, 1), normal(9, 0, 2), "0 members to learn from: at least 2"),
        (normal(9, 0, 1), normal(1, 0, 2), "1 non-members to learn from: at least 2"),
        (normal(2, 0, 1), normal(2, 0, 2), "4 utterances, fewer than the 6 features"),
        (normal(9, math.nan, 1), normal(9, 0, 2), "shadow's members is not a finite number"),
    ],
)
def test_too_little_to_learn_from_is_refused(members, others, message):
    with pytest.raises(ValueError, match=message):
        _Classifier.fit(members, others)
