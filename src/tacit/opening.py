"""How a session begins: a new run, one that goes on, or a branch of another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tacit import assembly, plans, run_tokenizers, switching
from tacit.assembly import Tell
from tacit.audit.canary_clients import WithCanaryClients
from tacit.audit.coins import COMMITTED, coins_key, commitment
from tacit.corpus.source import UserCorpus
from tacit.debts import Debt, debt_of
from tacit.declarations import declared_public, header_of
from tacit.engines.engine import Engine
from tacit.engines.serial import SerialEngine
from tacit.evaluation.held_out import held_out_texts
from tacit.federated.cohort import CachedUsers, Task, Users
from tacit.federated.local_sgd import local_sgd_for
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.schedules import ClipState
from tacit.mechanisms.weighting import UserWeighting
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.models.vectors import to_vector
from tacit.people import People, bind_planted, is_same, record_planted
from tacit.plans import Inherited
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, Composition, PostProcessing
from tacit.privacy.ledger import EpsilonOf, Header, Ledger
from tacit.privacy.randomness import RunKey
from tacit.runs import files
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.session import HeldOut, Session
from tacit.switching import switched
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.folder import LearntTokenizer

# An engine, or what makes one for the model that the run turns out to have.
EngineChoice = Engine | Callable[[LanguageModel], Engine]


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
        with _first_ledger(made.ledger_file, header, debt, _epsilon_of(experiment)) as ledger:
            ledger.append(
                kind="tokenizer",
                round=0,
                attempt=0,
                event=debt.event or PostProcessing(f"the tokenizer: {tokenizer.provenance}"),
                plan_hash=tokenizer.fingerprint,
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
    return _session(directory, experiment, people, engine, tell)


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
    if not is_same(people.corpus.identity, there.corpus.identity):
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
    return _session(directory, there, people, engine, tell)


def _refuse_another(
    experiment: Experiment | None, directory: RunDirectory, there: Experiment, people: People
) -> None:
    """A run goes on with the experiment that it was started with; None stands for that one."""
    if experiment is None:
        return
    file = directory.checkpoints.read().model_file
    model = weights.load(file, own_factory=_own(there))
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
    if not is_same(people.corpus.identity, there.corpus.identity):
        raise ValueError(f"{there.corpus.source} is not the corpus that {parent} was trained on")
    people.refuse_unbudgeted(experiment)
    tokenizer = run_tokenizers.by_fingerprint(origin, before.tokenizer)
    words = run_tokenizers.words_behind(origin, before.tokenizer)
    learnt = LearntTokenizer(tokenizer, words, run_tokenizers.history(origin))
    model = weights.load(before.model_file, own_factory=_own(there))
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
            epsilon_of=_epsilon_of(experiment),
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
    return _session(directory, experiment, people, engine, tell)


def _session(
    directory: RunDirectory,
    experiment: Experiment,
    people: People,
    engine: EngineChoice | None,
    tell: Tell | None,
) -> Session:
    """Everything that the rounds need, from the last checkpoint, in the tokenizer they are for.

    The run is locked, and its charges compared with what its people's ledger knows of it, before
    anything is written.
    """
    if any(phase.tokenizer for phase in experiment.phases) and not _makes_engines(engine):
        raise ValueError(
            "an engine is made for a model of one vocabulary, and the experiment switches it: give"
            " a function that makes an engine for a model"
        )
    last = directory.checkpoints.read()
    ledger = Ledger.open(
        directory.ledger_file, last.head, epsilon_of=_epsilon_of(experiment), repair_torn_tail=True
    )
    try:
        ledger.lock()
        people.witness(ledger)
        return _opened(directory, experiment, people, ledger, last, engine, tell)
    except BaseException:
        ledger.close()
        raise


def _opened(
    directory: RunDirectory,
    experiment: Experiment,
    people: People,
    ledger: Ledger,
    last: Checkpoint,
    engine: EngineChoice | None,
    tell: Tell | None,
) -> Session:
    directory.forget_after(last.round)
    tokenizer = run_tokenizers.by_fingerprint(directory, last.tokenizer)
    model = weights.load(
        last.model_file, vocab_size=tokenizer.vocab_size, own_factory=_own(experiment)
    )
    optimizer = last.optimizer
    switch = switched(
        directory, experiment, people.corpus, last.round, tokenizer, model, optimizer, tell
    )
    if switch is not None:
        tokenizer, model, optimizer = switch.tokenizer, switch.model, switch.optimizer
    trained_on = people.view(experiment, tokenizer)
    cache = TokenCache.open_or_build(
        trained_on,
        tokenizer,
        _cache_folder(people.corpus, directory),
        max_tokens_per_user=experiment.corpus.max_tokens_per_user,
        progress=(lambda done, of: tell("tokenizing", done, of)) if tell else None,
    )
    if planting := people.planting(experiment, tokenizer):
        record_planted(directory, planting, cache)
        bind_planted(directory, ledger)
    users: Users = CachedUsers(cache, trained_on)
    key = directory.key()
    if experiment.audit.canary_clients is not None:
        coins = coins_key(directory, key)
        _commit_to(coins, ledger)
        clients = assembly.canary_clients(experiment, model, coins)
        assert clients is not None
        users = WithCanaryClients(users, clients, UserWeighting(experiment.plan.user_weight_cap))
    update = assembly.user_update(experiment)
    each = plans.round_plans(experiment, plans.layers_of(model))
    if switch is not None:
        switching.record(ledger, last.round, switch)
        run_tokenizers.use(directory, tokenizer)
    texts = held_out_texts(people.corpus.test, tokenizer, experiment.evaluation.max_tokens)
    return Session(
        directory=directory,
        experiment=experiment,
        people=people,
        tasks=tuple(Task(plan, update, tokenizer.bos, users) for plan in each),
        server=assembly.server_optimizer(experiment),
        model=model,
        held_out=HeldOut(texts, tokenizer.bos, tokenizer.unk),
        engine=_engine(engine, model),
        ledger=ledger,
        key=key,
        trained_on=weights.trained_on(last.model_file),
        tokenizer=tokenizer.fingerprint,
        weights=to_vector(model),
        optimizer=optimizer,
        clip_state=ClipState(last.clip_norms, last.clip_round),
        round=last.round,
        end=experiment.next_switch(last.round),
        just_switched=switch is not None,
    )


def _commit_to(coins: bytes, ledger: Ledger) -> None:
    """The audit's coins in the ledger before training, so that they cannot be tossed again."""
    branch = ledger.header.branch
    if any(entry.kind == COMMITTED and entry.branch == branch for entry in ledger.entries):
        return
    ledger.append(
        kind=COMMITTED,
        round=ledger.header.first_round,
        attempt=0,
        event=PostProcessing("a commitment to which canary clients take part"),
        plan_hash=commitment(coins),
    )


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


def _makes_engines(chosen: EngineChoice | None) -> bool:
    return chosen is None or callable(chosen)


def _engine(chosen: EngineChoice | None, model: LanguageModel) -> Engine:
    if chosen is None:
        return SerialEngine(local_sgd_for(model))
    return chosen(model) if callable(chosen) else chosen


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


def _epsilon_of(experiment: Experiment) -> EpsilonOf:
    """What the budget is measured by."""
    assert experiment.privacy.accountant is not None
    accountant = accountant_named(experiment.privacy.accountant)

    def epsilon(composition: Composition, delta: float) -> float:
        return accountant.epsilon(composition, delta)

    return epsilon


def _cache_folder(corpus: UserCorpus, directory: RunDirectory) -> Path:
    """Beside the corpus, or in the run's private folder where that cannot be written to."""
    folder = assembly.corpus_folder(corpus)
    return folder if folder is not None and os.access(folder, os.W_OK) else directory.private


def _first_ledger(path: Path, header: Header, debt: Debt, epsilon_of: EpsilonOf) -> Ledger:
    """A ledger that begins with what the tokenizer has cost the same people.

    The last entry of a tokenizer's ledger is about the tokenizer, and is made anew here.
    """
    owed = debt.inherited
    if owed is None:
        return Ledger.create(path, header, epsilon_of=epsilon_of)
    return Ledger.branch(
        path,
        owed,
        len(owed.entries) - 1,
        f"{header.run_id}-0",
        run_id=header.run_id,
        epsilon_of=epsilon_of,
        declared=header,
    )


def _fill(made: RunDirectory, experiment: Experiment, learnt: LearntTokenizer, key: RunKey) -> None:
    files.replace(made.experiment_file, experiment.to_toml().encode())
    switches = any(phase.tokenizer for phase in experiment.phases)
    run_tokenizers.begin(made, learnt, switches=switches)
    key.save(made.key_file)


def _own(experiment: Experiment) -> str | None:
    name = experiment.model.name
    return name if ":" in name else None
