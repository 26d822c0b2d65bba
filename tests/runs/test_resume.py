"""A run that dies anywhere goes on as if it had not, and never draws the same noise twice."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tacit.corpus.people_ledger import PeopleLedger
from tacit.engines.engine import SerialEngine
from tacit.kernels.local_sgd import local_sgd_for
from tacit.privacy import durable
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tasks.nlu.utterances import data_of
from tacit.train import train
from tests.runs.small import experiment, files_of, make_corpus, make_folder, texts_of
from tests.tasks.nlu.small import small
from tests.tasks.nlu.writing import json_lines, write


class Died(BaseException):
    """What a killed process would have left undone is left undone."""


def dies(monkeypatch, owner, name, *, call, after):
    """The `call`-th call of a method never returns: it ends before or after doing its work."""
    original, count = getattr(owner, name), [0]

    def wrapper(*args, **kwargs):
        count[0] += 1
        if count[0] != call:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        raise Died

    monkeypatch.setattr(owner, name, wrapper)


def test_a_run_that_dies_while_it_is_made_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        dies(patch, durable, "write_whole", call=1, after=True)
        with pytest.raises(Died):
            train(experiment(folder), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("secret", 3),
        pytest.param("seeded", 5, marks=pytest.mark.slow),
        pytest.param("nlu", 5, marks=pytest.mark.slow),
        *(pytest.param(kind, 50, marks=pytest.mark.slow) for kind in ("seeded", "secret", "nlu")),
    ],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(kind, kills, folder, tmp_path):
    """SIGKILL, at moments that no code has a say in."""
    script = Path(__file__).with_name("killer.py")
    made = data_of(small(data={"source": "generated:utterances=120"}))
    said = [*made.train, *made.valid, *made.test]
    rows = [(" ".join(one.tokens), " ".join(one.tags), one.intent) for one in said]
    write(folder / "spoken.jsonl", json_lines(rows))
    done = subprocess.run(
        [sys.executable, script, kind, folder, tmp_path / "run", str(kills)],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == kills
    assert report["undercounts"] == 0
    assert report["kills_during_rounds"] > 0 or kills < 5
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")
    people = [*(tmp_path / "run-state").glob("people/*/ledger.jsonl")]
    if kind == "seeded":
        return
    [known] = PeopleLedger(people[0].parent).runs().values()
    assert known.hashes == list(Ledger.read(tmp_path / "run" / "ledger.jsonl").hashes)


def interrupted(folder, run, monkeypatch):
    """A run with two rounds done and the third charged, its noise drawn, but not saved."""
    with monkeypatch.context() as patch:
        dies(patch, Checkpoints, "write", call=4, after=False)
        with pytest.raises(Died):
            train(experiment(folder), run)
    assert Checkpoints(run / "checkpoints").legs()[-1] == 2
    return rounds_charged(run)


def rounds_charged(run):
    entries = Ledger.read(run / "ledger.jsonl").entries
    return [(entry.round, entry.attempt) for entry in entries if entry.kind == "round"]


def test_resuming_with_changed_text_is_refused_and_branching_is_not(tmp_path, monkeypatch):
    own = make_folder(tmp_path / "own")
    assert interrupted(own, own / "run", monkeypatch) == [(0, 0), (1, 0), (2, 0)]
    shutil.rmtree(own / "corpus")
    make_corpus(own / "corpus", {n: ["the dog sleeps", *texts_of(n)] for n in range(60)})
    before = files_of(own / "run")
    with pytest.raises(ValueError, match=r"is not as it was when .* branch from the run"):
        train(None, own / "run", resume=True)
    assert files_of(own / "run") == before
    branch = train(None, own / "branch", branch_from=(own / "run", 2))
    assert sum(entry.kind == "round" for entry in branch.ledger.entries) == 6


def test_another_sum_for_a_charged_round_is_charged_again_with_fresh_noise(
    folder, tmp_path, monkeypatch
):
    """As on a machine whose products round differently."""
    assert interrupted(folder, tmp_path / "run", monkeypatch) == [(0, 0), (1, 0), (2, 0)]
    original, noises = SerialEngine.sum, []

    def rounded_differently(self, *given):
        summed = original(self, *given)
        summed.total.update[0] += 1
        return summed

    def recorded(self, proof, purpose, original=LanguageTrainer.noise):
        noises.append(purpose)
        return original(self, proof, purpose)

    monkeypatch.setattr(SerialEngine, "sum", rounded_differently)
    monkeypatch.setattr(LanguageTrainer, "noise", recorded)
    train(
        None, tmp_path / "run", resume=True, engine=lambda model: SerialEngine(local_sgd_for(model))
    )
    assert rounds_charged(tmp_path / "run")[:4] == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert len(rounds_charged(tmp_path / "run")) == 7
    assert noises.count("update-noise") == 4  # one for each release since


def test_resuming_with_the_same_text_is_not_charged_again(folder, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    train(None, tmp_path / "run", resume=True)
    assert rounds_charged(tmp_path / "run") == [(n, 0) for n in range(6)]


@pytest.mark.parametrize("lost", ["HMACs", "a changed HMAC"])
def test_a_charge_whose_hmac_is_not_there_needs_a_new_attempt(lost, folder, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    proofs = tmp_path / "run" / "private" / "releases.jsonl"
    if lost == "HMACs":
        proofs.unlink()
    else:
        rows = [json.loads(line) for line in proofs.read_text().splitlines()]
        rows[-1]["hmac"] = "0" * 64
        proofs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(None, tmp_path / "run", resume=True)
    assert (2, 1) in rounds_charged(tmp_path / "run")


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ({"plan": {"clip_norm": 0.4}}, None, "plan.clip_norm is 0.3 there and 0.4 here"),
        ({"plan": {"noise_multiplier": 1.1}}, None, "plan.noise_multiplier is 1.0 there and 1.1"),
        ({"update": {"learning_rate": 0.6}}, None, "update.learning_rate is 0.5 there and 0.6"),
        ({"rounds": 7}, None, "rounds is 6 there and 7 here"),
        ({"seed": 6}, None, "seed is 5 there and 6 here"),
    ],
    ids=["clip", "noise", "rate", "rounds", "seed"],
)
def test_resuming_with_another_value_is_refused(
    section, value, message, folder, tmp_path, monkeypatch
):
    interrupted(folder, tmp_path / "run", monkeypatch)
    before = files_of(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        train(experiment(folder, **section), tmp_path / "run", resume=True)
    assert files_of(tmp_path / "run") == before


def test_resuming_with_another_corpus_is_refused(folder, tmp_path, monkeypatch):
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    interrupted(own, own / "run", monkeypatch)
    meta = json.loads((own / "corpus" / "corpus.json").read_text())
    meta["people"] = "11" * 8
    (own / "corpus" / "corpus.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"is not the corpus that .* was started on"):
        train(None, own / "run", resume=True)


def test_resuming_with_another_tokenizer_is_refused(folder, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    other = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    vocabulary = other["model"]["vocab"]
    vocabulary["dog"], vocabulary["cat"] = vocabulary["cat"], vocabulary["dog"]
    (tmp_path / "run" / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="tokenizer"):
        train(None, tmp_path / "run", resume=True)


def test_a_ledger_shorter_than_its_checkpoint_is_refused(folder, tmp_path, monkeypatch):
    interrupted(folder, tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(ValueError, match="ledger ends after 1 entries, and the checkpoint has 3"):
        train(None, tmp_path / "run", resume=True)


@pytest.mark.parametrize("file", ["model-000002.safetensors", "state-000002.safetensors"])
def test_a_truncated_checkpoint_is_refused_and_an_earlier_one_goes_on(
    file, folder, finished, tmp_path, monkeypatch
):
    interrupted(folder, tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "checkpoints" / file
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(
        ValueError, match=r"truncated or damaged.*delete both files of 000002 to go on"
    ):
        train(None, tmp_path / "run", resume=True)
    for damaged in path.parent.glob("*-000002.*"):
        damaged.unlink()
    train(None, tmp_path / "run", resume=True)
    assert rounds_charged(tmp_path / "run") == [(n, 0) for n in range(6)]
    # What was measured in between is told with the charges that were on record by then.
    same = ("ledger.jsonl", "checkpoints/model-000006.safetensors")
    ours = files_of(tmp_path / "run")
    assert {name: ours[name] for name in same} == {name: finished[1][name] for name in same}


def test_a_full_disk_ends_in_a_run_that_resumes(folder, finished, tmp_path, monkeypatch):
    original, calls = durable.write_whole, [0]

    def full(path, data, **options):
        calls[0] += 1
        if calls[0] == 10:
            raise OSError(28, "No space left on device", str(path))
        original(path, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_whole", full)
        with pytest.raises(OSError, match="No space left"):
            train(experiment(folder), tmp_path / "run")
    train(None, tmp_path / "run", resume=True)
    assert files_of(tmp_path / "run") == finished[1]


def test_a_complete_run_is_refused_and_stays_as_it_is(folder, finished):
    run, contents = finished
    with pytest.raises(ValueError, match=r"is complete after 6 rounds.*--from .*@6"):
        train(None, run.path, resume=True)
    with pytest.raises(ValueError, match="holds a run already: add --resume"):
        train(experiment(folder), run.path)
    assert files_of(run.path) == contents


def test_runs_with_a_secret_key_differ(folder, tmp_path):
    one = train(experiment(folder, seed=None), tmp_path / "one")
    two = train(experiment(folder, seed=None), tmp_path / "two")
    weights = [
        np.concatenate([p.detach().ravel() for p in run.model().parameters()]) for run in (one, two)
    ]
    assert not np.array_equal(*weights)
    assert not one.ledger.header.simulation
