"""Runs of intent and slot models: what they leave behind, what they cost, and dying in between."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.cli.requests import with_one_noise
from tacit.engines.ranks import Ranks
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import RunKey
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.session import Session
from tacit.tasks.nlu import scaling
from tacit.tasks.nlu.experiment import Training
from tacit.tasks.nlu.gradients import UtteranceGradients
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.plan import releases, resolved
from tacit.tasks.nlu.steps import _learning_rate_at, _NoiseChain
from tacit.tasks.nlu.trainer import NluTrainer
from tacit.tasks.nlu.utterances import Utterances, data_of
from tacit.train import train
from tacit_papers.dupuy2021.printed import figures_of_run
from tacit_papers.dupuy2021.timing import job_for
from tests.tasks.nlu.small import of_method, small

METHODS = ("sgd", "dp-sgd", "edp-sgd", "edp-sgd-paper")


class Died(Exception):
    pass


def weights_of(run):
    return {name: value.clone() for name, value in run.stored().model.state_dict().items()}


def same_files(one: Path, other: Path) -> None:
    """Everything that is public is the same, bit for bit."""
    for name in ("ledger.jsonl", "metrics.jsonl", "scaling.json", "experiment.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    last = RunDirectory(one).checkpoints.legs()[-1]
    assert last == RunDirectory(other).checkpoints.legs()[-1]
    for path in RunDirectory(one).checkpoints.folder.glob(f"*-{last:06d}.safetensors"):
        assert path.read_bytes() == (other / "checkpoints" / path.name).read_bytes(), path.name


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A file of utterances with their users: of people, as far as tacit can tell."""
    file = tmp_path_factory.mktemp("said") / "said.jsonl"
    made = data_of(small(data={"source": "generated:utterances=300,users=60"}))
    rows = [
        {
            "tokens": list(said.tokens),
            "tags": list(said.tags),
            "intent": said.intent,
            "user": said.user,
        }
        for said in (*made.train, *made.valid, *made.test)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": str(file)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of each method."""
    folder = tmp_path_factory.mktemp("nlu")
    return {method: train(of_method(method), folder / method) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_a_model_its_metrics_and_no_key(finished, method):
    run = finished[method]
    assert run.is_complete
    assert run.leg == 3
    assert [row["epoch"] for row in run.metrics()] == [0, 1, 2, 3]
    assert not run.directory.key_file.exists()
    result = run.directory.result()
    assert 0 <= result["test"]["intent_accuracy"] <= 1
    assert result["test"]["utterances"] == len(run.data().test)
    assert run.directory.private.stat().st_mode & 0o777 == 0o700
    json.dumps(result, allow_nan=False)


def test_the_ledger_has_what_the_plan_says_for_private_methods(finished):
    for method in ("dp-sgd", "edp-sgd"):
        run = finished[method]
        events = [entry.event for entry in run.ledger.entries]
        assert all(isinstance(event, PoissonGaussian) for event in events)
        assert run.ledger.composition() == releases(run.experiment)
        epsilon = run.guarantee().epsilon["pld"]
        assert epsilon == accountant_named("pld").epsilon(releases(run.experiment), 1e-3)


def test_a_claim_about_what_people_said_names_its_unit(tmp_path, spoken):
    run = train(of_method("dp-sgd", data=spoken, training={"epochs": 1}), tmp_path / "run")
    assert "Record-level" in run.guarantee().claim


def test_decaying_noise_is_charged_step_by_step(finished):
    multipliers = [entry.event.noise_multiplier for entry in finished["edp-sgd"].ledger.entries]
    assert multipliers == sorted(multipliers, reverse=True)
    assert multipliers[0] == pytest.approx(0.5)  # z / 2
    q = finished["edp-sgd"].ledger.entries[0].event.sampling_prob
    last = len(multipliers) - 1
    assert multipliers[-1] == pytest.approx(0.5 / (1 + 0.5 * q * last))


def test_sgd_and_the_printed_algorithm_claim_nothing(finished):
    for method in ("sgd", "edp-sgd-paper"):
        guarantee = finished[method].guarantee()
        assert guarantee.as_row()["epsilon"]["pld"] is None
        assert "No differential privacy" in guarantee.claim
        assert isinstance(finished[method].ledger.entries[0].event, NonPrivate)


def test_the_printed_algorithm_shows_its_three_figures(finished):
    actual, conditional, published = figures_of_run(finished["edp-sgd-paper"])
    assert actual.epsilon == math.inf
    assert conditional.epsilon > published.epsilon > 0
    assert figures_of_run(finished["sgd"]) is None


def test_the_printed_algorithm_with_public_scaling_is_charged_by_epochs(tmp_path, spoken):
    wanted = of_method("edp-sgd-paper", noise={"scaling": "architecture"}, data=spoken)
    run = train(wanted, tmp_path / "run")
    events = [entry.event for entry in run.ledger.entries]
    assert len(events) == 3
    assert all(isinstance(event, Gaussian) for event in events)
    actual, conditional, _ = figures_of_run(run)
    assert actual.epsilon == conditional.epsilon == run.guarantee().epsilon["pld"]
    assert "replace-one" in run.guarantee().claim


def test_a_target_epsilon_is_met_and_nearly_used_up(tmp_path):
    wanted = small(noise={"noise_multiplier": None}, privacy={"target_epsilon": 5.0})
    found = resolved(wanted, Utterances.of(wanted))
    epsilon = accountant_named("pld").epsilon(releases(found), found.privacy.delta)
    assert 4.9 < epsilon <= 5.0


def test_noise_that_is_set_is_never_replaced_by_a_target_without_a_word():
    solved = small(noise={"noise_multiplier": None}, privacy={"target_epsilon": 5.0})
    noise, target = "noise.noise_multiplier=2.0", "privacy.target_epsilon=5.0"
    with pytest.raises(
        ValueError, match=r"privacy\.target_epsilon .* noise\.noise_multiplier sets"
    ):
        with_one_noise(small(), [noise, "seed=1", target])
    # What the caller sets takes the place of what the recipe has.
    loud = with_one_noise(solved.changed(noise={"noise_multiplier": 2.0}), [noise])
    assert (loud.noise.noise_multiplier, loud.privacy.target_epsilon) == (2.0, None)
    assert resolved(loud, Utterances.of(loud)).noise.noise_multiplier == 2.0
    wanted = with_one_noise(small(privacy={"target_epsilon": 5.0}), [target])
    assert (wanted.noise.noise_multiplier, wanted.privacy.target_epsilon) == (None, 5.0)
    assert with_one_noise(solved, ["seed=1"]) == solved


def test_private_scaling_is_in_the_ledger_and_in_the_target(tmp_path):
    wanted = small(noise={"scaling": "private"}, training={"epochs": 1})
    run = train(wanted, tmp_path / "run")
    assert [entry.kind for entry in run.ledger.entries][:2] == ["scaling", "round"]
    assert run.ledger.composition().costly() == releases(run.experiment).costly()
    assert scaling.read(run.path).source == "noisy norms"
    assert scaling.read(run.path).is_public


def test_a_budget_is_a_hard_stop(tmp_path, finished):
    whole = finished["edp-sgd"].guarantee().epsilon["pld"]
    wanted = small(privacy={"budget_epsilon": 0.8 * whole})
    run = train(wanted, tmp_path / "run")
    assert 0 < run.leg < 3
    assert run.guarantee().epsilon["pld"] <= 0.8 * whole
    assert "budget" in run.directory.result()["ending"]


def test_users_are_the_unit_where_the_data_has_them(tmp_path, spoken):
    wanted = small(
        data=spoken,
        training={"unit": "user", "batch_size": 8, "epochs": 1},
        privacy={"delta": 1e-2},
    )
    run = train(wanted, tmp_path / "run")
    users = {utterance.user for utterance in run.data().train}
    assert run.ledger.header.unit == "user"
    assert run.ledger.header.population == len(users)
    assert "User-level" in run.guarantee().claim
    with pytest.raises(ValueError, match="whose utterances"):
        train(small(training={"unit": "user"}), tmp_path / "other")


def test_an_oracles_vocabulary_has_to_be_asked_for_and_voids_the_claim(tmp_path):
    with pytest.raises(ValueError, match="void"):
        train(small(model={"vocabulary": "oracle"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    asked = small(model={"vocabulary": "oracle", "accept_oracle": True}, training={"epochs": 1})
    run = train(asked, tmp_path / "run")
    assert "No differential privacy" in run.guarantee().claim


def test_a_training_begins_with_the_vectors_of_a_file_and_its_claim_says_so(tmp_path, spoken):
    words = data_of(small()).train[0].tokens[:2]
    (tmp_path / "made.vec").write_text(
        "2 4\n" + "".join(f"{word} 9 8 7 {place}\n" for place, word in enumerate(words))
    )
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text(" ".join(words))
    model = {"vocabulary": str(vocabulary), "vectors": str(tmp_path / "made.vec")}
    run = train(small(model=model, data=spoken, training={"epochs": 1}), tmp_path / "run")
    assert "the word vectors made.vec (sha256 " in run.guarantee().claim
    assert str(tmp_path) not in run.guarantee().claim
    first = NluModel.load(run.directory.checkpoints.read(0).model_file)
    rows = {tuple(row) for row in first.model.words.weight.tolist()}
    assert {(9.0, 8.0, 7.0, 0.0), (9.0, 8.0, 7.0, 1.0)} <= rows


def test_a_delta_that_says_little_has_to_be_asked_for(tmp_path, spoken):
    with pytest.raises(ValueError, match="below 1/population"):
        train(small(privacy={"delta": 0.1}, data=spoken), tmp_path / "run")
    large = {"delta": 0.1, "accept_large_delta": True}
    wanted = small(privacy=large, data=spoken, training={"epochs": 1})
    assert "since delta is not below" in train(wanted, tmp_path / "run").guarantee().claim


POINTS = {
    "before the first charge": (Ledger, "charge", 1, False),
    "after a charge": (Ledger, "charge", 2, True),
    "after an epoch's steps": (NluTrainer, "run", 1, True),
    "before a checkpoint": (Checkpoints, "write", 2, False),
    "after a checkpoint": (Checkpoints, "write", 2, True),
    "before it is measured": (Session, "evaluate_if_due", 2, False),
    "before the end is written": (RunDirectory, "finish", 0, False),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_goes_on_and_ends_with_the_same_bits(
    point, finished, tmp_path, monkeypatch
):
    where, name, call, after = POINTS[point]
    calls, original = [0], getattr(where, name)

    def dying(*arguments, **named):
        at = calls[0]
        calls[0] += 1
        if at == call and not after:
            raise Died
        result = original(*arguments, **named)
        if at == call:
            raise Died
        return result

    with monkeypatch.context() as patch:
        patch.setattr(where, name, dying)
        with pytest.raises(Died):
            train(of_method("edp-sgd"), tmp_path / "run")
    assert calls[0] > call
    run = train(None, tmp_path / "run", resume=True)
    assert run.is_complete
    same_files(run.path, finished["edp-sgd"].path)


@pytest.mark.slow
def test_a_worker_more_changes_the_noise_but_no_charge(finished, tmp_path):
    two = train(of_method("edp-sgd", training={"workers": 2}), tmp_path / "two")
    assert two.ledger.composition() == finished["edp-sgd"].ledger.composition()
    again = train(of_method("edp-sgd", training={"workers": 2}), tmp_path / "again")
    same_files(two.path, again.path)


@pytest.mark.slow
def test_two_workers_train_sgd_as_one_does(finished, tmp_path):
    quiet = {"options": {"dropout": 0.0, "word_dropout": 0.0}}
    one = train(of_method("sgd", model=quiet), tmp_path / "one")
    two = train(of_method("sgd", model=quiet, training={"workers": 2}), tmp_path / "two")
    for name, value in weights_of(one).items():
        np.testing.assert_allclose(value, weights_of(two)[name], atol=1e-4, err_msg=name)


def test_a_run_does_not_go_on_with_changed_utterances(tmp_path, monkeypatch):
    rows = [
        {"tokens": ["call", f"n{place}"], "tags": ["O", "B-who"], "intent": f"i{place % 2}"}
        for place in range(80)
    ]
    file = tmp_path / "said.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = small(data={"source": str(file)}, training={"epochs": 2, "batch_size": 8})
    with monkeypatch.context() as patch:
        patch.setattr(Session, "save", _dies)
        with pytest.raises(Died):
            train(wanted, tmp_path / "run")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    rows[0]["tokens"] = ["ring", "n0"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="is not as it was when"):
        train(None, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def _dies(*_):
    raise Died


def test_a_shorter_ledger_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish", lambda *a, **k: _dies(None))
        with pytest.raises(Died):
            train(small(), tmp_path / "run")
    file = tmp_path / "run" / "ledger.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(ValueError, match="the checkpoint has"):
        train(None, tmp_path / "run", resume=True)


def test_a_run_does_not_go_on_with_other_scaling_factors(tmp_path, monkeypatch):
    write = Checkpoints.write
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", lambda *a: write(*a) if a[1] < 2 else _dies())
        with pytest.raises(Died):
            train(small(), tmp_path / "run")
    file = tmp_path / "run" / "scaling.json"
    file.write_text(file.read_text().replace('"factors": [', '"factors": [9'))
    with pytest.raises(ValueError, match=r"scaling\.json was changed"):
        train(None, tmp_path / "run", resume=True)


def test_another_experiment_does_not_go_on_with_a_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Session, "save", _dies)
        with pytest.raises(Died):
            train(small(), tmp_path / "run")
    with pytest.raises(ValueError, match=r"noise\.clip_norm is 1\.0 there and 2\.0 here"):
        train(small(noise={"clip_norm": 2.0}), tmp_path / "run", resume=True)


def test_a_finished_run_is_not_begun_again(finished):
    with pytest.raises(ValueError, match="complete after 3 epochs"):
        train(None, finished["sgd"].path, resume=True)
    with pytest.raises(ValueError, match="holds a run already"):
        train(small(), finished["sgd"].path)


@pytest.mark.slow
def test_a_killed_worker_ends_the_training_with_a_sentence(tmp_path):
    """A process of two, whose child is killed in the middle of an epoch."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from tacit.train import train\n"
        "from tests.tasks.nlu.small import small\n"
        "from tacit.engines.teams import Children\n"
        "children = []\n"
        "original = Children._start\n"
        "def started(self, rank, size):\n"
        "    children.append(original(self, rank, size))\n"
        "    return children[-1]\n"
        "Children._start = started\n"
        "def observe(now):\n"
        "    if now.done == 2:\n"
        "        for child in children:\n"
        "            os.kill(child.pid, signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    wanted = small(training={'workers': 2})\n"
        "    try:\n"
        "        train(wanted, sys.argv[1], observer=observe)\n"
        "    except ConnectionError as error:\n"
        "        print(error)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'src'}", "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "go on with it by --resume" in done.stdout, done.stderr
    run = train(None, tmp_path / "run", resume=True)
    assert run.is_complete


def test_dying_of_a_signal_loses_nothing(tmp_path, finished):
    """SIGKILL in the middle of an epoch of a process."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from tacit.train import train\n"
        "from tests.tasks.nlu.small import of_method\n"
        "def observe(now):\n"
        "    if now.leg == 1 and now.done == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(of_method('edp-sgd'), sys.argv[1], observer=observe)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'src'}", "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    run = train(None, tmp_path / "run", resume=True)
    same_files(run.path, finished["edp-sgd"].path)


def test_what_is_said_of_training_is_not_of_the_users(finished):
    """Nothing of `private/` and no loss, norm or cohort is among the public files."""
    for run in finished.values():
        for row in run.metrics():
            assert not {"loss", "norm", "cohort"} & set(row)
        names = {path.name for path in run.path.iterdir()}
        # Factors from people's gradients are not for others to see.
        factors = set() if run.experiment.noise.scaling == "first-gradient" else {"scaling.json"}
        assert names == factors | {
            "experiment.toml",
            "ledger.jsonl",
            "metrics.jsonl",
            "checkpoints",
            "private",
            "result.json",
        }
        assert (run.path / "private" / "scaling.json").exists() == (not factors)


def test_an_epsilon_that_pld_cannot_compute_is_claimed_by_another_accountant(tmp_path, spoken):
    wanted = small(
        data=spoken,
        training={"epochs": 1},
        noise={"noise_multiplier": 5e-4, "decay": "none", "decay_rate": None},
    )
    guarantee = train(wanted, tmp_path / "run").guarantee()
    assert guarantee.epsilon["pld"] == math.inf
    assert guarantee.accountant == "rdp"
    assert 1e6 < guarantee.epsilon["rdp"] < math.inf
    assert "accounted by rdp" in guarantee.claim


def test_the_rate_rises_then_falls_to_nothing():
    training = Training(learning_rate=2.0, schedule="linear", warmup_steps=3)
    rates = [_learning_rate_at(step, 10, training) for step in range(11)]
    assert rates == pytest.approx([0.5, 0.9, 1.2, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2, 0])
    constant = Training(learning_rate=2.0)
    assert {_learning_rate_at(step, 10, constant) for step in range(10)} == {2.0}


# Noise is keyed by what it hides.


class Watching(Ranks):
    """One worker, of which every noisy sum is seen."""

    def __init__(self):
        super().__init__(None, 0, 1)
        self.sums = []

    def sum_(self, values):
        self.sums.append(values.numpy().astype(np.float64).copy())


def noisy_sums(experiment, *, attempt=0, run_key=None):
    """What an epoch releases, step by step: integers, or floats for DP-SGD."""
    made = job_for(experiment, data_of(experiment))
    job = replace(made, key=run_key or RunKey.from_seed(1))
    ranks = Watching()
    outcome = job.stepper().run(job.steps(0), job.streams(attempt), ranks, None)
    return [each for each in ranks.sums if each.size > 2], outcome


def are_independent(one, other):
    """No correlation that noise alone does not explain: false alarms 1e-6 a test."""
    return abs(stats.pearsonr(one, other).statistic) < 5 / math.sqrt(len(one))


LOUD = {"noise_multiplier": 20.0, "decay": "none", "decay_rate": None}
DROPPED = {"options": {"dropout": 0.0, "word_dropout": 0.0}}


@pytest.mark.parametrize("method", ["dp-sgd", "edp-sgd", "edp-sgd-paper"])
def test_copies_of_a_run_with_another_learning_rate_share_no_noise(method):
    """Before, a step had the same noise in both, and their difference was that of the sums."""
    one, again, other = (
        noisy_sums(of_method(method, noise=LOUD, training={"learning_rate": rate}))
        for rate in (1e-3, 1e-3, 2e-3)
    )
    for mine, same, copied in zip(one[0], again[0], other[0], strict=True):
        np.testing.assert_array_equal(mine, same)
        assert not are_independent(mine, same)
        assert are_independent(mine, copied)
    assert one[1] == again[1] != other[1]


def _perturbed(original):
    """Arithmetic in which every other value comes out a little larger."""

    def mean(self, units):
        found = original(self, units)
        found[::2] *= np.float32(1 + 2**-10)
        return found

    return mean


def test_other_arithmetic_gives_other_noise_from_the_first_step_on(monkeypatch):
    """Another instruction set: sums that differ in their last bits."""
    wanted = of_method("edp-sgd", noise=LOUD, model=DROPPED)
    one, outcome = noisy_sums(wanted)
    monkeypatch.setattr(UtteranceGradients, "mean", _perturbed(UtteranceGradients.mean))
    other, another = noisy_sums(wanted)
    assert all(map(are_independent, one, other))
    assert outcome != another


def test_another_attempt_has_other_noise_even_for_the_same_sums():
    everybody = len(data_of(small()).train)
    wanted = of_method(
        "edp-sgd", noise=LOUD, model=DROPPED, training={"epochs": 1, "batch_size": everybody}
    )
    [one], [other] = (noisy_sums(wanted, attempt=attempt)[0] for attempt in (0, 1))
    assert are_independent(one, other)


def test_two_workers_know_each_others_shares_before_they_draw(tmp_path, monkeypatch):
    """The digest of the other worker's share is in this worker's noise."""
    key = RunKey.from_seed(1)
    chain = _NoiseChain.begin(key, "plan", 0, np.zeros(3, np.float32))
    shares = [key.digest(b"mine"), key.digest(b"yours")]
    linked = [chain.then(0, shares), chain.then(0, shares[::-1]), chain.then(1, shares)]
    linked.append(chain.then(0, [shares[0], key.digest(b"changed")]))
    draws = [link.noise(worker).normal(1 << 14) for link in linked for worker in range(2)]
    assert np.abs(np.corrcoef(draws)[np.triu_indices(8, 1)]).max() < 5.5 / math.sqrt(1 << 14)
    begun = [
        chain,
        _NoiseChain.begin(key, "plans", 0, np.zeros(3, np.float32)),
        _NoiseChain.begin(key, "plan", 1, np.zeros(3, np.float32)),
        _NoiseChain.begin(key, "plan", 0, np.ones(3, np.float32)),
        _NoiseChain.begin(RunKey.from_seed(2), "plan", 0, np.zeros(3, np.float32)),
    ]
    assert len({each.proof for each in begun}) == 5


def _interrupted_before_a_checkpoint(wanted, path, monkeypatch, epoch=0):
    """A run that recorded an epoch's outcome and died before its checkpoint."""
    original = Session.save

    def save(session, attempt):
        if session.leg == epoch + 1:
            raise Died
        original(session, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "save", save)
        with pytest.raises(Died):
            train(wanted, path)


def _attempts(run):
    found = {}
    for entry in run.ledger.entries:
        found.setdefault(entry.round, []).append(entry.attempt)
    return found


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_repeated_with_another_outcome_is_charged_again_and_drawn_afresh(
    workers, tmp_path, monkeypatch
):
    wanted = of_method("edp-sgd", model=DROPPED, training={"epochs": 2, "workers": workers})
    _interrupted_before_a_checkpoint(wanted, tmp_path / "run", monkeypatch)
    with monkeypatch.context() as patch:  # of this worker: one is enough for another sum
        patch.setattr(UtteranceGradients, "mean", _perturbed(UtteranceGradients.mean))
        run = train(None, tmp_path / "run", resume=True)
    attempts = _attempts(run)
    steps = len(attempts) // 2
    assert [attempts[step] for step in range(2 * steps)] == [[0, 1]] * steps + [[0]] * steps
    assert run.is_complete
    # The second attempt began where the first did: as a run whose first attempt is the second.
    rows = [json.loads(line) for line in (run.path / "private/releases.jsonl").open()]
    assert [(row["leg"], row["attempt"]) for row in rows] == [
        (0, 0),  # what it began with,
        (0, 0),  # and what came out of it
        (0, 1),
        (0, 1),
        (1, 0),
        (1, 0),
    ]
    beginnings = {row["hmac"].split()[0] for row in rows if row["leg"] == 0}
    assert len(beginnings) == 1
    outcomes = {row["hmac"].split()[1] for row in rows if " " in row["hmac"]}
    assert len(outcomes) == 3


def test_an_epoch_repeated_with_the_same_outcome_is_not_charged_again(
    finished, tmp_path, monkeypatch
):
    _interrupted_before_a_checkpoint(of_method("edp-sgd"), tmp_path / "run", monkeypatch, epoch=1)
    run = train(None, tmp_path / "run", resume=True)
    same_files(run.path, finished["edp-sgd"].path)
    assert all(attempts == [0] for attempts in _attempts(run).values())


def test_going_back_restores_weights_and_optimizer_bit_for_bit():
    wanted = of_method("edp-sgd")
    job = job_for(wanted, data_of(wanted))
    stepper, ranks, steps = job.stepper(), Ranks(None, 0, 1), len(job.steps(0))
    start = stepper.gradients.flat.weights.detach().clone()
    stepper.run(range(steps), job.streams(0), ranks, None)
    weights, state = stepper.gradients.flat.weights.detach().clone(), stepper.state()
    state = {name: value.copy() for name, value in state.items()}
    second = range(steps, 2 * steps)
    outcome = stepper.run(second, job.streams(0), ranks, None)
    assert not torch.equal(stepper.gradients.flat.weights, weights)
    stepper.go_back()
    assert torch.equal(stepper.gradients.flat.weights, weights)
    for name, value in stepper.state().items():
        np.testing.assert_array_equal(value, state[name])
    assert stepper.run(second, job.streams(0), ranks, None) == outcome
    assert not torch.equal(weights, start)


def test_a_budget_covers_a_second_attempt_too(finished, tmp_path, monkeypatch):
    whole = finished["edp-sgd"].guarantee().epsilon["pld"]
    wanted = of_method("edp-sgd", model=DROPPED, privacy={"budget_epsilon": 1.02 * whole})
    _interrupted_before_a_checkpoint(wanted, tmp_path / "run", monkeypatch, epoch=2)
    monkeypatch.setattr(UtteranceGradients, "mean", _perturbed(UtteranceGradients.mean))
    run = train(None, tmp_path / "run", resume=True)
    assert run.leg == 2  # nothing of the third was released
    assert run.guarantee().epsilon["pld"] <= 1.02 * whole
    assert "budget" in run.directory.result()["ending"]
