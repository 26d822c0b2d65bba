"""What every run keeps, of whichever task: one suite over language models and intent models.

A task that is added gets a line in `TASKS` and has to pass all of this.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.main import main
from tacit.privacy.ledger import Ledger
from tacit.runs import checkpoints
from tacit.runs.bundle import open_release
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.runs.session import Proofs, Session
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tasks.nlu.trainer import NluTrainer
from tacit.train import train
from tests.runs.small import TRAINED, files_of, make_folder
from tests.runs.small import experiment as language_experiment
from tests.runs.test_resume import Died, dies
from tests.tasks.nlu.small import small as nlu_experiment


@dataclass(frozen=True)
class TaskCase:
    """A small experiment of a task, and how to change it."""

    experiment: Callable[..., Any]  # of the folder that `make` filled, and changes by section
    trainer: type
    longer: dict[str, Any]  # so that a branch has something left to do
    other: dict[str, Any]  # a change that no resumed run may have
    budgeted: Callable[[float], dict[str, Any]]


def language_case(**plan: Any) -> TaskCase:
    """A language model with settings of its plan that are not the usual ones."""

    def experiment(folder: Path, **changes: Any) -> Any:
        return language_experiment(folder, plan=plan).changed(**changes)

    return TaskCase(
        experiment,
        LanguageTrainer,
        longer={"rounds": 8},
        other={"plan": {"clip_norm": 0.7}},
        budgeted=lambda epsilon: {"privacy": {"budget_epsilon": epsilon}},
    )


TURNS = {"sampling": "min-separation", "separation": 3}

TASKS = {
    "language": language_case(),
    "language, in turns": language_case(**TURNS),
    "language, buffered noise": language_case(**TURNS, noise="blt", buffers=2),
    "language, banded noise": language_case(
        sampling="cyclic-poisson", separation=3, noise="banded"
    ),
    "language, distributed noise": language_case(**TURNS, noise="distributed", cohort=TRAINED / 3),
    "nlu": TaskCase(
        lambda folder, **changes: nlu_experiment(**changes),
        NluTrainer,
        longer={"training": {"epochs": 4}},
        other={"noise": {"clip_norm": 0.7}},
        budgeted=lambda epsilon: {"privacy": {"budget_epsilon": epsilon}},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="module", params=TASKS)
def case(request):
    return TASKS[request.param]


@pytest.fixture(scope="module")
def finished(case, folder, tmp_path_factory):
    """The run that nothing happened to."""
    return train(case.experiment(folder), tmp_path_factory.mktemp("finished") / "run")


def test_a_run_is_a_directory_of_the_same_files(finished):
    public = {path.name for path in finished.path.iterdir()}
    common = {"experiment.toml", "ledger.jsonl", "metrics.jsonl", "checkpoints", "result.json"}
    assert common | {"private"} <= public
    assert not finished.directory.key_file.exists()
    assert (finished.path / "private").stat().st_mode & 0o777 == 0o700
    result = finished.directory.result()
    assert result["task"] == finished.experiment.task
    assert result["claim"] == finished.guarantee().claim
    assert result[f"{finished.experiment.leg_name}s"] == finished.leg == finished.experiment.legs
    assert type(Run.open(finished.path)) is type(finished)


def test_a_leg_is_in_the_ledger_and_has_a_proof(finished):
    charged = [entry for entry in finished.ledger.entries if entry.kind == "round"]
    assert len(charged) >= finished.leg
    rows = [json.loads(line) for line in (finished.path / "private" / "releases.jsonl").open()]
    assert {row["leg"] for row in rows} == set(range(finished.leg))


# (owner, method, which call, before or after it): wherever a process may die.
POINTS: dict[str, tuple[Any, str, int, bool]] = {
    "before a proof": (Proofs, "record", 2, False),
    "between proof and ledger": (Proofs, "record", 2, True),
    "between ledger and noise": (Ledger, "charge", 3, True),
    "before the noise": (None, "run", 2, False),
    "after the step": (None, "run", 2, True),
    "before a checkpoint": (Checkpoints, "write", 3, False),
    "between a checkpoint's two files": (checkpoints.numpy, "save", 2, False),
    "after a checkpoint": (Checkpoints, "write", 3, True),
    "before old checkpoints go": (Checkpoints, "prune", 2, False),
    "before it is evaluated": (Session, "evaluate_if_due", 3, False),
    "before the result": (RunDirectory, "finish", 1, False),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_at_any_point_ends_with_the_same_bits(
    point, case, folder, finished, tmp_path, monkeypatch
):
    owner, name, call, after = POINTS[point]
    with monkeypatch.context() as patch:
        dies(patch, owner or case.trainer, name, call=call, after=after)
        with pytest.raises(Died):
            train(case.experiment(folder), tmp_path / "run")
    resumed = train(None, tmp_path / "run", resume=True)
    assert files_of(resumed.path) == files_of(finished.path)
    assert resumed.ledger.composition() == finished.ledger.composition()


@pytest.fixture
def interrupted(case, folder, tmp_path, monkeypatch):
    """A run that died after its first leg was charged a second time around."""
    with monkeypatch.context() as patch:
        dies(patch, Checkpoints, "write", call=3, after=False)
        with pytest.raises(Died):
            train(case.experiment(folder), tmp_path / "run")
    return tmp_path / "run"


def test_a_run_goes_on_with_its_own_experiment_alone(case, folder, interrupted, finished):
    with pytest.raises(ValueError, match=r"holds another experiment: .*clip_norm"):
        train(case.experiment(folder, **case.other), interrupted, resume=True)
    resumed = train(case.experiment(folder), interrupted, resume=True)
    assert files_of(resumed.path) == files_of(finished.path)


def test_a_leg_whose_proof_is_lost_is_charged_again(interrupted, finished):
    (interrupted / "private" / "releases.jsonl").unlink()
    resumed = train(None, interrupted, resume=True)
    attempts = [entry.attempt for entry in resumed.ledger.entries if entry.kind == "round"]
    assert max(attempts) == 1
    assert len(resumed.ledger.entries) > len(finished.ledger.entries)
    assert resumed.is_complete


def test_a_ledger_that_lost_lines_is_refused(interrupted):
    file = interrupted / "ledger.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:1]))
    with pytest.raises(ValueError, match=r"ledger\.jsonl"):
        train(None, interrupted, resume=True)


def test_an_edited_experiment_is_refused(interrupted):
    file = interrupted / "experiment.toml"
    file.write_text(file.read_text().replace("clip_norm = ", "clip_norm = 1"))
    with pytest.raises(ValueError, match="was changed since the run began"):
        train(None, interrupted, resume=True)


def test_a_finished_run_is_not_begun_again(case, folder, finished):
    before = files_of(finished.path)
    with pytest.raises(ValueError, match="is complete after"):
        train(None, finished.path, resume=True)
    with pytest.raises(ValueError, match="holds a run already"):
        train(case.experiment(folder), finished.path)
    assert files_of(finished.path) == before


def test_a_branch_pays_for_its_parent_and_shares_no_noise(case, folder, finished, tmp_path):
    longer = case.experiment(folder, **case.longer, seed=9)
    branch = train(longer, tmp_path / "branch", branch_from=(finished.path, 2))
    parent, header = finished.ledger, branch.ledger.header
    assert header.parent.run_id == parent.header.run_id
    assert branch.first_leg == 2
    assert branch.leg == longer.legs > finished.leg
    inherited = header.parent.head.entries
    own, old = branch.ledger.entries, parent.entries
    assert [entry.event for entry in own[:inherited]] == [e.event for e in old[:inherited]]
    ours, before = (RunDirectory(run.path).checkpoints for run in (branch, finished))
    assert ours.model_file(2).read_bytes() == before.model_file(2).read_bytes()
    assert ours.read(branch.leg).head != before.read().head
    assert open_release(branch.path).guarantee().claim == branch.guarantee().claim


def test_a_branch_that_dies_goes_on(case, folder, finished, tmp_path, monkeypatch):
    longer = case.experiment(folder, **case.longer)
    whole = train(longer, tmp_path / "whole", branch_from=(finished.path, 2))
    with monkeypatch.context() as patch:
        dies(patch, Checkpoints, "write", call=2, after=False)
        with pytest.raises(Died):
            train(longer, tmp_path / "run", branch_from=(finished.path, 2))
    resumed = train(None, tmp_path / "run", resume=True)
    assert files_of(resumed.path) == files_of(whole.path)


def test_a_branch_needs_legs_that_are_left(case, folder, finished, tmp_path):
    with pytest.raises(ValueError, match=f"{finished.experiment.leg_name}s must be more"):
        train(None, tmp_path / "branch", branch_from=(finished.path, finished.leg))
    assert not (tmp_path / "branch").exists()


def test_a_budget_is_a_hard_stop(case, folder, finished, tmp_path):
    whole = min(finished.guarantee().epsilon.values())
    wanted = case.experiment(folder, **case.budgeted(0.8 * whole))
    run = train(wanted, tmp_path / "run")
    assert 0 < run.leg < finished.leg
    assert "budget" in run.directory.result()["ending"]
    with pytest.raises(ValueError, match="is complete after"):
        train(None, run.path, resume=True)


def run_command(*words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 0


@pytest.mark.parametrize(
    "command",
    ["ledger RUN", "verify RUN", "report RUN", "compare RUN RUN2", "export RUN --out BUNDLE"],
)
def test_every_command_on_runs_takes_it(command, case, folder, finished, tmp_path, capsys):
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", str(finished.path), str(run)], check=True)
    names = {"RUN": run, "RUN2": finished.path, "BUNDLE": tmp_path / "bundle"}
    words = [str(names.get(word, word)) for word in command.split()]
    if words[0] == "export":
        words.append("--not-for-release")
    run_command(*words, "--json")
    shown = json.loads(capsys.readouterr().out)
    if words[0] == "export":
        run_command("verify", str(tmp_path / "bundle"))
        bundle = open_release(tmp_path / "bundle")
        assert bundle.guarantee().claim == finished.guarantee().claim == shown["claim"]
        run_command("predict", str(tmp_path / "bundle"), "see you", "--json")


@pytest.mark.slow
def test_torchrun_gives_the_bits_of_our_own_workers(case, folder, tmp_path):
    """A language model has one result for any number; an intent model splits its noise by two."""
    two = {"training": {"workers": 2}} if case is TASKS["nlu"] else {}
    if case in list(TASKS.values())[1:-1]:
        pytest.skip("how noise is correlated is nothing to the workers")
    wanted = case.experiment(folder, **two)
    own = train(wanted, tmp_path / "own", workers=2)
    recipe = tmp_path / "wanted.toml"
    recipe.write_text(wanted.to_toml())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", "-m", "--", "tacit.cli.main", "train", str(recipe)]
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "ranks"), "--quiet"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    ranks, ours = files_of(Path(tmp_path / "ranks")), files_of(own.path)
    ranks.pop("experiment.toml"), ours.pop("experiment.toml")  # names the recipe
    assert ranks == ours
