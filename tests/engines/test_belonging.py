"""Processes that were not handed the secret of a training are told nothing."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from tacit.engines import teams
from tacit.engines.belonging import prove
from tacit.engines.ranks import WorkerLost
from tacit.engines.teams import Children


def proved(secrets):
    """What becomes of each of so many threads that meet, each with its secret."""
    store, size = dist.HashStore(), len(secrets)

    def meet(rank):
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))
        try:
            return prove(group, rank, size, secrets[rank])
        except PermissionError as error:
            return str(error)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(meet, range(size)))


@pytest.mark.parametrize("size", [2, 4])
def test_those_with_one_secret_belong_together(size):
    assert proved([b"x" * 32] * size) == [None] * size


def test_one_with_another_secret_is_named_by_all_others():
    said = proved([b"x" * 32, b"x" * 32, b"y" * 32])
    assert [words is not None and "process 2 of 3" in words for words in said[:2]] == [True, True]
    assert "process 0 of 3" in said[2]


def test_an_answer_is_of_no_use_to_a_third(monkeypatch):
    """Not even if the challenges are the same: whoever has none cannot hand on another's."""
    answers = []
    monkeypatch.setattr("tacit.engines.belonging.secrets.token_bytes", lambda size: b"c" * size)
    digest = "tacit.engines.belonging.hmac.digest"
    monkeypatch.setattr(digest, lambda key, data, how: answers.append(data) or b"a" * 32)
    assert proved([b"x" * 32] * 3) == [None] * 3
    assert len(set(answers)) == 6


@pytest.mark.slow
def test_a_worker_that_was_handed_another_secret_is_told_nothing(monkeypatch):
    start = Children._start

    def other(self, rank, size):
        mine, self._secret = self._secret, b"another secret of just this size"
        try:
            return start(self, rank, size)
        finally:
            self._secret = mine

    monkeypatch.setattr(Children, "_start", other)
    children = Children(2)
    try:
        with pytest.raises(WorkerLost, match=r"process 1 of 2 is not the one that was started"):
            children.ranks()
    finally:
        children.end()


def test_the_secret_is_in_no_command_line_and_no_environment(monkeypatch):
    started = []
    popen = subprocess.Popen

    def watched(words, **how):
        started.append((words, how.get("env", {})))
        return popen([sys.executable, "-c", "pass"], **how)

    monkeypatch.setattr(teams.subprocess, "Popen", watched)
    children = Children(2)
    children.end()
    [(words, environment)] = started
    for said in (children._secret.hex(), str(children._secret)):
        assert not any(said in word for word in (*words, *environment.values()))
