"""Several processes compute what one does, to the bit."""

import dataclasses
import os
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest

from tacit.engines.engine import ProcessEngine, SerialEngine, available_cores, engine_for
from tacit.engines.ranks import Assignment, Message, WorkerLost
from tacit.engines.teams import Children
from tacit.engines.worker import Worker
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.clipping import PerLayerClip
from tacit.models.base import layer_sizes
from tests.engines.cohorts import (
    PLAN,
    TASK,
    UPDATES,
    USERS,
    ElsewhereOnly,
    Troubled,
    bits,
    job_of,
)
from tests.federated.tiny import ListedUsers, plan, small, task, texts

COHORTS = {"all": range(7), "one": [3], "nobody": [], "few": [6, 2, 0]}


def serial(model, one_task, job, users):
    return SerialEngine(local_sgd_for(model)).sum(one_task, job, users)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("cohort", COHORTS)
def test_two_processes_give_the_bits_of_one(two, model, update, cohort):
    one_task, users = task(PLAN, UPDATES[update], USERS), COHORTS[cohort]
    found = two.sum(one_task, job_of(model), users)
    expected = serial(model, one_task, job_of(model), users)
    assert bits(found) == bits(expected)
    assert dataclasses.astuple(found.diagnostics) == pytest.approx(
        dataclasses.astuple(expected.diagnostics)
    )


def test_changes_of_round_weights_clip_norms_and_plan_reach_the_others(two, model):
    """A job that went stale in a worker would show in the sum."""
    job = job_of(model)
    layers = layer_sizes(model)
    per_layer = plan(clipper=PerLayerClip.even(0.2, len(layers)), layers=layers)
    norms = dataclasses.replace(job.clip_state, norms=(0.1,))
    for one_task, each in (
        (TASK, job),
        (TASK, dataclasses.replace(job, round=1)),
        (TASK, dataclasses.replace(job, attempt=2)),
        (TASK, dataclasses.replace(job, branch="other")),
        (TASK, dataclasses.replace(job, weights=job.weights * 0.5)),
        (TASK, dataclasses.replace(job, clip_state=norms)),
        (
            task(per_layer, UPDATES["fedsgd"], USERS),
            dataclasses.replace(job, clip_state=per_layer.initial_clip_state()),
        ),
        (TASK, job),
    ):
        found = two.sum(one_task, each, range(7))
        assert bits(found) == bits(serial(model, one_task, each, range(7)))


def test_kernel_is_that_of_one_process(two, model):
    """A run may go on with another number of processes: its HMACs have to agree."""
    assert two.kernel == SerialEngine(local_sgd_for(model)).kernel


def test_worker_with_another_arithmetic_refuses_its_part(two, model):
    worker = Worker(1)
    told = Assignment("other", model, TASK, job_of(model), [np.array([0]), np.array([3, 1])])

    def computed(assignment):
        pickled = np.frombuffer(pickle.dumps(assignment), np.uint8)
        return worker.compute(Message(len(assignment.job.weights), 1, pickled))

    with pytest.raises(ValueError, match=r"computes with 'torch .*' and rank 0 with 'other'"):
        computed(told)
    found = computed(dataclasses.replace(told, kernel=two.kernel))
    assert bits(found) == bits(serial(model, TASK, job_of(model), [3, 1]))


def test_progress_counts_for_all_and_ends_within_the_cohort(two, model):
    seen = []
    two.sum(TASK, job_of(model), range(7), seen.append)
    assert seen == sorted(seen)
    assert all(0 < count <= 7 for count in seen)
    assert seen[-1] >= 6


MISTAKES = {
    "a mistake": (ValueError, "the text is damaged", "process 1 of 2 .* part: the text is damaged"),
    "no memory": (MemoryError, "", "process 1 of 2 could not do its part: MemoryError"),
    "a bug": (ZeroDivisionError, "by zero", "its part: ZeroDivisionError: by zero"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_failure_in_another_process_is_one_sentence_here_and_the_engine_goes_on(
    two, model, mistake
):
    error, text, expected = MISTAKES[mistake]
    troubled = dataclasses.replace(TASK, users=Troubled(os.getpid(), error, text))
    with pytest.raises(ValueError, match=expected):
        two.sum(troubled, job_of(model), range(8))
    found = two.sum(TASK, job_of(model), range(7))
    assert bits(found) == bits(serial(model, TASK, job_of(model), range(7)))


def test_users_that_another_process_cannot_find_are_a_clear_mistake(two, model):
    lost = dataclasses.replace(TASK, users=ElsewhereOnly(USERS.lists))
    with pytest.raises(ValueError, match=r"process 1 of 2 .*No such file.*no/such/file"):
        two.sum(lost, job_of(model), range(7))
    assert two.sum(TASK, job_of(model), range(7)).diagnostics.users == 7


def test_class_that_only_a_script_has_is_a_clear_mistake(two, model, monkeypatch):
    script = ModuleType("tests_hidden")  # known to this process alone, as __main__ is
    script.Users = type("Users", (ListedUsers,), {"__module__": script.__name__})
    monkeypatch.setitem(sys.modules, script.__name__, script)
    users = script.Users(USERS.lists)
    with pytest.raises(ValueError, match=r"does not find .*tests_hidden.* in a module that can"):
        two.sum(dataclasses.replace(TASK, users=users), job_of(model), range(7))


def test_what_cannot_be_sent_is_a_clear_mistake(two, model):
    class Local(ListedUsers):
        pass

    with pytest.raises(ValueError, match=r"cannot be sent to other processes: .*Local"):
        two.sum(dataclasses.replace(TASK, users=Local(USERS.lists)), job_of(model), range(7))
    assert two.sum(TASK, job_of(model), range(7)).diagnostics.users == 7


def test_damaged_user_is_found_before_anything_is_sent(two, model):
    troubled = dataclasses.replace(TASK, users=Troubled(-1, ValueError, "damaged at user 3"))
    with pytest.raises(ValueError, match=r"^damaged at user 3"):
        two.sum(troubled, job_of(model), range(8))
    assert two.sum(TASK, job_of(model), range(7)).diagnostics.users == 7


def test_two_engines_in_one_process_do_not_meddle_with_each_other(two, model):
    other = ProcessEngine(model, Children(1))
    for engine in (two, other, two):
        assert engine.sum(TASK, job_of(model), range(7)).diagnostics.users == 7
    other.close()
    assert two.sum(TASK, job_of(model), [0]).diagnostics.users == 1


@pytest.mark.parametrize("workers", [0, -1])
def test_number_of_workers_that_makes_no_sense_is_refused(workers, model):
    with pytest.raises(ValueError, match=f"workers must be at least 1, got {workers}"):
        engine_for(model, workers)


def test_worker_that_cannot_even_start_is_named(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    children = Children(2)
    try:
        with pytest.raises(WorkerLost, match=r"worker process 1 of 1 ended \(exit code 1\)"):
            children.ranks()
    finally:
        children.end()


def test_there_is_a_core():
    assert available_cores() >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifg", "transformer-14m"])
def test_three_processes_give_the_bits_of_one(name):
    """Also by autograd, with more users than processes and with fewer."""
    model = small(name)
    users = ListedUsers(tuple(texts(n % 5, seed=n) for n in range(23)))
    many = task(PLAN, UPDATES["greedy"], users)
    engine = ProcessEngine(model, Children(3))
    for cohort in (range(23), [4, 11], [], [22, 7, 3]):
        found = engine.sum(many, job_of(model), cohort)
        assert bits(found) == bits(serial(model, many, job_of(model), cohort))
    engine.close()
    engine.close()
