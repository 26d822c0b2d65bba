"""A tokenizer switched during training: what it changes, what it costs, and dying in the middle."""

import json
import shutil

import numpy as np
import pytest

from tacit.evaluation import sampling
from tacit.models.base import to_vector
from tacit.privacy.documents import read_lines
from tacit.privacy.events import PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.run import Run
from tacit.runs.session import Session
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.tokenizer_switch import with_switch
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import LearntTokenizer
from tacit.train import train
from tests.runs.small import WORDS, experiment, files_of
from tests.runs.test_resume import Died, dies

SIZE = 270
SWITCH = {"sampled_tokens": 4000, "max_length": 12, "size": SIZE}


@pytest.fixture(scope="session")
def bpe_folder(folder, tmp_path_factory):
    """The corpus of the other tests with a byte-level tokenizer of 262 tokens."""
    own = tmp_path_factory.mktemp("bpe")
    shutil.copytree(folder / "corpus", own / "corpus")
    texts = [" ".join(WORDS)] * 3
    made = build.learn("bpe", texts, 262, provenance=provenance.public("words of the tests"))
    made.save(own / "tokenizer.json")
    return own


def switching(folder, *lengths, switch=SWITCH, **changes):
    """Phases of so many rounds, with a switch before each but the first."""
    first, *rest = ({"rounds": length} for length in lengths)
    phases = [first, *(phase | {"tokenizer": switch} for phase in rest)]
    kind = {"kind": "bpe", "size": 262}
    return experiment(folder).changed(tokenizer=kind, rounds=sum(lengths), phases=phases, **changes)


@pytest.fixture(scope="session")
def switched_run(bpe_folder):
    run = train(switching(bpe_folder, 3, 3), bpe_folder / "switched")
    return run, everything_of(run.path)


def everything_of(run):
    tokenizers = {str(path): path.read_bytes() for path in sorted(run.glob("tokenizers/*/*"))}
    return files_of(run), [name[len(str(run)) :] for name in tokenizers], list(tokenizers.values())


def test_a_switch_leaves_models_of_both_tokenizers_that_can_be_opened(switched_run):
    run, _ = switched_run
    assert run.is_complete
    assert run.round == 6
    before, after = run.tokenizer_at(3), run.tokenizer_at(4)
    assert before.vocab_size == 262
    assert 262 < after.vocab_size <= SIZE
    assert after == run.tokenizer
    assert after.provenance.startswith("post-processing: 4000 tokens sampled from the model")
    assert run.model(3).config.vocab_size == 262
    assert run.model(4).config.vocab_size == after.vocab_size
    assert StoredModel.open(run.path, 2).tokenizer == before
    assert StoredModel.open(run.path).tokenizer == after


def test_the_ledger_shows_the_switch_at_no_cost(switched_run):
    run, _ = switched_run
    kinds = [(entry.kind, entry.round) for entry in run.ledger.entries]
    assert kinds == [
        ("tokenizer", 0),
        *(("round", n) for n in range(3)),
        ("tokenizer", 3),
        *(("round", n) for n in range(3, 6)),
    ]
    entry = run.ledger.entries[4]
    assert isinstance(entry.event, PostProcessing)
    assert "sampled from the model after round 3" in entry.event.reason
    assert entry.plan_hash == run.tokenizer.fingerprint


def test_a_switch_costs_as_much_as_none(switched_run, bpe_folder, tmp_path):
    plain = train(switching(bpe_folder, 6), tmp_path / "plain")
    assert plain.guarantee().epsilon == switched_run[0].guarantee().epsilon
    assert "Simulation" in switched_run[0].guarantee().claim


def test_the_round_of_a_switch_is_measured_before_and_after(switched_run):
    rows = switched_run[0].metrics()
    assert [(row["round"], row.get("switched", False)) for row in rows] == [
        (0, False),
        (2, False),
        (3, False),
        (3, True),
        (4, False),
        (6, False),
    ]
    # The same texts, under another vocabulary; figures of other tokens are not averaged with.
    assert rows[2]["perplexity"] != rows[3]["perplexity"]
    assert rows[3]["perplexity_smoothed"] == rows[3]["perplexity"]


POINTS = {
    "while sampling": (sampling, "sample_tokens", 1, False),
    "before the tokenizer is kept": (RunTokenizers, "keep", 1, False),
    "after the tokenizer is kept": (RunTokenizers, "keep", 1, True),
    "before the switch is in the ledger": (Ledger, "charge", 5, False),
    "after the switch is in the ledger": (Ledger, "charge", 5, True),
    "before tokenizer.json is replaced": (RunTokenizers, "use", 1, False),
    "after tokenizer.json is replaced": (RunTokenizers, "use", 1, True),
    "before the switched model is measured": (Session, "evaluate_if_due", 5, False),
    "in the first round after": (LanguageTrainer, "run", 4, False),
    "before the first checkpoint after": (Checkpoints, "write", 5, False),
    "after the first checkpoint after": (Checkpoints, "write", 5, True),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_in_a_switch_ends_with_the_same_bits(
    point, bpe_folder, switched_run, tmp_path, monkeypatch
):
    owner, name, call, after = POINTS[point]
    with monkeypatch.context() as patch:
        dies(patch, owner, name, call=call, after=after)
        with pytest.raises(Died):
            train(switching(bpe_folder, 3, 3), tmp_path / "run")
    Run.open(tmp_path / "run").model()  # whatever is there can be read
    train(None, tmp_path / "run", resume=True)
    assert everything_of(tmp_path / "run") == switched_run[1]


def test_what_was_learnt_is_not_learnt_twice(bpe_folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        dies(patch, LanguageTrainer, "run", call=4, after=False)
        with pytest.raises(Died):
            train(switching(bpe_folder, 3, 3), tmp_path / "run")
    monkeypatch.setattr(sampling, "sample_tokens", None)  # whoever calls it, fails
    assert train(None, tmp_path / "run", resume=True).is_complete


def test_two_switches(bpe_folder, tmp_path):
    run = train(switching(bpe_folder, 2, 1, 2), tmp_path / "run")
    assert [entry.round for entry in run.ledger.entries if entry.kind == "tokenizer"] == [
        0,
        2,
        3,
    ]
    assert len({run.tokenizer_at(round).fingerprint for round in (2, 3, 5)}) == 3


@pytest.mark.slow
def test_workers_do_not_change_a_bit(bpe_folder, switched_run, tmp_path):
    train(switching(bpe_folder, 3, 3), tmp_path / "run", workers=2)
    assert everything_of(tmp_path / "run") == switched_run[1]


def test_the_model_after_a_switch_is_the_remapped_one(switched_run, bpe_folder, tmp_path):
    """A switch to the very tokenizer that is there changes no bit of a training."""
    same = {"source": str(bpe_folder / "tokenizer.json")}
    run = train(switching(bpe_folder, 3, 3, switch=same), tmp_path / "same")
    plain = train(switching(bpe_folder, 6), tmp_path / "plain")
    assert np.array_equal(to_vector(run.model()), to_vector(plain.model()))
    first, second = (Checkpoints(one.path / "checkpoints").read() for one in (run, plain))
    assert all(np.array_equal(first.arrays[k], second.arrays[k]) for k in second.arrays)


def test_a_given_tokenizer_is_kept_and_need_not_stay_where_it_was(
    bpe_folder, tmp_path, monkeypatch
):
    texts = [" ".join(WORDS)] * 3
    public = build.learn("bpe", texts, 280, provenance=provenance.public("words"))
    file = public.save(tmp_path / "other" / "tokenizer.json")
    with monkeypatch.context() as patch:
        dies(patch, LanguageTrainer, "run", call=4, after=False)
        with pytest.raises(Died):
            train(switching(bpe_folder, 3, 1, switch={"source": str(file)}), tmp_path / "run")
    shutil.rmtree(file.parent)
    run = train(None, tmp_path / "run", resume=True)
    assert run.tokenizer == public
    _, entry = [entry for entry in run.ledger.entries if entry.kind == "tokenizer"]
    assert entry.event.reason == "another tokenizer (public: words)"


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_moments_are_remapped_or_reset(optimizer, bpe_folder, tmp_path):
    for moments in ("remap", "reset"):
        server = {"optimizer": optimizer, "learning_rate": 0.1}
        switch = SWITCH | {"moments": moments}
        found = switching(bpe_folder, 2, 1, switch=switch, server=server)
        run = train(found, tmp_path / moments)
        state = Checkpoints(run.path / "checkpoints").read().arrays
        size = len(to_vector(run.model()))
        assert all(len(value) in (1, size) for value in state.values())
        if optimizer == "adam":
            assert state["step"][0] == (3 if moments == "remap" else 1)
            assert (state["square"] >= 0).all()


def test_a_branch_switches_where_its_parent_did_not(bpe_folder, tmp_path):
    parent = train(switching(bpe_folder, 4), tmp_path / "parent")
    wanted = with_switch(parent.experiment, 2, SWITCH, 5)
    branch = train(wanted, tmp_path / "branch", branch_from=(parent.path, 2))
    assert branch.first_leg == 2
    assert branch.tokenizer != parent.tokenizer
    kinds = [entry.kind for entry in branch.ledger.entries]
    assert kinds == ["tokenizer", *["round"] * 2, "tokenizer", *["round"] * 3]
    further = train(
        branch.experiment.changed(rounds=6, phases=[{"rounds": 6}]),
        tmp_path / "further",
        branch_from=(branch.path, 4),
    )
    assert further.tokenizer == branch.tokenizer  # and not the one its parent began with
    assert further.is_complete


def test_a_model_that_only_ends_its_texts_stops_the_run_with_a_sentence(
    bpe_folder, tmp_path, monkeypatch
):
    import tacit.tasks.language.tokenizer_switch

    def silent(model, tokenizer, key, **options):
        raise ValueError("the model says nothing but the end of a text")

    monkeypatch.setattr(tacit.tasks.language.tokenizer_switch, "sample_texts", silent)
    with pytest.raises(ValueError, match="nothing but the end"):
        train(switching(bpe_folder, 2, 1), tmp_path / "run")
    monkeypatch.undo()
    assert train(None, tmp_path / "run", resume=True).is_complete  # and nothing is lost


def test_bad_switches_are_refused_in_a_sentence(bpe_folder, tmp_path):
    with pytest.raises(ValueError, match="first phase has the tokenizer of"):
        experiment(bpe_folder).changed(phases=[{"rounds": 6, "tokenizer": SWITCH}])
    with pytest.raises(ValueError, match="audit run cannot switch"):
        switching(bpe_folder, 3, 3, audit={"canary_clients": 20})
    with pytest.raises(ValueError, match="256 bytes"):
        train(switching(bpe_folder, 1, 1, switch=SWITCH | {"size": 100}), tmp_path / "few")
    words = switching(bpe_folder, 1, 1, switch=SWITCH | {"kind": "word"})
    with pytest.raises(ValueError, match="unknown words"):
        train(words, tmp_path / "words")
    with pytest.raises(ValueError, match="there must be more rounds than"):
        with_switch(experiment(bpe_folder), 6, SWITCH)
    with pytest.raises(ValueError, match="beginning with another"):
        with_switch(experiment(bpe_folder), 0, SWITCH)


def test_a_switch_to_an_oracle_voids_the_guarantee(bpe_folder, tmp_path):
    made = build.learn("bpe", [" ".join(WORDS)] * 3, 280, provenance=provenance.ORACLE)
    oracle = LearntTokenizer(made).save(tmp_path / "oracle")
    switch = {"source": str(oracle)}
    with pytest.raises(ValueError, match="voids every guarantee"):
        train(switching(bpe_folder, 1, 1, switch=switch), tmp_path / "refused")
    accepted = switching(bpe_folder, 1, 1, switch=switch)
    accepted = accepted.changed(tokenizer={"accept_oracle": True})
    run = train(accepted, tmp_path / "run")
    assert run.guarantee().epsilon == {"rdp": np.inf}
    assert "users' own text" in run.guarantee().claim


def test_phases_are_cut_where_a_switch_goes():
    base = experiment_with_phases([(4, {"clip_norm": 0.2}), (6, {})])
    found = with_switch(base, 2, SWITCH, 12)
    assert [(p.rounds, p.plan, p.tokenizer is not None) for p in found.phases] == [
        (2, {"clip_norm": 0.2}, False),
        (2, {"clip_norm": 0.2}, True),
        (8, {}, False),
    ]
    assert found.rounds == 12
    assert with_switch(base, 10, SWITCH, 11).phases[-1].rounds == 1


def experiment_with_phases(phases):
    from tacit.config.experiment import Experiment

    given = [{"rounds": rounds, "plan": plan} for rounds, plan in phases]
    return Experiment.from_data({"rounds": 10, "phases": given}, "the test")


def test_metrics_files_hold_rows_of_numbers(switched_run):
    lines = (switched_run[0].path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(0 <= row["word_accuracy"] <= 1 for row in rows)
    assert read_lines(switched_run[0].path / "metrics.jsonl", dict) == rows
