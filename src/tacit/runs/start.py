"""How a session begins: a new run, one that goes on, or a branch of another; for every task.

The task says what is special about it (`tasks.task`).  Here are the steps that all runs share, in
the order that keeps a guarantee true: what would void it is refused before anything is written, a
run directory exists whole or not at all, and it is locked and held against its people's ledger
before it is trained.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import find_corpus
from tacit.privacy import durable
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Header
from tacit.privacy.randomness import RunKey
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.runs.session import Proofs, Session
from tacit.tasks import AnyExperiment, task_of
from tacit.tasks.task import (
    Announce,
    Beginning,
    Inherited,
    MakeEngine,
    Opened,
    ParentRun,
    Trainer,
    TrainingData,
)

_Some = TypeVar("_Some", bound=AnyExperiment)


def create(
    experiment: AnyExperiment,
    run: str | Path,
    engine: MakeEngine | None = None,
    announce: Announce | None = None,
) -> Session:
    """Make a new run directory with its first checkpoint, and the session that goes on from it.

    Args:
        experiment: what to train; values that the guarantee rests on are filled in.
        run: a folder that does not exist yet, or is empty.
        engine: makes what computes cohorts, for the model that the run has.
        announce: told what is being prepared, how much of it is done, of how much.

    Raises:
        ValueError: if something is missing, contradicts itself, or would void the guarantee.
        BudgetExceeded: if the people's budget could not cover even the first leg.
    """
    path, task = Path(run), task_of(experiment)
    RunDirectory.check_free(path)
    data = task.load(experiment, announce)
    task.refuse_early(experiment, data, path)
    key = _new_key(experiment)
    beginning = task.begin(experiment, data, key, announce)
    directory = _write(path, beginning, data, key)
    return _open(directory, beginning.experiment, data, engine, announce)


def branch(
    experiment: AnyExperiment | None,
    run: str | Path,
    parent: str | Path,
    leg: int,
    engine: MakeEngine | None = None,
    announce: Announce | None = None,
) -> Session:
    """Make a new run that starts with another one's model after a leg, and pays for it.

    Guarantee: the branch has its own key and branch id, so no noise is shared with the parent, and
    its ledger begins with all that the parent had charged by then.
    """
    path, origin = Path(run), RunDirectory.open(parent)
    RunDirectory.check_free(path)
    last = origin.checkpoints.read(leg)
    ledger = Ledger.read(origin.ledger_file, last.head)
    origin.refuse_edited(ledger.header)
    before = origin.experiment()
    if experiment is None:
        asked_accountant = {"accountant": ledger.header.accountant}
        experiment = before.changed(privacy=asked_accountant)
    if experiment.task != before.task:
        raise ValueError(f"{parent} is a run of the task {before.task}, not {experiment.task}")
    experiment = experiment.of_branch(before)  # type: ignore[arg-type]  # of one task
    if experiment.legs <= leg:
        name = experiment.leg_name
        raise ValueError(
            f"the branch starts after {name} {leg}, so {name}s must be more than that, got"
            f" {experiment.legs}; add --{name}s"
        )
    task = task_of(experiment)
    data = task.load(_where_it_is(experiment, ledger.header), announce)
    if not data.is_of(before):
        raise ValueError(f"{before.source} is not the corpus that {parent} was trained on")
    key = _new_key(experiment)
    inherited = Inherited(ledger, last.head.entries, leg)
    beginning = task.branch(experiment, data, key, ParentRun(origin.path, before, last, inherited))
    directory = _write(path, beginning, data, key)
    return _open(directory, beginning.experiment, data, engine, announce)


def resume(
    experiment: AnyExperiment | None,
    run: str | Path,
    engine: MakeEngine | None = None,
    announce: Announce | None = None,
) -> Session:
    """Open a run that was interrupted, at its last checkpoint.

    `experiment`, unless it is None, must be the one that the run was started with.  Text that was
    changed since is refused: the noise of the legs that are done hides the old text, and a branch
    pays for both.
    """
    directory = RunDirectory.open(run)
    durable.clear_beside(directory.path)
    own = directory.experiment()
    if (result := directory.result()) is not None:
        if not result.get("key_kept"):
            directory.destroy_key()  # in case the end was cut short
        legs = result[f"{own.leg_name}s"]
        raise ValueError(
            f"the run {directory.path} is complete after {legs} {own.leg_name}s; to train further,"
            f" branch from it with --from {directory.path}@{legs} --run OTHER"
        )
    header = Ledger.read(directory.ledger_file, torn_is_left_out=True).header
    directory.refuse_edited(header)
    data = task_of(own).load(_where_it_is(own, header), announce)
    if not data.is_of(own):
        raise ValueError(
            f"{own.source} is not the corpus that {directory.path} was started on, so the run"
            " cannot go on with it"
        )
    if data.commitment(directory.key()) != header.data:
        raise ValueError(
            f"the corpus {own.source} is not as it was when {directory.path} was started on it;"
            f" branch from the run with --from {directory.path}@{own.leg_name.upper()} --run OTHER"
        )
    _refuse_another(experiment, directory, own, data)
    return _open(directory, own, data, engine, announce)


def _where_it_is(experiment: _Some, header: Header) -> _Some:
    """The experiment with its corpus where that lies now, to be loaded and not to be kept."""
    if not isinstance(experiment, Experiment):
        return experiment
    corpus = experiment.corpus
    source = find_corpus(corpus.source, corpus.identity, header.data)
    return experiment.changed(corpus={"source": source})


def ending_without_result(experiment: AnyExperiment | None, run: str | Path) -> str | None:
    """How a run ended that was cut short after its key was destroyed; None for any other."""
    directory = RunDirectory.open(run)
    if directory.result() is not None or not directory.key_is_gone:
        return None
    own = directory.experiment()
    if experiment is not None:
        _refuse_another(experiment, directory, own, task_of(own).load(own, None))
    is_complete = directory.checkpoints.read().leg >= own.legs
    return "complete" if is_complete else "its budget ended it"


def _refuse_another(
    experiment: AnyExperiment | None,
    directory: RunDirectory,
    own: AnyExperiment,
    data: TrainingData,
) -> None:
    """Refuse to go on with another experiment than the run was started with; None is its own."""
    if experiment is None:
        return
    if experiment.task == own.task:
        ledger = Ledger.read(directory.ledger_file, torn_is_left_out=True)
        parent = ledger.header.parent
        inherited = Inherited(ledger, parent.head.entries, parent.round) if parent else None
        last = directory.checkpoints.read()
        experiment = task_of(own).resolve(experiment, data, last, inherited)
    own.refuse_another(experiment, directory.path, "branch from it with --from")


def _new_key(experiment: AnyExperiment) -> RunKey:
    return RunKey.generate() if experiment.seed is None else RunKey.from_seed(experiment.seed)


def _write(path: Path, beginning: Beginning, data: TrainingData, key: RunKey) -> RunDirectory:
    """The run directory before its first leg.

    Order: the ledger with what was inherited; what is released before the first leg, charged to
    the people's ledger and to the run's; then the task's files, whose noise that has paid for; the
    first checkpoint last.  The folder gets its name when all of it is there.
    """
    header = _header(beginning, key)
    people = data.ledger()
    if people is not None:  # what their budget could not cover at all is refused before any work
        people.refuse_hopeless(header, beginning.first_events)

    def fill(directory: RunDirectory) -> None:
        with _first_ledger(directory.ledger_file, header, beginning.inherited) as ledger:
            if people is not None:
                people.witness(ledger)
            ledger.charge(list(beginning.releases))
            head = ledger.head
        text = beginning.experiment.to_toml()
        durable.write_whole(directory.experiment_file, text.encode())
        key.save(directory.key_file)
        beginning.write(directory.path)
        first_leg = beginning.inherited.leg if beginning.inherited else 0
        directory.checkpoints.write(first_leg, beginning.state, head)

    return RunDirectory.create(path, fill)


def _header(beginning: Beginning, key: RunKey) -> Header:
    """The header of a run's ledger: all that its claim will say besides the releases."""
    inherited, toml = beginning.inherited, beginning.experiment.to_toml().encode()
    origin = f"{inherited.ledger.header.run_id}@{inherited.leg}" if inherited else ""
    return replace(
        beginning.header,
        run_id=_run_id(key, toml, origin),
        experiment=hashlib.sha256(toml).hexdigest(),
    )


def _run_id(key: RunKey, toml: bytes, origin: str) -> str:
    """The id of the run that a key, an experiment and the place that it left make."""
    return key.hmac(b"run id", toml, origin.encode()).hex()[:16]


def _refuse_another_key(directory: RunDirectory, key: RunKey, header: Header) -> None:
    """Refuse a key that the run did not begin with.

    From another key other noise would follow for rounds that were released, and correlated noise
    would take back what was never added.
    """
    parent, toml = header.parent, directory.experiment_file.read_bytes()
    origin = f"{parent.run_id}@{parent.round}" if parent else ""
    if _run_id(key, toml, origin) != header.run_id:
        raise ValueError(
            f"{directory.key_file} is damaged or another run's: it is not the key that"
            f" {directory.path} began with, so the run cannot go on"
        )


def _first_ledger(path: Path, header: Header, inherited: Inherited | None) -> Ledger:
    """A new ledger; with something inherited it begins with the entries that paid for that."""
    if inherited is None:
        return Ledger.create(path, header)
    return Ledger.branch(
        path,
        inherited.ledger,
        inherited.entries,
        f"{header.run_id}-{inherited.leg}",
        run_id=header.run_id,
        round=inherited.leg,
        declared=header,
    )


def _open(
    directory: RunDirectory,
    experiment: AnyExperiment,
    data: TrainingData,
    engine: MakeEngine | None,
    announce: Announce | None,
) -> Session:
    """The session at the last checkpoint.

    The run is locked, and its charges compared with what its people's ledger knows of it, before
    anything is written.
    """
    last = directory.checkpoints.read()
    ledger = Ledger.open(directory.ledger_file, last.head, repair_torn_tail=True)
    key = directory.key()
    _refuse_another_key(directory, key, ledger.header)

    def renew(checkpoint: Checkpoint) -> Trainer:
        recorded = Proofs(directory.private / "releases.jsonl").beginning
        return task_of(experiment).open_trainer(
            Opened(
                directory.path,
                experiment,
                data,
                ledger,
                key,
                checkpoint,
                engine,
                announce,
                recorded,
            )
        )

    try:
        ledger.lock()
        if (people := data.ledger()) is not None:
            people.witness(ledger)
        return Session(directory, experiment, data, ledger, renew)
    except BaseException:
        ledger.close()
        raise
