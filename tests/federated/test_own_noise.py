"""The noise that users add in a simulation: a share for each, keyed by what it hides."""

import dataclasses

import numpy as np
import pytest

from tacit.federated.cohort import sum_over
from tacit.federated.user_update import FedAvg
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.models.base import parameter_count
from tests.federated.tiny import few_users, job, plan, small, task, texts

MODEL = small()
SIZE = parameter_count(MODEL)
USERS = few_users()
PLAN = plan(
    sampler=MinSeparationSampler(1, 1.0), noise=DistributedNoise(1.0, SIZE, 20, survivors=5)
)
UPDATE = FedAvg(learning_rate=0.5, batch_size=2, unroll=4, shuffle=True)
TASK, JOB = task(PLAN, UPDATE, USERS), job(MODEL, PLAN)


def summed(cohort, of=JOB, users=USERS, with_plan=PLAN):
    return sum_over(task(with_plan, UPDATE, users), of, cohort, local_sgd_for(MODEL)).total.update


def test_the_sum_is_that_of_its_users_in_any_order_and_partition():
    cohort = [4, 0, 6, 2, 3]
    whole = summed(cohort)
    assert whole.shape == (PLAN.shared_noise.rotation.padded,)
    assert np.array_equal(whole, summed(cohort[::-1]))
    assert np.array_equal(whole, summed(cohort[:2]) + summed(cohort[2:]))
    assert np.array_equal(whole, sum(summed([user]) for user in cohort))


def test_every_user_adds_noise_of_its_own_also_one_with_nothing_to_say():
    vectors = [summed([user]) for user in range(len(USERS))]
    assert len({vector.tobytes() for vector in vectors}) == len(USERS)
    silent = summed([4])  # without any text
    assert abs(silent.std() / PLAN.shared_noise.share_stddev - 1) < 0.2  # of 370 values


@pytest.mark.parametrize(
    "changed",
    [
        {"attempt": 1},
        {"round": 1},
        {"branch": "other"},
        {"weights": JOB.weights + np.float32(1)},
        {"clip_state": dataclasses.replace(JOB.clip_state, round=1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_round_attempt_branch_or_model_has_other_noise(changed):
    """By what a user without any text adds, which is noise alone."""
    other = summed([4], dataclasses.replace(JOB, **changed))
    assert np.array_equal(summed([4]), summed([4]))
    assert abs(np.corrcoef(summed([4]), other)[0, 1]) < 0.3  # of 370 values, 5.7 deviations


def test_another_plan_has_other_noise():
    other = dataclasses.replace(PLAN, noise=dataclasses.replace(PLAN.noise, survivors=6))
    assert abs(np.corrcoef(summed([4]), summed([4], with_plan=other))[0, 1]) < 0.3


def test_a_user_whose_text_changed_has_other_noise_and_nobody_else_has():
    lists = (*USERS.lists[:3], texts(5, seed=99), *USERS.lists[4:])
    changed = dataclasses.replace(USERS, lists=lists)
    for user in range(len(USERS)):
        one, other = summed([user]), summed([user], users=changed)
        assert np.array_equal(one, other) == (user != 3)
    noise = PLAN.shared_noise
    moved = summed([3]) - summed([3], users=changed)
    # Twice the variance of a share, and not the little that an update moves.
    assert moved.std() > noise.share_stddev
    assert noise.squared_bound / len(moved) < noise.share_stddev**2
