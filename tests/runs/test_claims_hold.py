"""A claim is a function of the ledger: what was once possible around it, end to end."""

import json
import shutil

import numpy as np
import pytest

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest
from tacit.corpus.people_costs import PeoplesBudget
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.store import Corpus
from tacit.engines.engine import SerialEngine
from tacit.kernels.local_sgd import local_sgd_for
from tacit.models import weights
from tacit.models.base import to_vector
from tacit.privacy.ledger_lines import LedgerError
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.run import Run
from tacit.runs.session import Session
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.train import train
from tests.runs.small import experiment, make_folder, make_tokenizer, texts_of


class Died(BaseException):
    """A kill at the worst moment."""


def interrupted(wanted, run, monkeypatch, at=4):
    """A run with `at - 2` checkpoints after its first, and one more round that was charged."""
    with monkeypatch.context() as patch:
        original, count = Checkpoints.write, [0]

        def write(self, *given):
            count[0] += 1
            if count[0] == at:
                raise Died
            original(self, *given)

        patch.setattr(Checkpoints, "write", write)
        with pytest.raises(Died):
            train(wanted, run)


def one_more_round(run, monkeypatch, *, nudge=0):
    """The model after one more round of a copy, and the first words of its noise."""
    original, words = SerialEngine.sum, []

    def nudged(self, *given):
        summed = original(self, *given)
        summed.total.update[0] += nudge
        return summed

    def noise(self, proof, purpose, original=LanguageTrainer.noise):
        words.append(original(self, proof, purpose).words(4).tolist())
        return original(self, proof, purpose)

    with monkeypatch.context() as patch:
        patch.setattr(SerialEngine, "sum", nudged)
        patch.setattr(LanguageTrainer, "noise", noise)
        original_save = Session.save

        def save(self, *given):
            original_save(self, *given)
            raise Died

        patch.setattr(Session, "save", save)
        with pytest.raises(Died):
            train(None, run, resume=True, engine=lambda m: SerialEngine(local_sgd_for(m)))
    return to_vector(weights.load(Checkpoints(run / "checkpoints").read().model_file)), words


def test_two_copies_share_noise_only_if_their_sums_are_equal(tmp_path, monkeypatch):
    """Copies of one run on installations that know nothing of each other."""
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    found = []
    for name, nudge in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("TACIT_STATE", str(tmp_path / f"state-{name}"))
        shutil.copytree(own / "run", own / name)
        found.append(one_more_round(own / name, monkeypatch, nudge=nudge))
    (a, noise_a), (b, noise_b), (c, noise_c) = found
    assert noise_a == noise_b
    assert np.array_equal(a, b)
    assert noise_c != noise_a
    before = to_vector(weights.load(Checkpoints(own / "run" / "checkpoints").read().model_file))
    # Both steps have the noise of a round; with shared noise the copies would nearly agree.
    assert np.std(a - c) > np.std(a - before) / 2


def test_a_copy_with_an_edited_experiment_cannot_go_on(tmp_path, monkeypatch):
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    shutil.copytree(own / "run", own / "copy")
    file = own / "copy" / "experiment.toml"
    file.write_text(file.read_text().replace("learning_rate = 0.5", "learning_rate = 0.25"))
    with pytest.raises(LedgerError, match=r"experiment\.toml was changed since the run began"):
        train(None, own / "copy", resume=True)


@pytest.mark.parametrize("at", [17, -1])
def test_a_run_does_not_go_on_with_another_key(tmp_path, monkeypatch, at):
    """Rounds that were released would seem to have had other noise."""
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    file = own / "run" / "private" / "key"
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    before = (own / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(ValueError, match="is not the key that"):
        train(None, own / "run", resume=True)
    assert (own / "run" / "ledger.jsonl").read_bytes() == before


def test_only_one_of_two_copies_goes_on(tmp_path, monkeypatch):
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    shutil.copytree(own / "run", own / "copy")
    train(None, own / "run", resume=True)
    with pytest.raises(LedgerError, match="restored from a backup, or copied"):
        train(None, own / "copy", resume=True)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("seed = 5\n", ""),
        ("noise_multiplier = 1.0", "noise_multiplier = 9.0"),
        ("population = 44", "population = 44000"),
        ('name = "small"', 'name = "larger"'),
    ],
    ids=["seed", "noise", "population", "name"],
)
def test_an_edited_experiment_is_refused_by_whatever_reads_the_run(line, other, folder, tmp_path):
    run = train(experiment(folder, rounds=1), tmp_path / "run")
    text = run.directory.experiment_file.read_text()
    assert line in text
    run.directory.experiment_file.write_text(text.replace(line, other))
    with pytest.raises(LedgerError, match="was changed since the run began"):
        Run.open(run.path)


def write_csv(path, users=60):
    rows = [f'user {n},"{text}"' for n in range(users) for text in texts_of(n)]
    path.write_text("\n".join(["user,text", *rows]) + "\n")
    return path


@pytest.fixture
def ingested(tmp_path):
    """A corpus that was made of a file, as a user would."""
    own = tmp_path / "own"
    own.mkdir()
    make_tokenizer(own)
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest(write_csv(own / "chats.csv"), own / "corpus", options=options)
    return own


def test_a_second_ingest_is_no_way_around_what_weights_were_trained_on(ingested):
    own = ingested
    plain = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    train(experiment(own, seed=None, rounds=1, plan=plain), own / "open")
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest(own / "chats.csv", own / "again", options=options)
    start = str(own / "open" / "checkpoints" / "model-000001.safetensors")
    wanted = experiment(own, seed=None, model={"start": start})
    with pytest.raises(ValueError, match="trained on this very corpus"):
        train(wanted.changed(corpus={"source": str(own / "again")}), own / "private")


def test_a_second_ingest_has_the_ledger_of_the_first(ingested):
    own = ingested
    train(experiment(own, seed=None, rounds=2), own / "one")
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest(own / "chats.csv", own / "again", options=options)
    other = experiment(own, seed=None, rounds=2).changed(corpus={"source": str(own / "again")})
    run = train(other, own / "two")
    assert "All 2 private ones together" in run.guarantee().others


def test_people_declared_new_have_a_ledger_of_their_own_and_the_claim_says_so(ingested):
    own = ingested
    train(experiment(own, seed=None, rounds=2), own / "one")
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest(own / "chats.csv", own / "others", options=options, new_people=True)
    other = experiment(own, seed=None, rounds=2).changed(corpus={"source": str(own / "others")})
    run = train(other, own / "two")
    assert run.guarantee().others == ""
    assert "with the same ids, who are declared to be others" in run.guarantee().claim


@pytest.mark.parametrize("use", ["dictionary", "pre-training", "bias", "clip", "switch"])
@pytest.mark.parametrize("form", ["the file itself", "its texts"])
def test_the_people_s_own_text_is_no_public_input(use, form, ingested):
    own = ingested
    file = own / "chats.csv"
    if form == "its texts":
        file = own / "harmless.txt"
        file.write_text("\n".join(text for n in range(60) for text in texts_of(n)) + "\n")
    changes = {
        "dictionary": {"tokenizer": {"source": str(file)}},
        "pre-training": {"model": {"pretrain": {"source": str(file)}}},
        "bias": {"model": {"public_output_bias": str(file)}},
        "clip": {"plan": {"clip_norm_from": [str(file)]}},
        "switch": {
            "rounds": 2,
            "phases": [{"rounds": 1}, {"rounds": 1, "tokenizer": {"source": str(file)}}],
        },
    }
    with pytest.raises(ValueError, match="cannot be declared public"):
        train(experiment(own, seed=None, **changes[use]), own / "run")
    assert not (own / "run").exists()


def test_declared_public_is_in_the_claim_with_its_digest(folder, tmp_path):
    text = tmp_path / "public.txt"
    text.write_text("a public text about trees and houses\n" * 30)
    pretrain = {"pretrain": {"source": str(text), "epochs": 1.0}}
    run = train(experiment(folder, rounds=1, model=pretrain), tmp_path / "run")
    digest = next(one.sha256 for one in run.ledger.header.public_inputs if "text" in one.what)
    assert f"the pre-training text public.txt (sha256 {digest[:16]})" in run.guarantee().claim
    branch = train(None, tmp_path / "branch", branch_from=(run.path, 0))
    assert branch.ledger.header.public_inputs == run.ledger.header.public_inputs


def test_a_target_holds_over_all_phases_whatever_their_sampler(folder, tmp_path):
    phases = [{"rounds": 2}, {"rounds": 2, "plan": {"sampling": "truncated", "max_cohort": 20}}]
    privacy = {"delta": 1e-3, "accountant": "pld", "target_epsilon": 2.0}
    plan = {"noise_multiplier": None}
    wanted = experiment(folder, rounds=4, phases=phases, privacy=privacy, plan=plan)
    run = train(wanted, tmp_path / "run")
    assert 1.9 < run.guarantee().epsilon["pld"] <= 2.0


def test_phases_that_mix_adjacencies_are_refused_before_any_work(folder, tmp_path):
    phases = [{"rounds": 1}, {"rounds": 1, "plan": {"sampling": "fixed"}}]
    with pytest.raises(ValueError, match=r"mix add/remove-one and replace-one"):
        train(
            experiment(folder, rounds=2, phases=phases, privacy={"accountant": None}),
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_generated_corpus_that_was_ingested_makes_no_claim_about_people(tmp_path):
    from tacit.cli.main import main

    own = tmp_path / "own"
    own.mkdir()
    make_tokenizer(own)
    arguments = ["synthetic:users=60,words=40,vocabulary=50", "--out", str(own / "corpus")]
    with pytest.raises(SystemExit) as stop:
        main(["ingest", *arguments])
    assert not stop.value.code
    run = train(experiment(own, seed=None, rounds=1), own / "run")
    assert run.guarantee().claim.startswith("No claim about people")
    assert run.ledger.header.view == "synthetic"


def test_a_text_changed_in_place_ends_the_training_on_it(tmp_path, monkeypatch):
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    file = own / "corpus" / "texts.arrow"
    data = file.read_bytes()
    at = data.index(b"the ")
    file.write_bytes(data[:at] + b"THE " + data[at + 4 :])
    with pytest.raises(ValueError, match=r"texts\.arrow.* was changed since it was ingested"):
        train(None, own / "run", resume=True)
    with pytest.raises(ValueError, match=r"texts\.arrow.* was changed since it was ingested"):
        train(experiment(own), own / "new")


def test_a_restored_run_directory_cannot_go_on_and_its_people_forget_nothing(tmp_path, monkeypatch):
    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    shutil.copytree(own / "run", own / "backup")
    train(None, own / "run", resume=True)
    shutil.rmtree(own / "run")
    shutil.move(own / "backup", own / "run")
    with pytest.raises(LedgerError, match="it was restored from a backup"):
        train(None, own / "run", resume=True)
    other = train(experiment(own, seed=None), own / "other")
    alone = other.guarantee().epsilon["pld"]
    assert "All 2 private ones together" in other.guarantee().others
    branch = train(None, own / "branch", branch_from=(own / "run", 2))
    assert branch.guarantee().epsilon["pld"] == pytest.approx(alone)


def test_the_key_is_gone_even_if_the_end_fails(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "summary", lambda self, ending: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(experiment(folder, seed=None, rounds=1), tmp_path / "run")
    assert not (tmp_path / "run" / "private" / "key").exists()
    run = train(None, tmp_path / "run", resume=True)
    assert json.loads(run.directory.result_file.read_text())["ending"] == "complete"


def test_a_run_is_locked_before_anything_of_it_is_written(tmp_path, monkeypatch):
    """A second process that resumes a run at the same time changes nothing of it."""
    from tacit.runs.start import resume

    own = make_folder(tmp_path / "own")
    interrupted(experiment(own, seed=None), own / "run", monkeypatch)
    session = resume(None, own / "run")
    try:
        before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
        with pytest.raises(LedgerError, match="another process is writing"):
            resume(None, own / "run")
        after = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
        assert after == before
    finally:
        session.close()


def test_splits_are_known_by_their_salt(ingested):
    again = ingest(
        ingested / "chats.csv",
        ingested / "again",
        options=UserOptions(test_fraction=0.3, held_out_fraction=0.0),
    )
    first = Corpus.open(ingested / "corpus")
    assert again.identity == first.identity
    assert again.split_identity != first.split_identity


def test_a_corpus_that_is_moved_to_another_installation_brings_its_people_s_ledger(
    ingested, tmp_path, monkeypatch
):
    own = ingested
    train(experiment(own, seed=None, rounds=2), own / "one")
    here = PeopleLedger.open(Corpus.open(own / "corpus").identity)
    here.declare(PeoplesBudget(500.0, 1e-3))
    train(experiment(own, seed=None, rounds=1), own / "two")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(own / "corpus", other / "corpus")
    shutil.copy(own / "tokenizer.json", other)
    run = train(experiment(other, seed=None, rounds=1), other / "three")
    assert "All 3 private ones together" in run.guarantee().others
    people = Corpus.open(other / "corpus").identity
    assert PeopleLedger.open(people).budget == PeoplesBudget(500.0, 1e-3)
    train(experiment(other, seed=None, rounds=1), other / "four")  # and nothing is taken twice
    assert len(PeopleLedger.open(people).runs()) == 4
