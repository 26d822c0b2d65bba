"""How a session begins: a new run, one that goes on, or a branch of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.people import is_same_people
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.base import LanguageModel, to_vector
from tacit.privacy import durable
from tacit.privacy.events import Adjacency, Composition, PostProcessing
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.ledger_lines import Header
from tacit.privacy.randomness import RunKey
from tacit.runs import run_tokenizers
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.debts import Debt, debt_of
from tacit.runs.declarations import declared_public, header_of
from tacit.runs.directory import RunDirectory
from tacit.runs.going_on import EngineChoice, own_factory, session_of
from tacit.runs.session import Session
from tacit.tasks.language import assembly, plans
from tacit.tasks.language.assembly import Tell
from tacit.tasks.language.people import People
from tacit.tasks.language.plans import Inherited
from tacit.tokenizers.history import LearntTokenizer


def created(
    experiment: Experiment,
    run: str | Path,
    engine: EngineChoice | None = None,
    tell: Tell | None = None,
) -> Session:
    """A new run directory with its first checkpoint, and the session that goes on from it."""
    path = Path(run)
    RunDirectory.check_free(path)
    people = _verified(People.of(experiment), tell)
    learnt = assembly.learnt_tokenizer_of(experiment, people.users)
    tokenizer = learnt.tokenizer
    debt = debt_of(experiment, people.corpus, learnt)
    inputs = (*declared_public(experiment, learnt, people.corpus), *debt.public_inputs)
    people.planting(experiment, tokenizer)  # what cannot be planted is refused before any work
    people.refuse_unbudgeted(experiment)
    start = assembly.starting_model(experiment, tokenizer, people.corpus, tell)
    owed = debt.inherited.composition() if debt.inherited else Composition()
    asked = experiment.privacy.accountant
    experiment = _resolved(experiment, people, start.model, Inherited(0, owed))
    debt.refuse_above_budget(experiment)
    key = RunKey.generate() if experiment.seed is None else RunKey.from_seed(experiment.seed)
    each = plans.round_plans(experiment, plans.layers_of(start.model))
    costs = (*start.costs, *((debt.cost,) if debt.cost else ()))
    header = header_of(
        experiment,
        people.corpus,
        key,
        adjacency=_adjacency(each, owed),
        asked_accountant=asked,
        prior_costs=costs,
        public_inputs=tuple(dict.fromkeys(inputs)),
    )
    trained_on = (people.corpus.identity, *start.trained_on)

    def fill(made: RunDirectory) -> None:
        with _first_ledger(made.ledger_file, header, debt) as ledger:
            ledger.charge(
                [
                    Charge(
                        kind="tokenizer",
                        round=0,
                        attempt=0,
                        event=debt.event
                        or PostProcessing(f"the tokenizer: {tokenizer.provenance}"),
                        plan_hash=tokenizer.fingerprint,
                    )
                ]
            )
            head = ledger.head
        _fill(made, experiment, learnt, key)
        clip = each[0].initial_clip_state()
        vector = to_vector(start.model)
        made.checkpoints.write(
            weights.to_bytes(start.model, trained_on=trained_on),
            Checkpoint(
                round=0,
                model_file=made.checkpoints.model_file(0),
                optimizer=dict(assembly.server_optimizer(experiment).initial(len(vector))),
                clip_norms=clip.norms,
                clip_round=clip.round,
                head=head,
                tokenizer=tokenizer.fingerprint,
            ),
        )

    directory = RunDirectory.create(path, fill)
    return session_of(directory, experiment, people, engine, tell)


def resumed(
    experiment: Experiment | None,
    run: str | Path,
    engine: EngineChoice | None = None,
    tell: Tell | None = None,
) -> Session:
    """The session of a run that was interrupted, at its last checkpoint.

    `experiment`, if given, must be the one that the run was started with.
    """
    directory = RunDirectory.open(run)
    if (result := directory.result()) is not None:
        if not result.get("key_kept"):
            directory.destroy_key()  # in case the end was cut short
        raise ValueError(
            f"the run {directory.path} is complete after {result['rounds']} rounds; to train"
            f" further, branch from it with --from {directory.path}@{result['rounds']} --run OTHER"
        )
    header = Ledger.header_at(directory.ledger_file)
    directory.refuse_edited(header)
    there = directory.experiment()
    people = _verified(People.of(there), tell)
    if not is_same_people(people.corpus.identity, there.corpus.identity):
        raise ValueError(
            f"{there.corpus.source} is not the corpus that {directory.path} was started on, so the"
            " run cannot go on with it"
        )
    if people.corpus.commitment != header.data:
        raise ValueError(
            f"the corpus {there.corpus.source} is not as it was when {directory.path} was started"
            f" on it; branch from the run with --from {directory.path}@ROUND --run OTHER"
        )
    _refuse_another(experiment, directory, there, people)
    return session_of(directory, there, people, engine, tell)


def _refuse_another(
    experiment: Experiment | None, directory: RunDirectory, there: Experiment, people: People
) -> None:
    """A run goes on with the experiment that it was started with; None stands for that one."""
    if experiment is None:
        return
    file = directory.checkpoints.read().model_file
    model = weights.load(file, own_factory=own_factory(there))
    inherited = _inherited(Ledger.read(directory.ledger_file, torn_is_left_out=True))
    wanted = _resolved(experiment, people, model, inherited)
    there.refuse_another(wanted, directory.path, "branch from it with --from")


def ended_without_result(experiment: Experiment | None, run: str | Path) -> str | None:
    """How a run ended that was cut short after its key was destroyed; None for any other."""
    directory = RunDirectory.open(run)
    if directory.result() is not None or not directory.key_is_gone:
        return None
    there, last = directory.experiment(), directory.checkpoints.read()
    if experiment is not None:
        _refuse_another(experiment, directory, there, People.of(there))
    return "complete" if last.round >= there.rounds else "its budget ended it"


def branched(
    experiment: Experiment | None,
    run: str | Path,
    parent: str | Path,
    round: int,
    engine: EngineChoice | None = None,
    tell: Tell | None = None,
) -> Session:
    """A new run that starts with another one's model after a round, and pays for it.

    Guarantee: the branch has its own key and branch id, so no noise is shared with the parent, and
    its ledger begins with all that the parent had charged by then.
    """
    path, origin = Path(run), RunDirectory.open(parent)
    RunDirectory.check_free(path)
    before = origin.checkpoints.read(round)
    old = Ledger.read(origin.ledger_file, before.head)
    origin.refuse_edited(old.header)
    there = origin.experiment()
    asked = experiment.privacy.accountant if experiment else old.header.accountant
    if experiment is not None and experiment.seed is None:
        experiment = experiment.changed(seed=there.seed)  # a branch of a simulation is one too
    experiment = (experiment or there).changed(
        corpus=there.corpus.model_dump(),
        tokenizer=there.tokenizer.model_dump(),
        model=there.model.model_dump(),
        audit=there.audit.model_dump(),
    )
    if experiment.rounds <= round:
        raise ValueError(
            f"the branch starts after round {round}, so rounds must be more than that, got"
            f" {experiment.rounds}; add --rounds"
        )
    people = _verified(People.of(experiment), tell)
    if not is_same_people(people.corpus.identity, there.corpus.identity):
        raise ValueError(f"{there.corpus.source} is not the corpus that {parent} was trained on")
    people.refuse_unbudgeted(experiment)
    tokenizer = run_tokenizers.by_fingerprint(origin, before.tokenizer)
    words = run_tokenizers.words_behind(origin, before.tokenizer)
    learnt = LearntTokenizer(tokenizer, words, run_tokenizers.history(origin))
    model = weights.load(before.model_file, own_factory=own_factory(there))
    released = Composition.of(entry.event for entry in old.entries[: before.head.entries])
    experiment = _resolved(experiment, people, model, Inherited(round, released))
    if experiment.server.optimizer != there.server.optimizer:
        optimizer = dict(assembly.server_optimizer(experiment).initial(sum(plans.layers_of(model))))
    else:
        optimizer = before.optimizer
    key = RunKey.generate() if experiment.seed is None else RunKey.from_seed(experiment.seed)
    each = plans.round_plans(experiment, plans.layers_of(model))
    more = declared_public(experiment, learnt, people.corpus, before=there)
    header = header_of(
        experiment,
        people.corpus,
        key,
        adjacency=_adjacency(each, released),
        asked_accountant=asked,
        prior_costs=old.header.prior_costs,
        public_inputs=tuple(dict.fromkeys((*old.header.public_inputs, *more))),
        origin=f"{old.header.run_id}@{round}",
    )
    plan = each[experiment.phase_of(round)]

    def fill(made: RunDirectory) -> None:
        ledger = Ledger.branch(
            made.ledger_file,
            old,
            before.head.entries,
            f"{header.run_id}-{round}",
            run_id=header.run_id,
            round=round,
            declared=header,
        )
        head = ledger.head
        ledger.close()
        _fill(made, experiment, learnt, key)
        made.checkpoints.write(
            before.model_file.read_bytes(),
            Checkpoint(
                round=round,
                model_file=made.checkpoints.model_file(round),
                optimizer=optimizer,
                clip_norms=plan.initial_clip_state().norms,
                clip_round=0,
                head=head,
                tokenizer=tokenizer.fingerprint,
            ),
        )

    directory = RunDirectory.create(path, fill)
    return session_of(directory, experiment, people, engine, tell)


def _verified(people: People, tell: Tell | None) -> People:
    """The people, after their text was held against its digests."""
    people.corpus.verify(
        (lambda done, of: tell("verifying the corpus", done, of)) if tell else None
    )
    return people


def _adjacency(each: Sequence[RoundPlan], before: Composition) -> Adjacency | None:
    """The one adjacency of all that is released; None where nothing is."""
    events = [plan.event() for plan in each]
    return before.followed_by(Composition.of(events)).adjacency


def _resolved(
    experiment: Experiment,
    people: People,
    model: LanguageModel,
    inherited: Inherited = Inherited(),  # noqa: B008  (frozen)
) -> Experiment:
    named = experiment.changed(corpus={"identity": people.corpus.identity})
    users = len(people.users)
    if clients := assembly.canary_clients(named, model):
        users += clients.count  # however their coins fall
    return plans.resolved(named, users, plans.layers_of(model), inherited)


def _inherited(ledger: Ledger) -> Inherited:
    """What the run began with."""
    header = ledger.header
    if header.parent is None:
        return Inherited()
    events = (entry.event for entry in ledger.entries[: header.parent.head.entries])
    return Inherited(header.first_round, Composition.of(events))


def _first_ledger(path: Path, header: Header, debt: Debt) -> Ledger:
    """A ledger that begins with what the tokenizer has cost the same people.

    The last entry of a tokenizer's ledger is about the tokenizer, and is made anew here.
    """
    owed = debt.inherited
    if owed is None:
        return Ledger.create(path, header)
    return Ledger.branch(
        path,
        owed,
        len(owed.entries) - 1,
        f"{header.run_id}-0",
        run_id=header.run_id,
        declared=header,
    )


def _fill(made: RunDirectory, experiment: Experiment, learnt: LearntTokenizer, key: RunKey) -> None:
    durable.write_whole(made.experiment_file, experiment.to_toml().encode())
    switches = any(phase.tokenizer for phase in experiment.phases)
    run_tokenizers.begin(made, learnt, switches=switches)
    key.save(made.key_file)
