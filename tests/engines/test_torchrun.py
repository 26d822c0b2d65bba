"""The same command on every rank: rank 0 trains, the others serve, and torchrun may restart all."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.engines.launch import Launch
from tacit.train import train
from tests.runs.small import experiment, files_of

RANKED = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "there"}


def in_environment(monkeypatch, **values):
    for name in (*RANKED, "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_place_is_what_torchrun_says(monkeypatch):
    in_environment(monkeypatch, **RANKED, TORCHELASTIC_RESTART_COUNT="3")
    assert Launch.of_this_process() == Launch(rank=1, size=4, on_this_machine=2, restarts=3)


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_environment_of_another_launcher_is_left_alone(monkeypatch, missing):
    in_environment(monkeypatch, **{k: v for k, v in RANKED.items() if k != missing})
    assert Launch.of_this_process() == Launch(rank=0, size=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "4"}, "RANK must be from 0 to WORLD_SIZE - 1 = 3, got 4"),
        ({"RANK": "-1"}, "got -1"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE.* must be whole numbers: .*'many'"),
    ],
    ids=["too large", "negative", "no number"],
)
def test_place_that_cannot_be_is_refused(monkeypatch, changed, message):
    in_environment(monkeypatch, **(RANKED | changed))
    with pytest.raises(ValueError, match=message):
        Launch.of_this_process()


def test_several_machines_need_a_network_that_is_declared_safe(monkeypatch):
    in_environment(monkeypatch, **RANKED)
    monkeypatch.delenv("TACIT_TRUST_NETWORK", raising=False)
    with pytest.raises(ValueError, match="in clear; set TACIT_TRUST_NETWORK=1"):
        Launch.of_this_process().refuse_open_network()
    monkeypatch.setenv("TACIT_TRUST_NETWORK", "1")
    Launch.of_this_process().refuse_open_network()
    monkeypatch.delenv("TACIT_TRUST_NETWORK")
    in_environment(monkeypatch, **RANKED | {"LOCAL_WORLD_SIZE": "4"})
    Launch.of_this_process().refuse_open_network()
    Launch().refuse_open_network()


def learned(run: Path) -> dict[str, bytes]:
    """All but the experiment, which names the file it came from."""
    return {name: data for name, data in files_of(run).items() if name != "experiment.toml"}


def torchrun(folder: Path, run: Path, wanted, *options: str) -> list[str]:
    recipe = folder / f"{run.name}.toml"
    recipe.write_text(wanted.to_toml())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", *options]
    # Without the two dashes torchrun takes our --run for an abbreviation of its --run-path.
    command += ["-m", "--", "tacit.cli.main", "train"]
    return [*command, str(recipe), "--run", str(run), "--quiet"]


@pytest.mark.slow
def test_two_ranks_under_torchrun_give_the_bits_of_one_process(folder, tmp_path):
    wanted = experiment(folder)
    alone = train(wanted, tmp_path / "alone")
    command = torchrun(tmp_path, tmp_path / "ranks", wanted)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert learned(tmp_path / "ranks") == learned(alone.path)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_is_killed_is_started_again_and_the_run_ends_with_the_same_bits(
    folder, tmp_path, rank
):
    wanted = experiment(folder, rounds=60, evaluation={"every": 30})
    alone = train(wanted, tmp_path / "alone")
    run = tmp_path / "ranks"
    command = torchrun(tmp_path, run, wanted, "--max-restarts", "2")
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while rounds_of(run) < 5 and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(process_of_rank(launcher.pid, rank), signal.SIGKILL)
        assert rounds_of(run) < 60
        code = launcher.wait(timeout=120)
    finally:
        launcher.kill()
    assert code == 0, (tmp_path / "log").read_text()
    assert learned(run) == learned(alone.path)


def rounds_of(run: Path) -> int:
    try:
        return (run / "ledger.jsonl").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return 0


def process_of_rank(launcher: int, rank: int) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            variables = (folder / "environ").read_bytes().split(b"\0")
            if int(parent) == launcher and f"RANK={rank}".encode() in variables:
                return int(folder.name)
    raise AssertionError(f"there is no rank {rank}")
