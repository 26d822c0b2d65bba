"""Runs with canaries: planted in what is trained on, recorded, marked, and resumable."""

import json

import numpy as np
import pytest

from tacit.federated.cohort import CachedUsers
from tacit.mechanisms.turns import turn_of
from tacit.models.base import to_vector
from tacit.privacy.randomness import RunKey
from tacit.runs.run import Run
from tacit.runs.start import create
from tacit.tasks.language.canaries import read_planted
from tacit.tasks.language.canary_clients import CanaryClients, coins_of
from tacit.tasks.language.people import People
from tacit.train import train
from tests.runs.small import experiment, files_of

GRID = {"sharers": [2.0], "example_probs": [1.0], "per_cell": 3, "max_share": 0.9, "words": 3}


def planted_experiment(folder, **changes):
    return experiment(folder).changed(audit={"canaries": GRID}, **changes)


def test_what_is_recorded_is_what_is_trained_on(folder, tmp_path):
    wanted = planted_experiment(folder, rounds=1)
    session = create(wanted, tmp_path / "run")
    try:
        planted = read_planted(tmp_path / "run")
        users = session.trainer.phase(0).users
        assert isinstance(users, CachedUsers)
        everything = [users.tokens(user).tolist() for user in range(len(users))]
    finally:
        session.close()
    assert len(planted) == 3
    assert sum(one.copies for one in planted) > 0
    for one in planted:
        wanted_tokens = list(one.canary.tokens)
        copies = [
            sum(
                tokens[i : i + len(wanted_tokens)] == wanted_tokens
                for i in range(len(tokens) - len(wanted_tokens) + 1)
            )
            for tokens in everything
        ]
        assert one.copies == sum(copies)
        assert one.sharers == np.count_nonzero(copies)


def test_the_claim_says_that_it_is_an_audit(folder, tmp_path):
    run = train(planted_experiment(folder, rounds=1), tmp_path / "run")
    assert run.guarantee().claim.startswith("Audit run, with canaries")
    assert run.experiment.audit.canaries.per_cell == 3  # and the experiment is kept whole


def test_a_branch_is_an_audit_run_too_and_neither_is_for_release(folder, tmp_path):
    wanted = planted_experiment(folder, rounds=1, seed=None)
    train(wanted, tmp_path / "run")
    plain = experiment(folder).changed(seed=None, rounds=2)
    branch = train(plain, tmp_path / "branch", branch_from=(tmp_path / "run", 1))
    for run in (Run.open(tmp_path / "run"), branch):
        assert run.guarantee().claim.startswith("Audit run")
        assert "how often each canary was planted" in run.guarantee().claim
        assert "audit run" in Run.open(run.path).guarantee().why_not_for_release


def test_nothing_is_rewritten(folder, tmp_path):
    wanted = planted_experiment(folder)
    people = People.of(wanted)
    before = [people.users.texts(user) for user in range(len(people.users))]
    train(wanted.changed(rounds=1), tmp_path / "run")
    assert before == [people.users.texts(user) for user in range(len(people.users))]


def test_a_resumed_audit_ends_with_the_same_bits(folder, tmp_path):
    wanted = planted_experiment(folder, rounds=3)
    train(wanted, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.leg == 2 and not progress.done:
            raise Stop

    with pytest.raises(Stop):
        train(wanted, tmp_path / "cut", observer=stop)
    train(None, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")
    both = [
        json.loads((tmp_path / name / "canaries.json").read_text()) for name in ("whole", "cut")
    ]
    assert both[0] == both[1]


def test_a_run_without_canaries_says_so(finished):
    run, _ = finished
    with pytest.raises(ValueError, match="was trained without canaries"):
        read_planted(run.path)


def test_too_many_sharers_are_refused(folder, tmp_path):
    wanted = experiment(folder).changed(audit={"canaries": GRID | {"sharers": [1e6]}})
    with pytest.raises(ValueError, match="sharers must be at most the population"):
        train(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


CLIENTS = {"canary_clients": 30}


def test_canary_clients_leave_their_trace_and_nobody_else_does(folder, tmp_path):
    """Little noise, and people who hardly learn: the sum of the canary clients can be seen."""
    wanted = experiment(folder).changed(
        audit=CLIENTS,
        rounds=2,
        plan={"noise_multiplier": 0.05, "cohort": 70.0, "population": 80},
        server={"optimizer": "sgd"},
        update={"learning_rate": 1e-4},
    )
    run = train(wanted, tmp_path / "run")
    assert run.guarantee().claim.startswith("Audit run")
    first, last = (to_vector(run.model(round)) for round in (0, 2))
    coins = coins_of(RunKey.from_seed(run.experiment.seed))
    clients = CanaryClients.of(run.experiment, run.model(), coins)
    assert 5 < clients.included.sum() < 25
    found = clients.cosines(last - first)
    inside, outside = found[clients.included], found[~clients.included]
    spread = 1 / np.sqrt(clients.degrees)
    assert inside.mean() > outside.mean() + 2 * spread
    assert abs(outside.mean()) < 5 * spread / np.sqrt(len(outside))


TURNS = {"sampling": "min-separation", "separation": 2, "noise": "blt", "buffers": 2}


def test_canary_clients_take_turns_as_users_do(folder, tmp_path):
    """Their groups follow from a hash of their names."""
    session = create(experiment(folder).changed(audit=CLIENTS, plan=TURNS), tmp_path / "run")
    try:
        trainer = session.trainer
        users = trainer.phase(0).users
        groups = trainer._turns_of(trainer.phase(0)).groups
    finally:
        session.close()
    people, everybody = len(People.of(session.experiment).users), range(len(users))
    assert [[turn_of(users.key(user), 2) == group for user in everybody] for group in (0, 1)] == [
        [user in members for user in everybody] for members in groups
    ]
    assert all((members >= people).any() for members in groups)


def test_canary_clients_leave_their_trace_in_correlated_noise(folder, tmp_path):
    """As above, in turns: everybody has one in two rounds."""
    wanted = experiment(folder).changed(
        audit=CLIENTS,
        rounds=2,
        plan=TURNS | {"noise_multiplier": 0.05, "cohort": 39.0, "population": 80},
        server={"optimizer": "sgd"},
        update={"learning_rate": 1e-4},
    )
    run = train(wanted, tmp_path / "run")
    assert "no sampling assumed" in run.guarantee().claim
    first, last = (to_vector(run.model(round)) for round in (0, 2))
    coins = coins_of(RunKey.from_seed(run.experiment.seed))
    clients = CanaryClients.of(run.experiment, run.model(), coins)
    found = clients.cosines(last - first)
    inside, outside = found[clients.included], found[~clients.included]
    spread = 1 / np.sqrt(clients.degrees)
    assert inside.mean() > outside.mean() + 2 * spread
    assert abs(outside.mean()) < 5 * spread / np.sqrt(len(outside))


def test_a_canary_client_is_clipped_like_everybody(folder, tmp_path):
    session = create(experiment(folder).changed(audit=CLIENTS, rounds=1), tmp_path / "run")
    try:
        users = session.trainer.phase(0).users
        last = len(users) - 1
        trainer = session.trainer
        summed = trainer.engine.sum(trainer.phase(0), trainer.job(0, 0), [last])
        norm = np.linalg.norm(
            summed.total.update * trainer.phase(0).plan.grid(trainer.clip_state).step
        )
    finally:
        session.close()
    clip = session.experiment.plan.clip_norm
    assert clip * (1 - 1e-3) < norm <= clip


def test_the_population_counts_canary_clients_however_their_coins_fall(folder, tmp_path):
    wanted = experiment(folder).changed(audit=CLIENTS, rounds=1)
    people = len(People.of(wanted).users)
    session = create(wanted, tmp_path / "run")
    session.close()
    assert session.experiment.plan.population == people + 30
    assert people < len(session.trainer.phase(0).users) < people + 30


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": {"sampling": "fixed"}},
        {
            "plan": {
                "clipping": "none",
                "clip_norm": None,
                "noise_multiplier": 0.0,
                "estimator": "true-average",
            }
        },
    ],
    ids=["fixed-size sampling", "no clip"],
)
def test_canary_clients_need_chances_of_their_own_and_a_clip(folder, tmp_path, changes):
    wanted = experiment(folder).changed(audit=CLIENTS, **changes)
    with pytest.raises(ValueError, match=r"audit\.canary_clients needs"):
        train(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_give_the_same_bits_with_canary_clients(folder, tmp_path):
    wanted = experiment(folder).changed(audit=CLIENTS, rounds=2)
    train(wanted, tmp_path / "one")
    train(wanted, tmp_path / "two", workers=2)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


@pytest.mark.slow
def test_two_processes_give_the_same_bits_with_canaries(folder, tmp_path):
    wanted = planted_experiment(folder, rounds=2)
    train(wanted, tmp_path / "one")
    train(wanted, tmp_path / "two", workers=2)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
