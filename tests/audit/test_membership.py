"""Members are found where a model memorized them, and not where it never met them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.audit.membership import ATTACKS, Likelihoods, LossAttack, Rmia, UserInference
from tacit.audit.roc import tpr_at
from tacit.audit.users import (
    Reference,
    _check_roles,
    _score_users,
    _split_test_users,
    _user_texts,
    attack_users,
    gather,
    reference_model,
)
from tacit.corpus.builtin import SyntheticCorpus, SyntheticOptions
from tacit.corpus.hashing import role_draw
from tacit.models.registry import build
from tacit.public.pretrain import Settings
from tests.evaluation.tiny import Table
from tests.tokenizers.fakes import tokenizer

BOS, EOS, SIZE = 0, 1, 30
SETTINGS = Settings(learning_rate=3e-2, schedule="constant", warmup_steps=0, batch=40, epochs=12)


def person(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Training and fresh texts of somebody with a phrase of their own, among other words."""
    generator = np.random.default_rng([99, seed])
    phrase = generator.integers(2, SIZE, 5).tolist()
    texts = [[BOS, *generator.integers(2, SIZE, 2).tolist(), *phrase, EOS] for _ in range(7)]
    return texts[:4], texts[4:]


def people(first: int, last: int, which: int = 0) -> dict[str, list[list[int]]]:
    return {f"user {seed}": person(seed)[which] for seed in range(first, last)}


def by_name(result):
    return {each.name: each for each in result.attacks}


@pytest.fixture(scope="module")
def start():
    return build("lstm", SIZE, seed=3, embedding_size=16, cells=32)


@pytest.fixture(scope="module")
def overfitted(start):
    return reference_model(start, people(0, 60), SETTINGS, bos=BOS).model


@pytest.fixture(scope="module")
def references(start):
    return [
        reference_model(start, people(200, 260), SETTINGS, bos=BOS, seed=1),
        reference_model(start, people(260, 320), SETTINGS, bos=BOS, seed=2),
    ]


@pytest.fixture(scope="module")
def stranger(start):
    return reference_model(start, people(400, 460), SETTINGS, bos=BOS, seed=4).model


@pytest.mark.parametrize("which", [0, 1], ids=["training", "fresh"])
def test_members_of_an_overfitted_model_are_found(overfitted, references, which):
    name = ["training", "fresh"][which]
    members, others = people(0, 60, which), people(100, 200, which)
    result = attack_users(
        overfitted, members, others, references, bos=BOS, texts=["training", "fresh"][which]
    )
    for found in result.attacks:
        assert found.auc_interval[0] > 0.6, found.name
    assert by_name(result)["user_inference"].auc > 0.9
    assert by_name(result)["user_inference"].tpr_at[0].interval[0] > 0.1
    assert result.texts == name


@pytest.mark.parametrize("which", [0, 1], ids=["training", "fresh"])
def test_nobody_is_a_member_of_a_model_that_never_met_them(stranger, references, which):
    members, others = people(0, 60, which), people(100, 200, which)
    result = attack_users(stranger, members, others, references, bos=BOS)
    for found in result.attacks:
        assert found.auc_interval[0] < 0.5 < found.auc_interval[1], found.name
        assert found.auc_interval[1] - found.auc_interval[0] < 0.25


def test_people_who_write_plainly_take_in_the_loss_attack_only():
    table = torch.zeros(SIZE, SIZE)
    table[:, 2] = 5.0  # what everybody expects
    plain = {f"plain {index}": [[BOS, 2, 2, 2]] for index in range(30)}
    result = attack_users(Table(table), plain, people(100, 200), [Reference(Table(table))], bos=BOS)
    assert by_name(result)["loss"].auc == 1
    assert by_name(result)["loss"].auc_interval[0] > 0.85
    for name in ("user_inference", "rmia", "rmia_per_token"):
        assert by_name(result)[name].auc == 0.5
    assert by_name(result)["user_inference"].tpr_at[0].tpr == 0


def _evidence(target, references, texts):
    return _score_users([target, *(each.model for each in references)], texts, bos=BOS)


def evidence(target, *references) -> Likelihoods:
    """From (log p, tokens) of each text of each user under each model."""
    log_probs = [[sum(lp for lp, _ in own) for own in model] for model in (target, *references)]
    return Likelihoods(
        np.array(log_probs[0]),
        np.array(log_probs[1:]).reshape(-1, len(target)),
        np.array([sum(tokens for _, tokens in own) for own in target]),
        np.array([len(own) for own in target]),
    )


TARGET = [[(-4.0, 2), (-9.0, 3)], [(-10.0, 5)]]
ONE = [[(-5.0, 2), (-8.0, 3)], [(-16.0, 5)]]
OTHER = [[(-7.0, 2), (-10.0, 3)], [(-12.0, 5)]]


def test_user_inference_is_the_mean_log_ratio_over_texts():
    assert UserInference().scores(evidence(TARGET, ONE)).tolist() == [0.0, 6.0]
    assert UserInference().scores(evidence(TARGET, ONE, OTHER)).tolist() == [1.0, 4.0]


def test_the_loss_attack_is_minus_the_loss_per_token():
    assert LossAttack().scores(evidence(TARGET)).tolist() == [-13 / 5, -2.0]


USER = st.lists(st.tuples(st.floats(-20, -0.1), st.integers(1, 9)), min_size=1, max_size=3)
GROUP = st.lists(USER, min_size=1, max_size=6)


def shaken(group, seed):
    """Other log-probabilities of the same texts."""
    generator = np.random.default_rng(seed)
    return [[(lp * generator.uniform(0.5, 2), n) for lp, n in mine] for mine in group]


def literal_rmia(users, population, *, gamma, a, per_token) -> list[float]:
    """The paper's ratios, in probabilities; each group is (target, references)."""

    def ratios(group):
        target, references = group
        found = []
        for index, mine in enumerate(target):
            size = sum(n for _, n in mine) if per_token else 1

            def p(texts, size=size):
                return math.exp(sum(lp for lp, _ in texts) / size)

            p_out = sum(p(each[index]) for each in references) / len(references)
            found.append(p(mine) / (((1 + a) * p_out + (1 - a)) / 2))
        return found

    theirs = ratios(population)
    return [sum(x / z >= gamma for z in theirs) / len(theirs) for x in ratios(users)]


@given(
    GROUP,
    GROUP,
    st.integers(0, 1000),
    st.sampled_from([0.5, 1.01, 2.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_rmia_is_the_papers_formula(users, population, seed, gamma, a, per_token):
    def both(group):
        return group, [shaken(group, seed), shaken(group, seed + 1)]

    def seen(group):
        target, references = both(group)
        return evidence(target, *references)

    found = Rmia(gamma, a, per_token).scores(seen(users), seen(population))
    expected = {
        nearby: literal_rmia(
            both(users), both(population), gamma=gamma * nearby, a=a, per_token=per_token
        )
        for nearby in (
            1 - 1e-9,
            1 + 1e-9,
        )  # a ratio that is gamma but for rounding may go either way
    }
    for low, value, high in zip(expected[1 + 1e-9], found, expected[1 - 1e-9], strict=True):
        assert low <= value <= high


def test_rmias_ratio_in_a_case_worked_out_by_hand():
    def halves(probability):  # two texts of three tokens in all, each of this probability
        return [[(math.log(probability), 1), (2 * math.log(probability), 2)]]

    seen = evidence(halves(0.5), halves(0.2), halves(0.4))
    by_token = Rmia(a=0.3, per_token=True)._log_ratios(seen)
    assert np.exp(by_token) == pytest.approx([0.5 / ((1.3 * 0.3 + 0.7) / 2)])
    whole = Rmia(a=0.3)._log_ratios(seen)
    assert np.exp(whole) == pytest.approx([0.125 / ((1.3 * 0.036 + 0.7) / 2)])
    assert np.exp(Rmia()._log_ratios(seen)) == pytest.approx([0.125 / 0.036])


def test_a_user_beats_whoever_has_the_same_ratio_if_gamma_is_1():
    seen = evidence(TARGET, ONE)
    assert Rmia(gamma=1.0).scores(seen, seen).tolist() == [0.5, 1.0]
    assert Rmia(gamma=1.01).scores(seen, seen).tolist() == [0.0, 0.5]


def test_rmia_without_correction_orders_users_as_the_ratio_of_their_sums_does():
    generator = np.random.default_rng(0)

    def some(count, shift):
        log_probs = generator.normal(-20, 2, count)
        target = [[(lp + shift + generator.normal(), 5)] for lp in log_probs]
        return evidence(target, [[(lp, 5)] for lp in log_probs])

    users, population = some(50, 0.5), some(4000, 0.0)
    ratios = users.target - users.references[0]
    shares = Rmia().scores(users, population)
    assert (np.diff(shares[np.argsort(ratios)]) >= 0).all()
    assert len(set(shares.tolist())) > 45


def test_a_correction_swamps_whole_texts_but_not_tokens():
    seen = evidence([[(-300.0, 100)]] * 2, [[(-300.0, 100)], [(-250.0, 100)]])
    whole = Rmia(a=0.5)._log_ratios(seen)
    assert whole[0] == whole[1]
    by_token = Rmia(a=0.5, per_token=True)._log_ratios(seen)
    assert by_token[0] > by_token[1]


def test_the_population_set_aside_is_not_measured(overfitted, references):
    members, others = people(0, 20), people(100, 200)
    result = attack_users(overfitted, members, others, references, bos=BOS)
    aside = sum(role_draw("population", user) < 0.25 for user in others)
    assert 10 < aside < 40
    assert by_name(result)["rmia"].non_members == 100 - aside
    assert by_name(result)["user_inference"].non_members == 100
    assert by_name(result)["rmia"].tpr_at[0].why_not
    assert by_name(result)["rmia"].excluded == {"population": (0, aside)}
    shares = {false for false, _ in by_name(result)["rmia"].roc}
    assert len(shares) <= aside + 2  # as many steps as there are users in the population


def test_the_row_is_plain_json_and_says_why_a_figure_is_missing(overfitted, references):
    result = attack_users(overfitted, people(0, 20), people(100, 200), references[:1], bos=BOS)
    row = json.loads(json.dumps(result.as_row(), allow_nan=False))
    assert row["internal"] is True
    assert (row["members"], row["non_members"], row["references"]) == (20, 100, 1)
    first = row["attacks"][0]
    assert first["name"] == "user_inference"
    low, high = first["auc_interval"]
    assert low <= first["auc"] <= high
    reached = by_name(result)["user_inference"].tpr_at[0]
    common, rare = first["tpr_at"]
    assert (common["fpr"], common["tpr"], common["why_not"]) == (0.01, reached.tpr, None)
    assert common["interval"] == list(reached.interval)
    assert (rare["fpr"], rare["tpr"], rare["interval"]) == (0.001, None, None)
    assert "at least 1,000 non-members" in rare["why_not"]
    assert first["roc"][0] == [0, 0]
    assert first["roc"][-1] == [1, 1]


def test_figures_are_those_of_the_scores(overfitted, references):
    members, others = people(0, 30), people(100, 200)
    result = attack_users(overfitted, members, others, references, bos=BOS, confidence=0.9)
    inside, outside = (
        UserInference().scores(_evidence(overfitted, references, group))
        for group in (members, others)
    )
    assert by_name(result)["user_inference"].tpr_at[0] == tpr_at(
        inside, outside, 0.01, confidence=0.9
    )
    assert by_name(result)["user_inference"].auc == np.mean(inside[:, None] > outside)


def test_the_loss_attack_needs_no_reference(overfitted):
    result = attack_users(
        overfitted, people(0, 9), people(100, 109), bos=BOS, attacks=[LossAttack()]
    )
    assert [found.name for found in result.attacks] == ["loss"]
    assert result.references == 0


def test_a_reference_starts_from_the_given_weights_and_leaves_them_alone(start):
    before = {name: value.clone() for name, value in start.state_dict().items()}
    few = replace(SETTINGS, epochs=1)
    one, same = (reference_model(start, people(0, 5), few, bos=BOS, seed=7) for _ in range(2))
    other = reference_model(start, people(0, 5), few, bos=BOS, seed=8)
    assert all(torch.equal(before[name], value) for name, value in start.state_dict().items())
    weights = [dict(each.model.state_dict()) for each in (one, same, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in before)
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in before)
    assert one.users == frozenset(people(0, 5))
    assert not one.model.training
    # From weights that are near, one cautious step stays near.
    near = reference_model(start, people(0, 5), replace(few, learning_rate=1e-6), bos=BOS)
    assert all(torch.allclose(before[k], v, atol=1e-4) for k, v in near.model.state_dict().items())


@pytest.mark.parametrize("references", [1, 2, 3])
def test_test_users_are_halved_by_a_hash_and_nobody_moves_anybody(references):
    ids = [f"{index:032x}" for index in range(2000)]
    groups, non_members = _split_test_users(ids, references)
    everyone = sorted([*non_members, *(i for group in groups for i in group)])
    assert everyone == list(range(2000))
    assert abs(len(non_members) - 1000) < 100  # 4.5 standard deviations
    for group in groups:
        assert abs(len(group) - 1000 / references) < 100
    _, fewer = _split_test_users(ids[:1000], references)
    assert fewer == [i for i in non_members if i < 1000]


def test_the_population_is_drawn_from_both_sides_of_the_split():
    """One hash for both purposes would leave no population among the non-members."""
    ids = [f"{index:032x}" for index in range(2000)]
    _, outside = _split_test_users(ids)
    share = np.mean([role_draw("population", ids[index]) < 0.25 for index in outside])
    assert 0.2 < share < 0.3


def test_everybody_an_attack_needs_is_gathered_in_one_role_each():
    corpus = SyntheticCorpus(SyntheticOptions(users=60, test_fraction=0.5, held_out_fraction=0.3))
    chars = tokenizer("char")  # to words they would all be unknown
    found = gather(corpus.train, corpus.test, chars, "fresh", references=2, max_tokens=200)
    _check_roles(
        UNIFORM,
        {"members": found.members, "non-members": found.non_members},
        [Reference(UNIFORM, frozenset(users)) for users in found.references],
    )
    first, second = map(set, found.references)
    assert first.isdisjoint(second)
    ids = [{part.user_id(i) for i in range(len(part))} for part in (corpus.train, corpus.test)]
    assert set(found.members) <= ids[0]
    assert first | second | set(found.non_members) <= ids[1]
    assert len(found.members) >= 20  # who has no fresh text is left out
    assert all(sum(map(len, texts)) <= 200 for texts in found.members.values())
    # Members show what training leaves out, references learn from what it takes.
    some = next(iter(found.members))
    taken, left = (
        _user_texts(corpus.train, chars, which, max_tokens=None)[some]
        for which in ("training", "fresh")
    )
    assert found.members[some][0] in left
    assert found.members[some][0] not in taken
    whole = _user_texts(corpus.test, chars, "training", max_tokens=200)
    assert all(texts == whole[user] for user, texts in found.references[0].items())
    few = gather(corpus.train, corpus.test, chars, "all", max_users=3)
    assert (len(few.members), len(few.non_members)) == (3, 3)
    assert len(few.references[0]) > 3
    alone = gather(corpus.train, corpus.test, chars, "all", references=0)
    assert alone.references == ()
    assert set(alone.non_members) == ids[1]


UNIFORM = Table(torch.zeros(SIZE, SIZE))
SMALL = Table(torch.zeros(7, 7))


def run(members=(0, 3), others=(10, 60), references=None, **options):
    references = (Reference(UNIFORM),) if references is None else references
    return attack_users(UNIFORM, people(*members), people(*others), references, bos=BOS, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run(references=()), "user_inference needs a reference model"),
        (lambda: run(references=(), attacks=[Rmia()]), "rmia needs a reference model"),
        (lambda: run(references=(Reference(SMALL),)), "vocabulary of 7 tokens"),
        (lambda: run(others=(2, 5)), "1 users are among both the members and the non-members"),
        (lambda: run(members=(0, 0)), "no members to attack"),
        (lambda: run(others=(0, 0)), "no non-members to attack"),
        (lambda: run(others=(10, 11)), "too few to set a population aside"),
        (lambda: run(attacks=[]), "no attack to run"),
        (lambda: run(texts="stale"), "one of fresh, training, all"),
        (lambda: run(confidence=95.0), "confidence"),
        (
            lambda: run(references=(Reference(UNIFORM, frozenset(people(59, 70))),)),
            "trained on 1 of the 50 non-members",
        ),
        (
            lambda: _check_roles(
                UNIFORM, {"members": people(0, 2)}, [Reference(UNIFORM, frozenset(["user 1"]))]
            ),
            "trained on 1 of the 2 members",
        ),
        (lambda: Rmia(gamma=0.0), "gamma"),
        (lambda: Rmia(a=1.5), "a must be from 0 to 1"),
        (lambda: Rmia().scores(evidence(TARGET, ONE)), "population"),
        (lambda: UserInference().scores(evidence(TARGET)), "needs a reference model"),
        (lambda: _split_test_users(["a"]), "too few for 1 reference"),
        (lambda: _split_test_users(["a"], 0), "references"),
        (lambda: reference_model(UNIFORM, {}, SETTINGS, bos=BOS), "no users to train"),
    ],
    ids=lambda value: None if callable(value) else value[:25],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_all_attacks_have_names_of_their_own():
    assert len({each.name for each in ATTACKS}) == len(ATTACKS)
