"""Language models as a task: what the spine asks for (`tasks.task.Task`).

How a training begins: whose text it is, what its ledger's header declares, what its tokenizer and
its starting weights have cost, and its first model.  `trainer.py` has the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tacit.config.experiment import Experiment
from tacit.corpus.source import UserCorpus
from tacit.federated.averaging import without_mean
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.base import LanguageModel, layer_sizes, parameter_count, train_only
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency, Composition, PostProcessing
from tacit.privacy.ledger_lines import Charge, Header, PriorCost, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import assembly, first_checks, plans
from tacit.tasks.language.canary_clients import CanaryClients
from tacit.tasks.language.people import People
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.starts import fill_in_start
from tacit.tasks.language.tokenizer_cost import cost_of
from tacit.tasks.language.trainer import LanguageTrainer, checkpoint_facts
from tacit.tasks.language.unknown_words import check_unknown_rate
from tacit.tasks.task import (
    Announce,
    Arrays,
    Beginning,
    Inherited,
    LastState,
    ParentRun,
    State,
    header_of,
)
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.public import declare


def load(experiment: Experiment, announce: Announce | None) -> People:
    """The people of the experiment's corpus, whose text is held against its digests."""
    people = People.of(experiment)
    people.corpus.verify(partial(announce, "verifying the corpus") if announce else None)
    return people


def begin(
    experiment: Experiment, data: People, key: RunKey, announce: Announce | None
) -> Beginning:
    """A new run; whatever would void its guarantee is refused before any work."""
    people, experiment = data, fill_in_start(experiment)
    corpus, asked = people.corpus, experiment.privacy.accountant
    learnt = assembly.tokenizer_of(experiment, people.users)
    tokenizer = learnt.tokenizer
    cost = cost_of(experiment, corpus, learnt)
    public_inputs = (*_declared_public(experiment, learnt, corpus), *cost.public_inputs)
    people.planting(experiment, tokenizer)  # what cannot be planted is refused now
    check_unknown_rate(corpus, tokenizer)
    inherited = None
    if (paid := cost.inherited) is not None:
        # The last entry of a tokenizer's ledger is about the tokenizer, and is made anew here.
        inherited = Inherited(paid, len(paid.entries) - 1)
    fresh = train_only(assembly.untrained_model(experiment, tokenizer), experiment.model.trained)
    experiment = _resolve(experiment, people, fresh, inherited)
    cost.refuse_above_budget(experiment)
    # Pre-training takes minutes, so that all refusals come before it.
    start = assembly.StartingModel.of(experiment, tokenizer, corpus, announce)
    event = cost.event or PostProcessing(f"the tokenizer: {tokenizer.provenance}")
    return _beginning(
        experiment,
        people,
        learnt,
        start.model,
        inherited,
        model_file=weights.to_bytes(start.model, trained_on=(corpus.identity, *start.trained_on)),
        asked_accountant=asked,
        prior_costs=(*start.costs, *((cost.header_entry,) if cost.header_entry else ())),
        public_inputs=public_inputs,
        releases=[Charge("tokenizer", 0, 0, event, tokenizer.fingerprint)],
    )


def branch(experiment: Experiment, data: People, key: RunKey, parent: ParentRun) -> Beginning:
    """A run that goes on from another one's model after a round, and pays for it.

    That is the model as it was released: with `server.averaging` the mean over rounds, and not the
    iterate that the parent itself goes on from.  The branch's own mean begins anew.
    """
    people = data
    corpus, last, inherited = people.corpus, parent.last, parent.inherited
    before, header = parent.experiment, inherited.ledger.header
    asked = experiment.privacy.accountant
    people.refuse_unbudgeted(experiment)
    fingerprint = last.facts["tokenizer"]
    learnt = RunTokenizers(parent.folder).learnt(fingerprint)
    model = _stored_model(before, last)
    experiment = _resolve(experiment, people, model, inherited)
    same_optimizer = experiment.server.optimizer == before.server.optimizer
    more = _declared_public(experiment, learnt, corpus, before=before)
    return _beginning(
        experiment,
        people,
        learnt,
        model,
        inherited,
        model_file=last.model_file.read_bytes(),
        asked_accountant=asked,
        prior_costs=header.prior_costs,
        public_inputs=(*header.public_inputs, *more),
        optimizer=without_mean(last.arrays) if same_optimizer else None,
    )


def resolve(
    experiment: Experiment, data: People, last: LastState, inherited: Inherited | None
) -> Experiment:
    """The experiment as a run that was started with it holds it."""
    model = _stored_model(experiment, last)
    return _resolve(fill_in_start(experiment), data, model, inherited)


refuse_early = first_checks.refuse_early
open_trainer = LanguageTrainer  # goes on at the last checkpoint


def _stored_model(experiment: Experiment, last: LastState) -> LanguageModel:
    """The model of a checkpoint of a run of the experiment, frozen as there."""
    choice = experiment.model
    return weights.load(last.model_file, own_factory=choice.own_factory, trained=choice.trained)


def _resolve(
    experiment: Experiment, people: People, model: LanguageModel, inherited: Inherited | None
) -> Experiment:
    """The experiment with every value filled in that the guarantee depends on."""
    named = experiment.changed(corpus={"identity": people.corpus.identity})
    users = people.count
    # However their coins fall; these are nobody's, since a run's own are a secret until it starts.
    if clients := CanaryClients.of(named, model, RunKey(bytes(32), is_simulation=True)):
        users += clients.count
    return plans.resolved(named, users, layer_sizes(model), inherited)


def _beginning(
    experiment: Experiment,
    people: People,
    learnt: LearntTokenizer,
    model: LanguageModel,
    inherited: Inherited | None,
    *,
    model_file: bytes,
    asked_accountant: str | None,
    prior_costs: tuple[PriorCost, ...],
    public_inputs: tuple[PublicInput, ...],
    releases: Sequence[Charge] = (),
    optimizer: Arrays | None = None,
) -> Beginning:
    """A run before its first round: its ledger's header, its first checkpoint, its tokenizer.

    Without the state of an `optimizer` the server's begins anew.
    """
    corpus = people.corpus
    each = plans.round_plans(experiment, layer_sizes(model))
    before = inherited.spent if inherited else Composition()
    known = terms(
        experiment, before.followed_by(Composition.of([plan.event() for plan in each])).adjacency
    )
    header = replace(
        known,
        view=known.view if corpus.about_people else "synthetic",
        data=corpus.commitment,
        people=people.people,
        split=corpus.split_identity,
        accountant=asked_accountant,
        excluded=(*known.excluded, *corpus.declarations(_colluding(each))),
        public_inputs=tuple(dict.fromkeys(public_inputs)),
        prior_costs=prior_costs,
    )
    if optimizer is None:
        optimizer = dict(assembly.server_optimizer(experiment).initial(parameter_count(model)))
    clip = each[experiment.phase_of(inherited.leg if inherited else 0)].initial_clip_state()
    facts = checkpoint_facts(clip, learnt.tokenizer.fingerprint)
    switches = any(phase.tokenizer for phase in experiment.phases)
    return Beginning(
        experiment=experiment,
        header=header,
        state=State(model_file, optimizer, facts),
        releases=releases,
        inherited=inherited,
        write=lambda folder: RunTokenizers(folder).begin(learnt, switches=switches),
    )


def _colluding(each: Sequence[RoundPlan]) -> int | None:
    """Of noise that users add in all phases, how many of them may know their own."""
    shared = [plan.shared_noise for plan in each]
    known = [noise.colluding for noise in shared if noise is not None]
    return min(known) if len(known) == len(shared) else None


def terms(experiment: Experiment, adjacency: Adjacency | None) -> Header:
    """What the header of the run's ledger says by the experiment alone, whatever the corpus is."""
    plan, audit = experiment.plan, experiment.audit
    excluded = [*ALWAYS_EXCLUDED]
    if plan.population_is_counted and audit.canary_clients:
        excluded.append(
            "the number of the audit's canary clients, which is part of the population's"
        )
    if experiment.corpus.users is not None:
        excluded.append(f"which users are the first {experiment.corpus.users:,} of the corpus")
    if audit.canaries is not None:
        excluded.append("how often each canary was planted, which is published")
    return header_of(
        experiment,
        unit="user",
        population=plan.population,
        population_is_counted=plan.population_is_counted,
        adjacency=adjacency,
        view="iid" if experiment.corpus.view == "iid" else "people",
        part=experiment.corpus.part,
        audit=audit.is_on,
        excluded=tuple(excluded),
    )


def _declared_public(
    experiment: Experiment,
    learnt: LearntTokenizer,
    corpus: UserCorpus,
    *,
    before: Experiment | None = None,
) -> tuple[PublicInput, ...]:
    """Everything that is declared public by naming it, with its digest; people's text is refused.

    `before` is the experiment of a parent, whose ledger has its inputs already.
    """
    is_public = not (learnt.needs_history or learnt.why_void)
    known = set(named_public(before, is_public)) if before is not None else set()
    named = [pair for pair in named_public(experiment, is_public) if pair not in known]
    return tuple(dict.fromkeys(declare(what, source, corpus) for what, source in named))


def named_public(experiment: Experiment, tokenizer_is_public: bool) -> list[tuple[str, str]]:
    """What each public input is used for, and its name."""
    model = experiment.model
    named: list[tuple[str, str]] = []
    if tokenizer_is_public:
        named.append(("dictionary", experiment.tokenizer.source))
    if model.pretrain is not None:
        named.append(("pre-training text", model.pretrain.source))
    if isinstance(model.public_output_bias, str):
        named.append(("word frequencies", model.public_output_bias))
    if model.start:
        named.append(("starting weights", model.start))
    named += [("text behind the clip norm", name) for name in experiment.plan.clip_norm_from]
    return named + [
        ("dictionary", phase.tokenizer.source)
        for phase in experiment.phases
        if phase.tokenizer and phase.tokenizer.source != "sampled"
    ]
