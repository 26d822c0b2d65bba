"""Runs with canaries: planted in what is trained on, recorded, marked, and resumable."""

import json

import numpy as np
import pytest

from tacit.federated.cohort import CachedUsers
from tacit.opening import created
from tacit.people import People, read_planted
from tacit.train import train
from tests.train.small import experiment, files_of

GRID = {"sharers": [2.0], "example_probs": [1.0], "per_cell": 3, "max_share": 0.9, "words": 3}


def planted_experiment(folder, **changes):
    return experiment(folder).changed(audit={"canaries": GRID}, **changes)


def test_what_is_recorded_is_what_is_trained_on(folder, tmp_path):
    wanted = planted_experiment(folder, rounds=1)
    session = created(wanted, tmp_path / "run")
    try:
        planted = read_planted(session.directory)
        users = session.task.users
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
    assert run.guarantee().claim.startswith("Audit run, with planted canaries")
    assert run.experiment.audit.canaries.per_cell == 3  # and the experiment is kept whole


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
        if progress.round == 2 and not progress.users:
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
        read_planted(run.directory)


def test_too_many_sharers_are_refused(folder, tmp_path):
    wanted = experiment(folder).changed(audit={"canaries": GRID | {"sharers": [1e6]}})
    with pytest.raises(ValueError, match="sharers must be at most"):
        train(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()
