"""The sum over a cohort: isolated, exact, private."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.federated.cohort import CachedUsers, CohortSum, Diagnostics, sum_over
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.mechanisms.clipping import FlatClip, NoClip, PerLayerClip, QuantileClip
from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT
from tacit.mechanisms.noise import IndependentNoise
from tacit.models.base import layer_sizes, to_vector
from tacit.tokenizers.cache import TokenCache
from tests.federated.tiny import ListedUsers, few_users, job, plan, small, stream, task, texts
from tests.tokenizers.fakes import FakeSource, tokenizer

MODEL = small()
SGD = local_sgd_for(MODEL)
USERS = few_users()
SHUFFLED = FedAvg(learning_rate=0.5, batch_size=2, unroll=4, shuffle=True)
UPDATES = {
    "fedavg": SHUFFLED,
    "greedy": dataclasses.replace(SHUFFLED, clip_each_step=True),
    "fedsgd": FedSGD(learning_rate=0.5, unroll=4, batch_size=3),
    "stretch": dataclasses.replace(SHUFFLED, tokens_per_round=9),
}
updates = pytest.mark.parametrize("update", list(UPDATES))
ADAPTIVE = plan(
    weighting=UserWeighting(20.0),
    adaptive=QuantileClip(),
    noise=IndependentNoise(0.7),
    population=50,
)


def bits(total):
    return total.update.tobytes(), total.weight, total.bits.tobytes()


def summed(update, cohort, users=USERS, one_plan=ADAPTIVE, sgd=SGD) -> CohortSum:
    return sum_over(task(one_plan, update, users), job(MODEL, one_plan), cohort, sgd)


@updates
def test_other_users_have_no_part_in_a_users_contribution(update):
    """Their text, their number, the order, and the user's own number: the same bits."""
    names = tuple(f"{index:032x}" for index in range(len(USERS)))
    alone = bits(summed(UPDATES[update], [2]).total)
    changed = ListedUsers(
        tuple(USERS.lists[2] if k == 2 else texts(4, seed=50 + k) for k in range(7)), names
    )
    for others in ([], [0], [3, 1], [6, 5, 4, 3, 1, 0]):
        before = summed(UPDATES[update], others, changed).total
        with_user = summed(UPDATES[update], [*others, 2], changed).total
        difference = (
            (with_user.update - before.update).tobytes(),
            with_user.weight - before.weight,
            (with_user.bits - before.bits).tobytes(),
        )
        assert difference == alone
    moved = ListedUsers((USERS.lists[2],), (names[2],))
    assert bits(summed(UPDATES[update], [0], moved).total) == alone


@pytest.mark.parametrize("update", ["fedavg", "greedy"])
def test_users_stream_is_keyed_by_its_id(update):
    renamed = ListedUsers(USERS.lists, tuple("abcdefg"))
    assert bits(summed(UPDATES[update], [3]).total) != bits(
        summed(UPDATES[update], [3], renamed).total
    )


@settings(max_examples=15)
@given(st.permutations(range(7)), st.integers(0, 7), st.sampled_from(sorted(UPDATES)))
def test_sum_is_the_same_bits_in_any_order_and_partition(order, cut, update):
    whole = summed(UPDATES[update], range(7))
    one, other = (summed(UPDATES[update], part) for part in (order[:cut], order[cut:]))
    one.total += other.total
    assert bits(one.total) == bits(whole.total)
    assert dataclasses.astuple(one.diagnostics + other.diagnostics) == pytest.approx(
        dataclasses.astuple(whole.diagnostics)
    )


@updates
def test_round_and_attempt_change_what_users_draw(update):
    one_plan = ADAPTIVE
    first = job(MODEL, one_plan)
    totals = {
        bits(sum_over(task(one_plan, UPDATES[update]), each, [0, 3], SGD).total)
        for each in (
            first,
            dataclasses.replace(first, round=1),
            dataclasses.replace(first, attempt=1),
            dataclasses.replace(first, branch="other"),
        )
    }
    assert len(totals) == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("clipper", [FlatClip(0.5), NoClip()], ids=["flat", "none"])
def test_user_whose_update_is_not_finite_counts_as_zero(bad, clipper):
    class Spoilt(AutogradSGD):
        """Diverges on one user, known by its first word."""

        def step(self, rows, *arguments, **options):
            total = super().step(rows, *arguments, **options)
            if rows.inputs[0, 1] == USERS.lists[2][1]:
                self.set_weights(np.full_like(self.weights(), bad))
            return total

    one_plan = plan(clipper=clipper)
    update = FedAvg(learning_rate=0.5, unroll=4)
    result = summed(update, [0, 2, 3], one_plan=one_plan, sgd=Spoilt(MODEL))
    without = summed(update, [0, 3], one_plan=one_plan, sgd=AutogradSGD(MODEL))
    assert np.array_equal(result.total.update, without.total.update)
    assert result.total.weight == 3 * WHOLE_WEIGHT
    assert result.diagnostics == without.diagnostics + Diagnostics(users=1, not_finite=1)


def test_contribution_is_within_the_clip_norm_for_every_user():
    one_plan = plan(clipper=FlatClip(0.05))
    step = one_plan.grid(one_plan.initial_clip_state()).step
    for update in UPDATES.values():
        for user in range(len(USERS)):
            total = summed(update, [user], one_plan=one_plan).total
            assert np.linalg.norm(total.update * step) <= 0.05


def test_user_without_text_counts_by_the_plans_weighting():
    for cap, weight in ((None, WHOLE_WEIGHT), (20.0, 0)):
        one_plan = plan(weighting=UserWeighting(cap))
        result = summed(SHUFFLED, [4, 5], one_plan=one_plan)
        assert not result.total.update.any()
        assert result.total.weight == 2 * weight
        assert result.diagnostics.users == 2


@pytest.mark.parametrize("weight_aware", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
def test_diagnostics_say_what_was_clipped(weight_aware, per_layer):
    layers = layer_sizes(MODEL)
    one_plan = plan(
        clipper=PerLayerClip.even(0.5, len(layers)) if per_layer else FlatClip(0.5),
        layers=layers,
        weighting=UserWeighting(20.0),
        weight_aware=weight_aware,
        adaptive=QuantileClip(),
    )
    expected_clipped, expected_norms = 0, 0.0
    for user in range(7):
        result = summed(SHUFFLED, [user], one_plan=one_plan)
        expected_clipped += bool((result.total.bits < 0).any())
        unclipped = summed(SHUFFLED, [user], one_plan=plan(clipper=NoClip()))
        expected_norms += np.linalg.norm(unclipped.total.update * 2.0**-32)
    found = summed(SHUFFLED, range(7), one_plan=one_plan).diagnostics
    assert found.clipped == expected_clipped
    assert 0 < found.clipped < 7
    assert found.norm_sum == pytest.approx(expected_norms, rel=1e-5)
    assert found.users == 7
    assert found.examples == sum(int((tokens[1:] != 0).sum()) for tokens in USERS.lists)
    assert 1 < found.loss_sum / found.examples < 5


def test_progress_counts_the_users_done():
    seen = []
    sum_over(task(ADAPTIVE, SHUFFLED), job(MODEL, ADAPTIVE), [3, 0, 4], SGD, seen.append)
    assert seen == [1, 2, 3]


def test_threads_are_one_inside_and_as_before_outside():
    inside = []
    torch.set_num_threads(2)
    try:
        sum_over(
            task(ADAPTIVE, SHUFFLED),
            job(MODEL, ADAPTIVE),
            [0],
            SGD,
            lambda _: inside.append(torch.get_num_threads()),
        )
        assert (inside, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_job_and_task_survive_the_way_to_another_process(tmp_path):
    source = FakeSource((("the best of times", "it was the worst"), ("the theatre",), ()))
    cache = TokenCache.open_or_build(source, tokenizer(), tmp_path)
    users = CachedUsers(cache, source)
    one_task = dataclasses.replace(task(ADAPTIVE, SHUFFLED), users=users)
    one_job = job(MODEL, ADAPTIVE)
    sent_task, sent_job = pickle.loads(pickle.dumps((one_task, one_job)))
    assert len(sent_task.users) == 3
    assert sent_task.users.key(1) == source.user_id(1)
    assert sent_job.stream("a").words(3).tolist() == one_job.stream("a").words(3).tolist()
    model = small("lstm", vocab_size=300)
    weights = to_vector(model)
    totals = [
        sum_over(t, dataclasses.replace(j, weights=weights), range(3), local_sgd_for(model)).total
        for t, j in ((one_task, one_job), (sent_task, sent_job))
    ]
    assert bits(totals[0]) == bits(totals[1])
    assert totals[0].update.any()


def test_cache_of_other_users_is_refused(tmp_path):
    source = FakeSource((("the best",), ("of times",)))
    cache = TokenCache.open_or_build(source, tokenizer(), tmp_path)
    with pytest.raises(ValueError, match="must be of the source's 1 users, got 2"):
        CachedUsers(cache, FakeSource((("the best",),)))


def test_users_stream_is_not_that_of_the_noise():
    one_job = job(MODEL, ADAPTIVE)
    own = one_job.stream("update-noise").words(2).tolist()
    assert own != stream("update-noise").words(2).tolist()
    assert own == stream("user update-noise").words(2).tolist()
