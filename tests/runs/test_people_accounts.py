"""Trainings on the same people: what is counted together, what is not, and what cannot go on."""

import json
import shutil

import pytest

from tacit import train as training
from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_costs import PeoplesBudget
from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy import durable
from tacit.privacy.events import Adjacency, Composition
from tacit.privacy.guarantee import figures
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import LedgerError
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.train import train
from tacit.train import train as train_nlu
from tests.runs.small import experiment, files_of, make_folder
from tests.runs.test_resume import Died, dies
from tests.tasks.nlu.small import of_method
from tests.tasks.nlu.writing import json_lines, write

USER = ("user", Adjacency.ADD_REMOVE)


@pytest.fixture
def own(tmp_path):
    """A corpus whose people nobody else trains on."""
    return make_folder(tmp_path / "own")


def private(own, **changes):
    return experiment(own, **{"seed": None, "rounds": 3, **changes})


def people_of(own):
    return PeopleLedger.open(load_corpus(own / "corpus").identity)


def together(*runs):
    """What several runs cost at the delta of all of them, by the least sound accountant."""
    counts = [count for run in runs for count in run.ledger.composition().counts]
    return min(figures(Composition.of(counts), 1e-3).values())


def test_a_run_on_the_iid_view_is_in_no_joint_figure(own):
    mixed = train(private(own, corpus={"view": "iid"}), own / "iid")
    first = train(private(own), own / "first")
    assert "together" not in first.guarantee().others
    assert "Not counted: 1 on texts mixed among users, which protects nobody" in (
        first.guarantee().others
    )
    second = train(private(own), own / "second")
    joint = people_of(own).joint(second.ledger)
    assert joint.counted == 2
    assert joint.epsilon == together(first, second)
    assert Run.open(mixed.path).guarantee().claim.startswith("No claim about people")


def test_record_level_and_user_level_runs_have_no_joint_figure(own):
    rows = [(f"play song number {n}", "O O O B-number", "play") for n in range(90)]
    rows += [(f"stop song number {n}", "O O O B-number", "stop") for n in range(90)]
    users = [f"u{n % 60}" for n in range(180)]
    source = write(own / "said.jsonl", json_lines(rows, user=users))

    def wanted(method, **training):
        data = {"source": str(source), "user_column": "user"}
        made = of_method(method, data=data, training={"epochs": 1, **training})
        return made.changed(seed=None)

    records = train_nlu(wanted("dp-sgd"), own / "records")
    by_user = train_nlu(wanted("edp-sgd", unit="user"), own / "users")
    assert by_user.ledger.header.people == records.ledger.header.people
    said = by_user.guarantee().others
    assert "together" not in said
    assert "No joint figure, because a record-level epsilon does not add to a user-level" in said
    assert "Not counted: 1 record-level under" in said


def test_a_private_branch_of_a_run_without_noise_is_not_counted_as_private(own):
    train(private(own, rounds=2, plan={"noise_multiplier": 0.0}), own / "open")
    noisy = private(own, rounds=4, plan={"noise_multiplier": 1.0})
    branch = train(noisy, own / "branch", branch_from=(own / "open", 2))
    assert branch.guarantee().reasons
    run = train(private(own), own / "private")
    assert people_of(own).spent(USER) == Composition(run.ledger.composition().costly())
    said = run.guarantee().others
    assert "Not counted: 2 without privacy, which must not be released" in said
    assert "together" not in said


def test_poisson_and_fixed_size_runs_on_one_corpus_both_end_and_are_named(own):
    poisson = train(private(own), own / "poisson")
    fixed = train(private(own, plan={"sampling": "fixed"}), own / "fixed")
    for run in (poisson, fixed):
        assert json.loads((run.path / "result.json").read_text())["ending"] == "complete"
        assert not RunDirectory.open(run.path).key_file.exists()
        guarantee = Run.open(run.path).guarantee()
        assert guarantee.why_not_for_release is None
        assert "No joint figure, because an epsilon under replace-one adjacency" in (
            guarantee.others
        )


def interrupted(own, name, monkeypatch, **changes):
    """A run that died in its third round, charged but not saved."""
    with monkeypatch.context() as patch:
        dies(patch, Checkpoints, "write", call=4, after=False)
        with pytest.raises(Died):
            train(private(own, rounds=5, **changes), own / name)
    return own / name


def test_a_run_directory_restored_from_a_backup_cannot_go_on_and_hides_nothing(own, monkeypatch):
    run = interrupted(own, "run", monkeypatch)
    shutil.copytree(run, own / "backup")
    train(None, run, resume=True)
    other = train(private(own), own / "other")
    said, spent = Run.open(own / "other").guarantee().others, people_of(own).spent(USER)
    shutil.rmtree(run)
    shutil.copytree(own / "backup", run)
    before = files_of(run)
    with pytest.raises(
        LedgerError, match=r"has 4 charges, .* knows of 6: it was restored .*--from .*@ROUND --run"
    ):
        train(None, run, resume=True)
    assert files_of(run) == before
    assert people_of(own).spent(USER) == spent
    assert Run.open(own / "other").guarantee().others == said
    assert Run.open(run).guarantee().others == said  # of two runs, whoever is asked
    # What is offered instead works, and counts all that was ever charged.
    branch = train(None, own / "branch", branch_from=(run, 2))
    assert branch.round == 5
    rounds = sum(n for _, n in people_of(own).spent(USER).counts)
    assert rounds - sum(n for _, n in spent.counts) == branch.round - 2
    assert other.ledger.header.people == branch.ledger.header.people


def test_of_two_copies_of_a_run_one_goes_on(own, monkeypatch):
    run = interrupted(own, "run", monkeypatch)
    shutil.copytree(run, own / "copy")
    done = train(None, own / "copy", resume=True)
    before = files_of(run)
    with pytest.raises(LedgerError, match="cannot go on"):
        train(None, run, resume=True)
    assert files_of(run) == before
    assert done.round == 5


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_dies_around_the_append_to_the_peoples_ledger_goes_on(own, after, monkeypatch):
    with monkeypatch.context() as patch:
        # The lines of the header and of what comes before the first round are the first appends.
        dies(patch, PeopleLedger, "_append_lines", call=4, after=after)
        patch.setattr(durable, "cut_back", lambda fd, size: True)  # nobody is left to do it
        with pytest.raises(Died):
            train(private(own, rounds=5), own / "run")
    own_lines = len(Ledger.read(own / "run" / "ledger.jsonl").hashes)
    (known,) = people_of(own).runs().values()
    assert len(known.hashes) == own_lines - (0 if after else 1)
    done = train(None, own / "run", resume=True)
    assert done.round == 5
    assert sum(n for _, n in people_of(own).spent(USER).costly()) == 5
    (known,) = people_of(own).runs().values()
    assert tuple(known.hashes) == done.ledger.hashes


def test_the_key_is_gone_though_the_end_fails(own, monkeypatch):
    def fails(self, ending):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(training.Run, "summary", fails)
        with pytest.raises(OSError, match="No space"):
            train(private(own), own / "run")
    assert RunDirectory.open(own / "run").key_is_gone
    assert not (own / "run" / "result.json").exists()
    done = train(None, own / "run", resume=True)
    assert json.loads((own / "run" / "result.json").read_text())["ending"] == "complete"
    assert done.round == 3


def test_a_damaged_ledger_of_the_people_stops_trainings_and_not_remarks(own):
    run = train(private(own), own / "run")
    ledger = people_of(own)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"round":1', b'"round":7'))
    with pytest.raises(LedgerError, match="cannot be trusted at line"):
        train(private(own), own / "other")
    assert "is not known: the ledger" in Run.open(run.path).guarantee().others


def test_a_run_goes_on_in_the_group_that_its_people_were_merged_into(own, monkeypatch):
    from tacit.corpus import people

    run = interrupted(own, "run", monkeypatch)
    mine = load_corpus(own / "corpus").identity
    before = "00" * 8
    people.folder(before)
    PeopleLedger(people.folder(before)).declare(PeoplesBudget(500.0, 1e-3))
    people._merge_ledgers(before, mine)
    done = train(None, run, resume=True)
    assert done.round == 5
    kept = PeopleLedger(people.folder(before))
    assert sum(n for _, n in kept.spent(USER).costly()) == 5
    assert kept.budget == PeoplesBudget(500.0, 1e-3)
