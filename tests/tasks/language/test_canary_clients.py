import dataclasses
import math
import pickle

import numpy as np
import pytest

from tacit.engines.engine import SerialEngine
from tacit.engines.vectorized import VectorizedEngine
from tacit.federated.cohort import CohortSum
from tacit.federated.user_update import FedAvg
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT
from tacit.mechanisms.plan import RoundPlan
from tacit.models.base import layer_sizes, parameter_count, to_vector
from tacit.privacy.randomness import RunKey
from tacit.tasks.language.canary_clients import (
    LENGTH,
    CanaryClients,
    WithCanaryClients,
    _free_coordinates,
    coins_of,
)
from tests.federated.tiny import BOS, few_users, job, plan, small, stream, task

CLIENTS = CanaryClients(
    count=40, dimension=300, clip_norm=0.5, key=coins_of(RunKey.from_seed(3)), support=((0, 300),)
)
ON_RANGES = dataclasses.replace(CLIENTS, support=((10, 20), (150, 290)))


def with_canaries(clients=CLIENTS, cap=None):
    return WithCanaryClients(few_users(), clients, UserWeighting(cap))


def test_the_same_key_gives_the_same_coins_and_directions():
    again = CanaryClients(
        count=40,
        dimension=300,
        clip_norm=0.5,
        key=coins_of(RunKey.from_seed(3)),
        support=((0, 300),),
    )
    assert (again.included == CLIENTS.included).all()
    assert (again.update(7) == CLIENTS.update(7)).all()


def test_another_key_gives_others():
    other = dataclasses.replace(CLIENTS, key=coins_of(RunKey.from_seed(4)))
    assert (other.included != CLIENTS.included).any()
    assert abs(float(other.direction(7) @ CLIENTS.direction(7))) < 0.3


def test_coins_are_fair_and_independent_of_the_number_of_values():
    """Of 4,000 fair coins, 2,000 +- 5 standard deviations of 31.6; a bias of 5% is beyond it."""
    many = CanaryClients(4000, 5, 1.0, coins_of(RunKey.from_seed(1)), ((0, 5),))
    assert abs(int(many.included.sum()) - 2000) < 158
    wide = dataclasses.replace(many, dimension=50, support=((0, 50),))
    assert (wide.included == many.included).all()


def test_an_update_is_ten_clip_norms_along_its_direction():
    update = CLIENTS.update(2)
    assert update.dtype == np.float32
    assert np.linalg.norm(update) == pytest.approx(LENGTH * 0.5, rel=1e-6)
    assert LENGTH == 10
    assert update / np.linalg.norm(update) == pytest.approx(CLIENTS.direction(2), abs=1e-6)


def test_directions_live_on_their_support_alone():
    update = ON_RANGES.update(0)
    outside = np.ones(300, bool)
    outside[10:20] = outside[150:290] = False
    assert ON_RANGES.degrees == 150
    assert (update[outside] == 0).all()
    assert (update[~outside] != 0).all()
    assert np.linalg.norm(update) == pytest.approx(5.0, rel=1e-6)
    assert ON_RANGES.on_support(update) == pytest.approx(5 * ON_RANGES.direction(0), abs=1e-6)


@pytest.mark.parametrize("clients", [CLIENTS, ON_RANGES], ids=["everywhere", "on ranges"])
def test_cosines_are_those_of_the_whole_matrix(clients):
    change = np.random.default_rng(0).normal(size=300)
    matrix = np.stack([clients.update(number) for number in range(40)]).astype(np.float64)
    seen = np.where((matrix != 0).any(0), change, 0)
    expected = matrix @ seen / np.linalg.norm(matrix, axis=1) / np.linalg.norm(seen)
    assert clients.cosines(change) == pytest.approx(expected, abs=1e-6)


def test_cosines_with_an_unrelated_change_have_variance_one_over_n():
    """2,000 canaries: the mean square is within 5 standard deviations (0.16) of 1/n; 1.3/n not."""
    many = CanaryClients(
        count=2000,
        dimension=400,
        clip_norm=1.0,
        key=coins_of(RunKey.from_seed(5)),
        support=((0, 200),),
    )
    change = np.r_[np.linspace(-1, 5, 200), np.full(200, 100.0)]  # nothing random about it
    found = many.cosines(change)
    assert abs(np.mean(found**2) * 200 - 1) < 0.16
    assert abs(np.mean(found)) < 5 / math.sqrt(2000 * 200)


def test_progress_counts_the_canaries():
    told = []
    CLIENTS.cosines(np.ones(300), told.append)
    assert told == list(range(1, 41))


def test_users_come_first_and_then_only_those_whose_coin_said_yes():
    users, real = with_canaries(), few_users()
    assert len(users) == len(real) + CLIENTS.included.sum()
    assert users.least_population == len(real) + 40
    for index in range(len(real)):
        assert users.brought(index) is None
        assert users.key(index) == real.key(index)
        assert (users.tokens(index) == real.tokens(index)).all()
    names = [users.key(index) for index in range(len(real), len(users))]
    assert names == [f"canary client {n}" for n in np.flatnonzero(CLIENTS.included)]
    first = int(np.flatnonzero(CLIENTS.included)[0])
    assert (users.brought(len(real)).update == CLIENTS.update(first)).all()


@pytest.mark.parametrize("weight_aware", [False, True])
@pytest.mark.parametrize("cap", [None, 1.0, 20.0, 33.3, 0.25])
def test_the_plan_makes_of_a_canary_exactly_the_clip_norm_and_weight_one(cap, weight_aware):
    users = with_canaries(cap=cap)
    one_plan = plan(weighting=UserWeighting(cap), weight_aware=weight_aware)
    state = one_plan.initial_clip_state()
    brought = users.brought(len(few_users()))
    part = one_plan.contribution(brought.update, brought.examples, state)
    assert part.weight == WHOLE_WEIGHT
    norm = np.linalg.norm(part.update * one_plan.grid(state).step)
    assert norm == pytest.approx(0.5, rel=1e-6)
    assert norm <= 0.5


def test_without_a_clip_a_canary_is_ten_times_as_long():
    class Leaky(RoundPlan):
        def _clipper(self, clip_state):
            return FlatClip(1e6)

    leaky = Leaky(**{f.name: getattr(plan(), f.name) for f in dataclasses.fields(RoundPlan)})
    state = leaky.initial_clip_state()
    brought = with_canaries().brought(len(few_users()))
    part = leaky.contribution(brought.update, brought.examples, state)
    assert np.linalg.norm(part.update * leaky.grid(state).step) == pytest.approx(5.0, rel=1e-6)


def test_a_cohort_adds_a_canary_as_it_adds_a_user():
    model = small()
    size = parameter_count(model)
    clients = CanaryClients(9, size, 0.5, coins_of(RunKey.from_seed(1)), ((0, size),))
    users = with_canaries(clients)
    one_task = task(plan(population=30), FedAvg(learning_rate=0.5), users)
    one_job = job(model, one_task.plan)
    found = CohortSum.empty(one_task, one_job)
    first = len(few_users())
    found.add(one_task, one_job, first, users.brought(first))
    assert (found.diagnostics.users, found.diagnostics.clipped) == (1, 1)
    assert found.total.weight == WHOLE_WEIGHT
    seen = clients.cosines(found.total.update)
    assert seen[clients.takes_part[0]] == pytest.approx(1, abs=1e-6)
    assert np.abs(np.delete(seen, clients.takes_part[0])).max() < 0.5


def test_every_engine_adds_the_canaries_of_a_cohort_alike():
    model = small()
    size = parameter_count(model)
    clients = CanaryClients(9, size, 0.5, coins_of(RunKey.from_seed(1)), ((0, size),))
    users = with_canaries(clients)
    one_task = task(plan(population=30), FedAvg(learning_rate=0.5), users)
    one_job, cohort = job(model, one_task.plan), range(len(few_users()), len(users))
    expected = one_task.plan.empty(clients.dimension)
    for number in clients.takes_part:
        expected += one_task.plan.contribution(clients.update(number), 1, one_job.clip_state)
    for engine in (SerialEngine(local_sgd_for(model)), VectorizedEngine(model)):
        found = engine.sum(one_task, one_job, cohort)
        assert (found.total.update == expected.update).all()
        assert found.total.weight == expected.weight == len(cohort) * WHOLE_WEIGHT


def test_training_on_a_canary_as_if_it_had_texts_is_refused():
    """An engine that does not ask for what a user brings must not go on in silence."""
    model, users = small(), with_canaries()
    with pytest.raises(ValueError, match="tokens from 0"):
        FedAvg(learning_rate=0.5).run(
            local_sgd_for(model),
            to_vector(model),
            users.tokens(len(few_users())),
            bos=BOS,
            stream=stream(),
            clip=lambda update: update,
        )


def test_another_process_is_sent_the_key_and_not_the_directions():
    large = CanaryClients(500, 10**6, 1.0, coins_of(RunKey.from_seed(2)), ((0, 10**6),))
    sent = pickle.dumps(with_canaries(large))
    assert len(sent) < 5000
    there = pickle.loads(sent)
    index = len(few_users()) + 3
    assert (there.brought(index).update == with_canaries(large).brought(index).update).all()


def test_free_coordinates_leave_out_what_is_brought_back_to_unit_norm():
    model = small("lstm", unit_norm=True)
    before = to_vector(model)
    names = [name for name, _ in model.parameter_vectors()]
    sizes = layer_sizes(model)
    place = names.index("embedding.weight")
    start = sum(sizes[:place])
    covered = np.zeros(sum(sizes), bool)
    for first, end in _free_coordinates(model):
        covered[first:end] = True
    assert not covered[start : start + sizes[place]].any()
    assert covered.sum() == sum(sizes) - sizes[place]
    assert (to_vector(model) == before).all()


def test_free_coordinates_of_a_model_without_restrictions_are_all():
    model = small("lstm", unit_norm=False)
    assert _free_coordinates(model) == ((0, parameter_count(model)),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (np.zeros(300), "not all zero"),
        (np.full(300, np.nan), "must be finite"),
        (np.ones(299), "300 values"),
    ],
    ids=["zero", "nan", "short"],
)
def test_a_change_that_says_nothing_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CLIENTS.cosines(change)
