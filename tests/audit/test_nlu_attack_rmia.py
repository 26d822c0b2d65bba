""" "rmia" on utterances is the literal count over pairs, and its a comes from references alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.audit.membership import KEPT, Rmia
from tacit.audit.nlu import _A_GRID, AskedUtterances, _likelihoods, attack_utterances, choose_a
from tests.tasks.nlu.attack_fakes import distinct, said, with_likelihood

LOG = st.floats(-8, 0)


def literal(target, references, population, their_references, gamma, a):
    """The share of the z with [p(x|target) / p(x)] / [p(z|target) / p(z)] >= gamma, one by one."""

    def ratio(log_target, log_references):
        out = sum(math.exp(value) for value in log_references) / len(log_references)
        return math.exp(log_target) / (((1 + a) * out + (1 - a)) / 2)

    found = []
    for place, mine in enumerate(target):
        x = ratio(mine, [each[place] for each in references])
        beaten = 0
        for other, theirs in enumerate(population):
            z = ratio(theirs, [each[other] for each in their_references])
            # Ties come out either way in floating point; nobody draws them here.
            beaten += x / z >= gamma
        found.append(beaten / len(population))
    return found


@given(
    st.lists(st.tuples(LOG, LOG, LOG), min_size=1, max_size=8, unique=True),
    st.lists(st.tuples(LOG, LOG, LOG), min_size=1, max_size=8, unique=True),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 9),
)
def test_scores_are_the_literal_shares(asked, population, gamma, a, seed):
    # Noise from a stream, so that no two ratios are equal.
    noise = np.random.default_rng(seed).uniform(-0.1, 0, size=(2, 3, 8))
    x = np.array(asked).T + noise[0, :, : len(asked)]
    z = np.array(population).T + noise[1, :, : len(population)]
    found = Rmia(gamma, a).scores(
        _likelihoods(with_likelihood(x[0]), [with_likelihood(each) for each in x[1:]]),
        _likelihoods(with_likelihood(z[0]), [with_likelihood(each) for each in z[1:]]),
    )
    assert found.tolist() == literal(x[0], x[1:], z[0], z[1:], gamma, a)


def only(asked, indices):
    """Some of the utterances, in this order."""
    return AskedUtterances(
        tuple(asked.utterances[index] for index in indices),
        asked.target.only(indices),
        tuple(scored.only(indices) for scored in asked.references),
    )


def test_through_the_attack_it_is_the_same_and_needs_no_order():
    stream = np.random.default_rng(3)
    sizes = {"member": 30, "stranger": 40, "other": 20}
    scores = {name: -stream.exponential(size=(3, count)) for name, count in sizes.items()}
    groups = {
        name: AskedUtterances(
            distinct(name, count),
            with_likelihood(scores[name][0]),
            tuple(map(with_likelihood, scores[name][1:])),
        )
        for name, count in sizes.items()
    }
    members, others, population = groups.values()
    result = attack_utterances(
        members,
        only(others, np.arange(30)),  # as many as members: nobody is left out for balance
        population=population,
        seen_by_references=said("something else"),
        a=0.4,
    )
    theirs = scores["other"][0], scores["other"][1:]
    inside = literal(scores["member"][0], scores["member"][1:], *theirs, 1.0, 0.4)
    outside = literal(scores["stranger"][0], scores["stranger"][1:], *theirs, 1.0, 0.4)[:30]
    pairs = [(m > n) + (m == n) / 2 for m in inside for n in outside]
    assert result.figure("rmia", KEPT).auc == pytest.approx(np.mean(pairs), abs=1e-12)
    turned = attack_utterances(
        only(members, np.arange(30)[::-1]),
        only(others, np.arange(30)[::-1]),
        population=only(population, stream.permutation(20)),
        seen_by_references=said("something else"),
        a=0.4,
    )
    assert turned.figure("rmia", KEPT) == result.figure("rmia", KEPT)


def two_references(count: int = 400):
    """Half of the utterances are hard for everybody; only on those is a member's likelihood higher.

    Returned as `choose_a` wants it: what each says of both trainings, and of others.
    """
    stream = np.random.default_rng(5)

    def view(hard, is_member):
        base = -2.0 * hard - 0.3 * (1 - hard) + stream.normal(0, 0.3, count)
        return with_likelihood(np.minimum(base + is_member * 1.5 * hard, 0))

    hard = (stream.random((3, count)) < 0.5).astype(float)
    trained = [[view(hard[r], r == s) for s in range(2)] for r in range(2)]
    return trained, [view(hard[2], False) for _ in range(2)]


def test_a_is_the_one_with_the_largest_auc_against_the_references():
    trained, outside = two_references()

    def mean_auc(a):
        """The same, by the definition, without the library's AUC."""
        values = []
        for r in range(2):
            order = np.random.default_rng(0).permutation(400)
            population = outside[r].only(order[::2]), outside[1 - r].only(order[::2])
            kept = np.sort(order[1::2])
            others = outside[r].only(kept), outside[1 - r].only(kept)
            mine = trained[r][r], trained[r][1 - r]
            scores = [
                Rmia(a=a).scores(_likelihoods(t, [o]), _likelihoods(population[0], [population[1]]))
                for t, o in (mine, others)
            ]
            greater = scores[0][:, None] > scores[1]
            values.append((greater + (scores[0][:, None] == scores[1]) / 2).mean())
        return np.mean(values)

    found = choose_a(trained, outside)
    every = {a: mean_auc(a) for a in _A_GRID}
    assert every[found] == max(every.values())
    assert every[found] > every[1.0] + 0.01  # the choice matters


def test_a_is_left_at_one_where_it_makes_no_difference():
    flat = [with_likelihood(np.full(20, -1.0)) for _ in range(2)]
    assert choose_a([flat, flat], flat) == 1.0


def test_utterances_with_unknown_labels_play_no_part_in_the_choice():
    trained, outside = two_references()
    unknown = with_likelihood([*trained[0][1].log_likelihood, math.nan, math.nan])
    wild = with_likelihood([*trained[0][0].log_likelihood, -1e-9, -50.0])
    assert choose_a([[wild, unknown], trained[1]], outside) == choose_a(trained, outside)


@pytest.mark.parametrize("count", [0, 1])
def test_a_is_not_chosen_with_too_few_references(count):
    scored = [with_likelihood([-1.0, -2.0])] * count
    with pytest.raises(ValueError, match="at least 2 references"):
        choose_a([scored] * count, scored)


def test_a_is_not_chosen_where_no_label_is_known():
    known, unknown = with_likelihood([-1.0, -2.0]), with_likelihood([math.nan, math.nan])
    with pytest.raises(ValueError, match="too few utterances to choose a"):
        choose_a([[known, unknown], [known, known]], [known, known])
