"""ROC, AUC and TPR at FPR: brute force, known figures, and how often the intervals are right."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.audit.roc import _clopper_pearson, auc, roc_curve, tpr_at

# Few distinct values, so that ties are common.
tied_scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


def brute_force_auc(members, non_members) -> float:
    """P(member > non-member) + P(equal) / 2, pair by pair."""
    pairs = [(m > n) + 0.5 * (m == n) for m in members for n in non_members]
    return sum(pairs) / len(pairs)


@given(tied_scores, tied_scores)
def test_auc_is_the_share_of_pairs_in_the_right_order(members, non_members):
    found = auc(members, non_members)
    assert found.value == pytest.approx(brute_force_auc(members, non_members), abs=1e-12)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


@given(tied_scores, tied_scores)
def test_the_curve_is_every_threshold_and_its_area_is_the_auc(members, non_members):
    curve = roc_curve(members, non_members)
    area = np.trapezoid(curve.true_positive, curve.false_positive)
    assert area == pytest.approx(brute_force_auc(members, non_members), abs=1e-12)
    points = set(curve.as_points())
    assert {(0.0, 0.0), (1.0, 1.0)} <= points
    every = {
        (np.mean(np.array(non_members) >= t), np.mean(np.array(members) >= t))
        for t in members + non_members
    }
    assert points <= every | {(0.0, 0.0)}
    for false, true in every:  # what was left out lies on the lines
        on_curve = np.interp(false, curve.false_positive, curve.true_positive)
        on_a_rise = any(
            f == false and low <= true <= high
            for f in curve.false_positive
            for low, high in [_span(curve, f)]
        )
        assert on_a_rise or on_curve == pytest.approx(true)


def _span(curve, false):
    heights = curve.true_positive[curve.false_positive == false]
    return heights.min(), heights.max()


@given(tied_scores, tied_scores)
def test_swapping_the_groups_mirrors_the_interval(members, non_members):
    one, other = auc(members, non_members), auc(non_members, members)
    assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-9)


def test_a_worked_example_of_delong():
    # Placements of 1, 3, 5 among 0, 2, 4: 1/3, 2/3, 1; the others': 1, 2/3, 1/3.
    found = auc([1, 3, 5], [0, 2, 4])
    assert found.value == pytest.approx(2 / 3)
    variance = (1 / 9) / 3 + (1 / 9) / 3
    reach = stats.t.ppf(0.975, 4) * np.sqrt(variance) / (2 / 9)
    ends = 1 / (1 + np.exp(-(np.log(2) + np.array([-reach, reach]))))
    assert (found.low, found.high) == pytest.approx(tuple(ends))


def test_the_standard_error_and_freedom_are_those_of_brunner_and_munzel():
    generator = np.random.default_rng(3)
    members, non_members = (
        generator.normal(0.3, 2, 23).round(1),
        generator.normal(0, 1, 31).round(1),
    )
    found = auc(members, non_members, confidence=0.9)
    middle, low = (np.log(p / (1 - p)) for p in (found.value, found.low))
    # Undo the logit scale: the p-value of "AUC = 1/2" then fixes the product of both.
    result = stats.brunnermunzel(non_members, members, distribution="t")
    error = (found.value - 0.5) / result.statistic
    freedom = _brunner_munzel_freedom(members, non_members)
    expected = stats.t.ppf(0.95, freedom) * error / (found.value * (1 - found.value))
    assert result.pvalue == pytest.approx(2 * stats.t.sf(abs(result.statistic), freedom))
    assert middle - low == pytest.approx(expected)


def _brunner_munzel_freedom(members, non_members):
    n, m = len(members), len(non_members)
    above = [np.mean(x > non_members) + np.mean(x == non_members) / 2 for x in members]
    below = [np.mean(y < members) + np.mean(y == members) / 2 for y in non_members]
    parts = np.var(above, ddof=1) / n, np.var(below, ddof=1) / m
    return sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))


def test_separable_scores_give_1_and_the_exact_bound_of_disjoint_pairs():
    found = auc([3.0] * 20, [1.0, 2.0] * 15)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 20))
    assert auc([1.0] * 20, [3.0] * 30).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert roc_curve([3.0] * 20, [1.0, 2.0] * 15).as_points() == ((0, 0), (0, 1), (1, 1))


def test_equal_scores_say_nothing_however_many_there_are():
    found = auc([1.0] * 10, [1.0] * 10)
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - 0.1542, 0.5 + 0.1542), abs=1e-4)
    assert roc_curve([1.0] * 10, [1.0] * 10).as_points() == ((0, 0), (1, 1))


def test_one_user_says_nothing():
    found = auc([1.0], [0.0, 2.0, 3.0])
    assert (found.low, found.high) == (0, 1)


def test_one_pair_of_ten_thousand_million_in_the_wrong_order_is_an_interval_below_1():
    found = auc(np.append(np.arange(2.0, 10.0**5 + 1), 0), np.append(np.full(10**5 - 1, -1.0), 1))
    assert found.value == pytest.approx(1 - 1e-10, abs=1e-15)
    assert 0.999 < found.low < found.value < found.high <= 1


def test_users_whose_scores_cancel_out_have_an_interval_all_the_same():
    found = auc([1, 4, 1, 4], [2, 3, 2, 3], units=([0, 0, 1, 1], [0, 0, 1, 1]))
    assert (found.value, found.low, found.high) == (
        0.5,
        pytest.approx(0.5 - 0.42094, abs=1e-5),
        1 - found.low,
    )


def covering(repetitions: int, members: int, non_members: int, shift: float) -> float:
    """How often the 95% interval holds the true AUC of two normals."""
    generator = np.random.default_rng(17)
    truth = stats.norm.cdf(shift / np.sqrt(2))
    held = 0
    for _ in range(repetitions):
        found = auc(generator.normal(shift, 1, members), generator.normal(0, 1, non_members))
        held += found.low <= truth <= found.high
    return held / repetitions


@pytest.mark.parametrize("sizes", [(40, 60), (300, 100)], ids=["small", "large"])
@pytest.mark.parametrize("shift", [0.0, 1.0], ids=["random", "shifted"])
def test_95_percent_intervals_hold_the_truth_95_times_in_100(sizes, shift):
    # 2,000 repetitions: a true coverage of 0.95 stays within 0.93 and 0.97 but for 1 in 20,000.
    assert 0.93 < covering(2000, *sizes, shift) < 0.97


def test_random_labels_give_half_at_the_nominal_rate():
    generator = np.random.default_rng(5)
    scores = generator.exponential(size=150).round(1)  # with ties
    held = 0
    for _ in range(2000):
        generator.shuffle(scores)
        found = auc(scores[:70], scores[70:])
        held += found.low <= 0.5 <= found.high
    assert 0.93 < held / 2000 < 0.97


def clustered(generator, users: int, each: int):
    """Scores that hardly differ within a user."""
    centres = np.repeat(generator.normal(size=users), each)
    return centres + 0.2 * generator.normal(size=users * each), np.repeat(np.arange(users), each)


def test_several_scores_per_user_are_clustered_and_would_otherwise_be_overconfident():
    generator = np.random.default_rng(8)
    held = {True: 0, False: 0}
    for _ in range(600):
        members, whose = clustered(generator, 30, 8)
        others, theirs = clustered(generator, 40, 8)
        for is_clustered in held:
            users = {"units": (whose, theirs)} if is_clustered else {}
            found = auc(members, others, **users)
            held[is_clustered] += found.low <= 0.5 <= found.high
    assert 0.92 < held[True] / 600 < 0.975
    assert held[False] / 600 < 0.7


def test_the_clustered_interval_is_that_of_a_bootstrap_by_user():
    generator = np.random.default_rng(21)
    members, whose = clustered(generator, 60, 4)
    others, theirs = clustered(generator, 80, 3)
    found = auc(members + 0.5, others, units=(whose, theirs))
    drawn = []
    for _ in range(1500):
        some = generator.integers(60, size=60)
        more = generator.integers(80, size=80)
        again = members.reshape(60, 4)[some].ravel() + 0.5, others.reshape(80, 3)[more].ravel()
        drawn.append(auc(*again).value)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)


def test_users_in_any_order_and_one_score_each_change_nothing():
    generator = np.random.default_rng(2)
    members, others = generator.normal(0.2, 1, 30), generator.normal(size=20)
    names = [f"user {i}" for i in generator.permutation(50)]
    named = auc(members, others, units=(names[:30], names[30:]))
    unnamed = auc(members, others)
    assert (named.low, named.high) == pytest.approx((unnamed.low, unnamed.high), rel=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(0, 10, (0, 0.30850)), (10, 10, (0.69150, 1)), (5, 10, (0.18709, 0.81291))],
    ids=["none", "all", "half"],
)
def test_clopper_pearson_is_the_textbooks(successes, trials, interval):
    assert _clopper_pearson(successes, trials) == pytest.approx(interval, abs=1e-5)


def test_tpr_at_1_percent_of_200_allows_two_false_positives():
    non_members = np.arange(200.0)  # the third largest is 197
    members = np.array([197.0, 197.5, 198.5, 500.0])
    found = tpr_at(members, non_members, 0.01)
    assert found.tpr == 3 / 4
    assert found.interval == _clopper_pearson(3, 4)
    assert found.fpr_high == pytest.approx(stats.beta.ppf(0.975, 3, 198))


def test_tied_non_members_never_make_more_false_positives_than_allowed():
    non_members = np.array([0.0] * 90 + [1.0] * 10)
    assert tpr_at([1.0, 1.0, 2.0], non_members, 0.05).tpr == pytest.approx(1 / 3)
    assert tpr_at([1.0, 1.0, 2.0], non_members, 0.10).tpr == 1


def test_a_product_that_rounds_down_is_still_the_whole_number():
    assert 0.29 * 100 < 29
    assert tpr_at([70.5], np.arange(100.0), 0.29).tpr == 1  # above the 30th largest, 70


def test_the_thresholds_own_rate_is_below_its_bound_as_often_as_promised():
    generator = np.random.default_rng(12)
    over = 0
    for _ in range(2000):
        non_members = generator.normal(size=150)
        found = tpr_at([0.0], non_members, 0.02)
        threshold = np.sort(non_members)[-4]
        over += stats.norm.sf(threshold) > found.fpr_high
    assert 0.012 < over / 2000 < 0.04  # 0.025; and a bound at the nominal 2% would fail by far


@pytest.mark.parametrize(("rate", "needed"), [(0.01, 100), (0.001, 1000)], ids=["1%", "0.1%"])
def test_too_few_non_members_are_refused_with_the_number_needed(rate, needed):
    refused = tpr_at([1.0], np.arange(needed - 1.0), rate)
    assert (refused.tpr, refused.interval, refused.fpr_high) == (None, None, None)
    reason = refused.why_not
    assert f"at least {needed:,} non-members" in reason
    assert f"there are {needed - 1}" in reason
    enough = tpr_at([1.0], np.arange(float(needed)), rate)
    assert (enough.tpr, enough.why_not) == (0, None)


def test_a_thinned_curve_keeps_the_ends_and_the_few_false_positives():
    generator = np.random.default_rng(0)
    curve = roc_curve(generator.normal(1, 1, 20_000), generator.normal(size=20_000))
    thin = curve.thinned(200)
    assert len(thin.false_positive) <= 200 < len(curve.false_positive)
    assert thin.as_points()[0] == (0, 0)
    assert thin.as_points()[-1] == (1, 1)
    assert set(thin.as_points()) <= set(curve.as_points())
    assert np.sum((thin.false_positive > 0) & (thin.false_positive < 1e-3)) > 10
    area = np.trapezoid(thin.true_positive, thin.false_positive)
    assert area == pytest.approx(stats.norm.cdf(np.sqrt(0.5)), abs=0.01)
    points = thin.as_points()
    assert json.loads(json.dumps(points)) == [list(point) for point in points]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auc([], [1.0]), "scores of the members"),
        (lambda: auc([1.0], []), "scores of the non-members"),
        (lambda: auc([1.0, float("nan")], [1.0]), "1 of 2 scores of the members are NaN"),
        (lambda: roc_curve([[1.0]], [1.0]), "scores of the members"),
        (lambda: auc([1.0], [1.0], confidence=1.0), "confidence"),
        (
            lambda: auc([1.0], [1.0], units=(["a", "b"], ["c"])),
            "units must name a user for each of the 1 scores, got 2",
        ),
        (lambda: tpr_at([1.0], [1.0] * 10, 0.0), "false-positive rate"),
        (lambda: _clopper_pearson(3, 2), "successes"),
        (lambda: _clopper_pearson(0, 0), "trials"),
        (lambda: roc_curve([1.0], [1.0]).thinned(2), "most"),
    ],
    ids=["members", "non", "nan", "flat", "conf", "users", "rate", "more", "trials", "thin"],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
