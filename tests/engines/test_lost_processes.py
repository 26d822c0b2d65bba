"""A process that dies ends the training with a sentence, and the run goes on later."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tacit.engines.engine import engine_for
from tacit.engines.ranks import WorkerLost
from tacit.train import train
from tests.engines.cohorts import TASK, Troubled, job_of
from tests.runs.small import experiment, files_of


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def killing(made, draw, chance):
    """An observer that kills one of an engine's processes at some moment."""

    def observe(now):
        if made and now.done and draw.random() < chance:
            process = draw.choice(made[-1]._team.processes)
            os.kill(process.pid, signal.SIGKILL)

    return observe


def with_workers(workers, made):
    def make(model):
        made.append(engine_for(model, workers))
        return made[-1]

    return make


def test_run_whose_worker_was_killed_goes_on_with_fewer_and_ends_with_the_same_bits(
    folder, tmp_path
):
    whole = train(experiment(folder), tmp_path / "whole")
    made, killed = [], []

    def observe(now):
        if now.leg == 2 and now.done:
            killed.append(time.monotonic())
            os.kill(made[0]._team.processes[0].pid, signal.SIGKILL)

    with pytest.raises(WorkerLost, match=r"worker process 1 of 1 ended \(SIGKILL.*--resume"):
        train(experiment(folder), tmp_path / "cut", engine=with_workers(2, made), observer=observe)
    assert time.monotonic() - killed[0] < 60  # nobody waited for the dead
    assert gone([child.pid for child in made[0]._team.processes], 0)
    resumed = train(None, tmp_path / "cut", resume=True)
    assert files_of(resumed.path) == files_of(whole.path)
    assert resumed.guarantee().rounds == 6  # nothing charged twice


@pytest.mark.slow
def test_ledger_and_models_are_the_same_for_one_two_and_three_processes_killed_at_random(
    folder, tmp_path
):
    whole = files_of(train(experiment(folder), tmp_path / "whole").path)
    draw, kills = random.Random(8), 0
    for workers in (2, 3):
        path, made = tmp_path / f"by {workers}", []
        while True:
            try:
                train(
                    experiment(folder),
                    path,
                    resume=path.exists(),
                    engine=with_workers(workers, made),
                    observer=killing(made, draw, 0.04),
                )
                break
            except WorkerLost:
                kills += 1
        assert files_of(path) == whole
    assert kills >= 2


@pytest.mark.slow
def test_process_that_dies_inside_of_its_part_is_noticed_at_the_sum(model):
    """Rank 0 has done its own part by then, and waits."""
    engine = engine_for(model, 3)
    engine.sum(TASK, job_of(model), range(7))
    started = time.monotonic()
    deadly = dataclasses.replace(TASK, users=Troubled(os.getpid(), None))
    with pytest.raises(WorkerLost, match="SIGKILL"):
        engine.sum(deadly, job_of(model), range(8))
    with pytest.raises(WorkerLost, match="cut short"):
        engine.sum(TASK, job_of(model), range(7))
    engine.close()
    assert time.monotonic() - started < 10


SLEEPY = """
import os, sys, time, torch
torch.set_num_threads(1)
from tests.engines.test_lost_processes import *
from tests.federated.tiny import small
model = small()
engine = engine_for(model, 3)
engine.sum(TASK, job_of(model), range(7))
print(*(child.pid for child in engine._team.processes), flush=True)
try:
    while True:
        engine.sum(TASK, job_of(model), list(range(7)) * 200)
except KeyboardInterrupt:
    engine.close()
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT to all"])
def test_workers_end_with_the_process_that_started_them(how):
    main = subprocess.Popen(
        [sys.executable, "-c", SLEEPY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    time.sleep(0.7)
    if how == "SIGINT to all":  # what Ctrl-C in a terminal does
        os.killpg(main.pid, signal.SIGINT)
    else:
        os.kill(main.pid, getattr(signal, how))
    _, errors = main.communicate(timeout=15)
    assert gone(pids)
    if how == "SIGINT to all":
        assert main.returncode == 130
        assert errors == ""
