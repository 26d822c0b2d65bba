"""Figures of attacks are what they should be where that is known, and intervals cover it."""

import json
import math

import numpy as np
import pytest

from tacit.audit.gate import Gate
from tacit.audit.membership import KEPT, LEFT_OUT
from tacit.audit.nlu import AskedUtterances, attack_utterances
from tacit.audit.nlu_shadow import Shadow, ShadowAttack
from tacit.audit.roc import auc
from tacit.tasks.nlu.predictions import Scored
from tests.tasks.nlu.attack_fakes import confident, distinct, said, with_likelihood


def by_loss(members, others, **options):
    """The loss attack on candidates with these losses."""
    sides = [
        AskedUtterances(distinct(name, len(losses)), with_likelihood(-np.asarray(losses)))
        for name, losses in (("member", members), ("stranger", others))
    ]
    return attack_utterances(*sides, **options).figure("loss", KEPT)


def test_auc_of_exponential_losses_is_two_thirds():
    # P(a loss of rate 2 is below one of rate 1) = 2 / 3.
    stream = np.random.default_rng(1)
    found = by_loss(stream.exponential(0.5, 10_000), stream.exponential(1.0, 10_000))
    assert found.auc == pytest.approx(2 / 3, abs=0.01)
    assert found.auc_interval[0] < 2 / 3 < found.auc_interval[1]
    # Of the rate-1 losses 1% are below -log 0.99; below it are 1 - 0.99^2 of the others.
    assert found.tpr_at[0].tpr == pytest.approx(1 - 0.99**2, abs=0.004)


def coverage(rounds, draw, truth):
    """How often intervals hold the truth, and how often they hold 0.6."""
    held = wrong = 0
    for seed in range(rounds):
        low, high = draw(np.random.default_rng(seed)).auc_interval
        held += low <= truth <= high
        wrong += low <= 0.6 <= high
    return held / rounds, wrong / rounds


def test_where_members_do_not_differ_the_interval_covers_one_half_at_its_rate():
    def draw(stream):
        return by_loss(*stream.exponential(size=(2, 200)))

    right, wrong = coverage(200, draw, 0.5)
    assert 0.9 < right < 0.995  # 95%, give or take three standard errors
    assert wrong < 0.2


def test_copies_of_a_text_count_once_in_the_interval():
    def sides(stream):
        """40 texts on either side, each said five times."""
        for name in ("member", "stranger"):
            losses = np.repeat(stream.exponential(size=40), 5)
            yield said(*(f"{name} {place // 5}" for place in range(200))), with_likelihood(-losses)

    def draw(stream):
        members, others = (AskedUtterances(*side) for side in sides(stream))
        found = attack_utterances(members, others).figure("loss", KEPT)
        assert (found.member_units, found.non_member_units) == (40, 40)
        assert "needs at least 100" in found.tpr_at[0].why_not  # 40 texts, not 200 utterances
        return found

    def naively(stream):
        members, others = (scored.log_likelihood for _, scored in sides(stream))

        area = auc(members, others)

        class Found:
            auc_interval = area.low, area.high

        return Found

    assert coverage(150, draw, 0.5)[0] > 0.89  # 95% less three standard errors
    assert coverage(150, naively, 0.5)[0] < 0.75


def test_users_are_the_units_where_there_are_users():
    stream = np.random.default_rng(0)

    def side(first):
        users = [f"user {first + place % 40}" for place in range(400)]
        utterances = [
            said(f"text {first} {place}", user=user)[0] for place, user in enumerate(users)
        ]
        return AskedUtterances(tuple(utterances), with_likelihood(-stream.exponential(size=400)))

    result = attack_utterances(side(0), side(100))
    assert result.unit == "user"
    units = result.figure("loss", KEPT).member_units, result.figure("loss", KEPT).non_member_units
    assert units == (40, 40)
    assert result.figure("loss", KEPT).members == 400
    with pytest.raises(ValueError, match="39 users are among both the members and the non-members"):
        attack_utterances(side(0), side(1))


def shadow(seed=0, name="shadow", shift=1.0, intents=4, count=300):
    stream = np.random.default_rng([seed, 77])
    return Shadow(
        name, confident(count, shift, stream, intents), confident(count, 0.0, stream, intents)
    )


def target(shift, seed=1, count=300, intents=9):
    stream = np.random.default_rng(seed)
    return (
        AskedUtterances(distinct("member", count), confident(count, shift, stream, intents)),
        AskedUtterances(distinct("stranger", count), confident(count, 0.0, stream, intents)),
    )


def test_a_shadow_with_other_intents_teaches_to_find_surer_members():
    result = attack_utterances(*target(1.0), shadows=[shadow()])
    for name in ("shadow", "shadow_rescaled", "loss"):
        assert result.figure(name, KEPT).auc_interval[0] > 0.6, name
    # Of several shadows all are used.
    both = attack_utterances(*target(1.0), shadows=[shadow(), shadow(1, "another", intents=12)])
    assert both.shadows == ("shadow", "another")
    assert both.figure("shadow", KEPT).auc_interval[0] > 0.6


def test_members_that_are_less_sure_are_reported_as_such():
    # The wrong sign is a finding, not something to turn around.
    result = attack_utterances(*target(-1.0), shadows=[shadow()])
    assert result.figure("shadow", KEPT).auc_interval[1] < 0.4


def test_the_shadow_attack_covers_one_half_where_members_do_not_differ():
    trained = ShadowAttack.train([shadow()])

    def draw(seed):
        sides = [each.target for each in target(0.0, seed, 150)]
        for used in (trained, trained.rescaled(*sides)):
            yield auc(*map(used.scores, sides))

    found = [list(draw(100 + seed)) for seed in range(60)]
    for place in range(2):
        covered = sum(each[place].low < 0.5 < each[place].high for each in found)
        assert covered >= 50  # less at a coverage of 95%: twice in 10,000
        assert sum(each[place].low < 0.65 < each[place].high for each in found) <= 12


def test_a_target_that_is_less_sure_of_everything_is_met_by_rescaling():
    def unsure(side):
        """The same scores with their log-odds moved and shrunk."""
        odds = [np.log(each) - np.log1p(-each) for each in side.target.tokens]
        tokens = tuple(1 / (1 + np.exp(-(0.1 * each - 4))) for each in odds)
        flat = side.target.intents**0.1
        intents = flat / flat.sum(axis=1, keepdims=True)
        return AskedUtterances(side.utterances, Scored(intents, tokens, side.target.log_likelihood))

    result = attack_utterances(*map(unsure, target(1.0)), shadows=[shadow()])
    figures = {name: result.figure(name, KEPT).auc for name in ("shadow", "shadow_rescaled")}
    assert figures["shadow_rescaled"] > 0.65
    assert figures["shadow_rescaled"] > figures["shadow"] + 0.03


def test_neither_order_nor_names_of_utterances_change_a_score():
    trained = ShadowAttack.train([shadow()])
    asked = confident(50, 0.5, np.random.default_rng(2))
    order = np.random.default_rng(3).permutation(50)
    np.testing.assert_allclose(
        trained.scores(asked.only(order)), trained.scores(asked)[order], rtol=1e-9
    )
    one = shadow()
    turned = Shadow("turned", one.members.only(range(299, -1, -1)), one.non_members)
    again = ShadowAttack.train([turned])
    assert (again.scores(asked) == trained.scores(asked)).all()


def test_sides_are_balanced_by_a_draw_of_the_seed():
    losses = np.random.default_rng(0).exponential(size=(2, 200))
    found = {seed: by_loss(losses[0], losses[1][:80], seed=seed) for seed in (0, 1)}
    again = by_loss(losses[0], losses[1][:80], seed=1)
    assert found[0].members == found[0].non_members == 80
    assert found[0].auc != found[1].auc
    assert again == found[1]


def everyday(seed, count=400):
    """Texts as often said as the first numbers are drawn; common ones are likely to any model."""
    stream = np.random.default_rng(seed)
    which = (stream.random(count) ** 3 * 1000).astype(int)
    utterances = said(*(f"text {number}" for number in which))
    return AskedUtterances(utterances, with_likelihood(-(which / 1000) - 0.01))


def test_to_leave_out_duplicates_on_one_side_only_would_make_members_of_nobody():
    members, others = everyday(1), everyday(2)
    result = attack_utterances(members, others)
    for duplicates in (KEPT, LEFT_OUT):
        low, high = result.figure("loss", duplicates).auc_interval
        assert low < 0.5 < high
    inside, outside = result.figure("loss", LEFT_OUT).excluded["duplicates"]
    words = [{each.tokens for each in side.utterances} for side in (members, others)]
    assert inside == sum(each.tokens in words[1] for each in members.utterances) > 50
    assert outside == sum(each.tokens in words[0] for each in others.utterances) > 50
    rare = others.target.only(~others.said_among(members.utterances))
    naive = auc(members.target.log_likelihood, rare.log_likelihood)
    assert naive.low > 0.6


def test_duplicates_hide_members_that_are_found_without_them():
    shared = [f"common {place}" for place in range(50)]
    members = AskedUtterances(
        said(*shared, *(f"member {place}" for place in range(50))),
        with_likelihood(np.full(100, -0.1)),
    )
    others = AskedUtterances(
        said(*shared, *(f"stranger {place}" for place in range(50))),
        with_likelihood([-0.1] * 50 + [-2.0] * 50),
    )
    result = attack_utterances(members, others)
    assert result.figure("loss", KEPT).auc == 0.75
    found = result.figure("loss", LEFT_OUT)
    assert found.auc == 1
    assert found.excluded["duplicates"] == (50, 50)


def test_where_all_are_duplicates_there_is_a_reason_in_place_of_the_figure():
    both = AskedUtterances(distinct("same", 5), with_likelihood([-1.0] * 5))
    result = attack_utterances(both, both)
    assert result.figure("loss", KEPT).auc == 0.5
    assert list(result.absent) == ["loss, duplicates left out"]
    with pytest.raises(ValueError, match="no figure of 'loss, duplicates left out'; of 5 members"):
        result.figure("loss", LEFT_OUT)
    with pytest.raises(ValueError, match="there are: loss, duplicates kept"):
        result.figure("rmia", KEPT)


def with_references(name, count, seed, unknown=0):
    """Candidates that two references scored; the last few have a label one does not know."""
    values = -np.random.default_rng(seed).exponential(size=(3, count))
    values[2, count - unknown :] = math.nan
    scored = [with_likelihood(each) for each in values]
    return AskedUtterances(distinct(name, count), scored[0], tuple(scored[1:]))


def test_who_is_left_out_is_counted_by_reason():
    members = with_references("member", 30, 1, unknown=4)
    others = with_references("stranger", 40, 2, unknown=3)
    met = (*distinct("member", 5), *distinct("stranger", 2))
    result = attack_utterances(
        members,
        others,
        population=with_references("other", 20, 3),
        seen_by_references=met,
        shadows=[shadow()],
    )
    assert result.figure("rmia", KEPT).excluded == {
        "met_by_references_or_population": (5, 2),
        "unknown_labels": (4, 3),
        "for_balance": (0, 14),
    }
    assert result.figure("rmia", KEPT).members == 21
    assert result.figure("loss", KEPT).excluded == {
        "unknown_labels": (0, 0),
        "for_balance": (0, 10),
    }
    assert result.figure("shadow", KEPT).excluded == {"for_balance": (0, 10)}
    assert (result.population, result.references) == (20, 2)


def test_the_result_is_plain_json_marked_internal_with_the_figures_named_in_advance():
    members, others = with_references("member", 200, 1), with_references("stranger", 200, 2)
    result = attack_utterances(
        members,
        others,
        population=with_references("other", 50, 3),
        seen_by_references=said("something else"),
        shadows=[shadow()],
        a=0.5,
    )
    row = json.loads(json.dumps(result.as_row(), allow_nan=False))
    assert row["internal"] is True
    assert (row["a"], row["shadows"]) == (0.5, ["shadow"])
    stated = {each["stated"]: each for each in row["attacks"]}
    assert stated.keys() == {"paper", "strongest", None}
    assert (stated["paper"]["name"], stated["paper"]["duplicates"]) == ("shadow", KEPT)
    assert stated["strongest"]["auc"] == result.figure("rmia", LEFT_OUT).auc
    assert len(row["attacks"]) == 8
    text = json.dumps(row)
    assert "member 7" not in text  # nobody's words
    # Only what was run is stated, and the gate looks at the strongest that was.
    weaker = attack_utterances(*target(1.0))
    assert weaker.stated == {}
    gate = Gate.parse("membership_auc>0.6")
    assert gate.fails(weaker.gate_figures())
    assert not Gate.parse("membership_auc>0.7").fails(result.gate_figures())
    assert result.gate_figures()["membership_auc"]["attack"] == "rmia"


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: Shadow("atis", *shadow_sides(5, 0)), "shadow atis has no non-members"),
        (lambda: Shadow("atis", *shadow_sides(0, 5)), "shadow atis has no members"),
        (lambda: ShadowAttack.train([]), "no shadow model"),
        (
            lambda: attack_utterances(*target(0), shadows=[Shadow("atis", *shadow_sides(5, 5))]),
            "10 utterances, fewer than the 12 features",
        ),
        (  # as many members as non-members are learnt from
            lambda: ShadowAttack.train([Shadow("atis", *shadow_sides(300, 3))]),
            "6 utterances, fewer than the 12 features",
        ),
        (lambda: by_loss([math.nan] * 4, [1.0] * 3), "unknown labels 4 and 0.*"),
        (
            lambda: attack_utterances(with_references("a", 9, 1), with_references("b", 9, 2)),
            "needs a population, and seen_by_references",
        ),
        (
            lambda: attack_utterances(with_references("a", 9, 1), target(0)[1]),
            "2 references scored the members and 0 the non-members",
        ),
        (
            lambda: attack_utterances(
                with_references("a", 9, 1),
                with_references("b", 9, 2),
                population=with_references("c", 9, 3, unknown=9),
                seen_by_references=said("x"),
            ),
            "labels of none of the 9 population utterances",
        ),
        (lambda: attack_utterances(*target(0), seed=-1), "seed must be at least 0"),
        (lambda: attack_utterances(*target(0), confidence=math.nan), "confidence must be strictly"),
        (
            lambda: AskedUtterances(said("a", "b"), with_likelihood([-1.0])),
            "2 utterances and scores of 1",
        ),
    ],
)
def test_what_cannot_be_attacked_is_refused_in_one_sentence(do, message):
    with pytest.raises(ValueError, match=message) as refused:
        do()
    assert "\n" not in str(refused.value)


def shadow_sides(members, others):
    stream = np.random.default_rng(0)
    return confident(members, 1.0, stream), confident(others, 0.0, stream)


def test_the_same_words_or_the_same_user_count_as_met():
    asked = (*said("a b", "c d"), *said("e f", user="ann"), *said("g h", user="bob"))
    candidates = AskedUtterances(asked, with_likelihood([-1.0] * 4))
    others = (*said("c d", "ab"), *said("x y", user="bob"))
    assert candidates.said_among(others).tolist() == [False, True, False, False]
    assert candidates.met_among(others).tolist() == [False, True, False, True]
    assert not candidates.met_among([]).any()


def test_a_label_is_unknown_if_any_model_does_not_know_it():
    scores = [
        with_likelihood(row) for row in ([-1, math.nan, -1], [-1, -1, -1], [-1, -1, math.nan])
    ]
    candidates = AskedUtterances(said("a", "b", "c"), scores[0], tuple(scores[1:]))
    assert candidates.unknown_to_any().tolist() == [False, True, True]
