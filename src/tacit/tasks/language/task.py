"""Language models as a task: what the spine asks for (`tasks.task.Task`).

How a training begins: whose text it is, what its ledger's header declares, what its tokenizer and
its starting weights have cost, and its first model.  `trainer.py` has the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.source import UserCorpus
from tacit.mechanisms.plan import RoundPlan
from tacit.models import weights
from tacit.models.base import LanguageModel, layer_sizes, parameter_count
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency, Composition, PostProcessing
from tacit.privacy.ledger_lines import Charge, Header, PriorCost, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import assembly, plans
from tacit.tasks.language.canary_clients import CanaryClients
from tacit.tasks.language.people import People
from tacit.tasks.language.tokenizer_cost import cost_of
from tacit.tasks.language.tokenizer_switch import RunTokenizers
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tasks.task import (
    Announce,
    Beginning,
    Inherited,
    LastState,
    Opened,
    Parent,
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
    people = data
    corpus, asked = people.corpus, experiment.privacy.accountant
    learnt = assembly.tokenizer_of(experiment, people.users)
    tokenizer = learnt.tokenizer
    cost = cost_of(experiment, corpus, learnt)
    public_inputs = (*_declared_public(experiment, learnt, corpus), *cost.public_inputs)
    people.planting(experiment, tokenizer)  # what cannot be planted is refused now
    people.refuse_unbudgeted(experiment)
    start = assembly.StartingModel.of(experiment, tokenizer, corpus, announce)
    inherited = None
    if (paid := cost.inherited) is not None:
        # The last entry of a tokenizer's ledger is about the tokenizer, and is made anew here.
        inherited = Inherited(paid, len(paid.entries) - 1)
    experiment = _resolve(experiment, people, start.model, inherited)
    cost.refuse_above_budget(experiment)
    each = plans.round_plans(experiment, layer_sizes(start.model))
    event = cost.event or PostProcessing(f"the tokenizer: {tokenizer.provenance}")
    optimizer = assembly.server_optimizer(experiment).initial(parameter_count(start.model))
    return Beginning(
        experiment=experiment,
        header=_header(
            experiment,
            corpus,
            adjacency=_adjacency(each, inherited),
            asked_accountant=asked,
            prior_costs=(*start.costs, *((cost.header_entry,) if cost.header_entry else ())),
            public_inputs=public_inputs,
        ),
        state=State(
            weights.to_bytes(start.model, trained_on=(corpus.identity, *start.trained_on)),
            dict(optimizer),
            _first_facts(each[0], tokenizer.fingerprint),
        ),
        releases=[Charge("tokenizer", 0, 0, event, tokenizer.fingerprint)],
        inherited=inherited,
        write=_writer(experiment, learnt),
    )


def branch(experiment: Experiment, data: People, key: RunKey, parent: Parent) -> Beginning:
    """A run that goes on from another one's model after a round, and pays for it."""
    people = data
    corpus, last, inherited = people.corpus, parent.last, parent.inherited
    before, header = parent.experiment, inherited.ledger.header
    asked = experiment.privacy.accountant
    people.refuse_unbudgeted(experiment)
    fingerprint = last.facts["tokenizer"]
    learnt = RunTokenizers(parent.folder).learnt(fingerprint)
    model = weights.load(last.model_file, own_factory=before.model.own_factory)
    experiment = _resolve(experiment, people, model, inherited)
    if experiment.server.optimizer == before.server.optimizer:
        optimizer = last.arrays
    else:
        optimizer = dict(assembly.server_optimizer(experiment).initial(parameter_count(model)))
    each = plans.round_plans(experiment, layer_sizes(model))
    more = _declared_public(experiment, learnt, corpus, before=before)
    return Beginning(
        experiment=experiment,
        header=_header(
            experiment,
            corpus,
            adjacency=_adjacency(each, inherited),
            asked_accountant=asked,
            prior_costs=header.prior_costs,
            public_inputs=(*header.public_inputs, *more),
        ),
        state=State(
            last.model_file.read_bytes(),
            optimizer,
            _first_facts(each[experiment.phase_of(last.leg)], fingerprint),
        ),
        inherited=inherited,
        write=_writer(experiment, learnt),
    )


def resolve(
    experiment: Experiment, data: People, last: LastState, inherited: Inherited | None
) -> Experiment:
    """The experiment as a run that was started with it holds it."""
    model = weights.load(last.model_file, own_factory=experiment.model.own_factory)
    return _resolve(experiment, data, model, inherited)


def open_trainer(opened: Opened) -> LanguageTrainer:
    """The trainer that goes on at the last checkpoint."""
    return LanguageTrainer(opened)


def _resolve(
    experiment: Experiment, people: People, model: LanguageModel, inherited: Inherited | None
) -> Experiment:
    """The experiment with every value filled in that the guarantee depends on."""
    named = experiment.changed(corpus={"identity": people.corpus.identity})
    users = len(people.users)
    # However their coins fall; these are nobody's, since a run's own are a secret until it starts.
    if clients := CanaryClients.of(named, model, RunKey(bytes(32), is_simulation=True)):
        users += clients.count
    return plans.resolved(named, users, layer_sizes(model), inherited)


def _first_facts(plan: RoundPlan, tokenizer: str) -> dict[str, object]:
    """What a checkpoint says besides arrays: the clip norms in force, and the tokenizer."""
    clip = plan.initial_clip_state()
    return {"clip_norms": list(clip.norms), "clip_round": clip.round, "tokenizer": tokenizer}


def _writer(experiment: Experiment, learnt: LearntTokenizer) -> Callable[[Path], None]:
    """Writes the tokenizer, and what is known of it, into a run's folder."""
    switches = any(phase.tokenizer for phase in experiment.phases)

    def write(folder: Path) -> None:
        RunTokenizers(folder).begin(learnt, switches=switches)

    return write


def _adjacency(each: Sequence[RoundPlan], inherited: Inherited | None) -> Adjacency | None:
    """The one adjacency of all that is released; None where nothing is."""
    before = inherited.spent if inherited else Composition()
    return before.followed_by(Composition.of([plan.event() for plan in each])).adjacency


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


def _header(
    experiment: Experiment,
    corpus: UserCorpus,
    *,
    adjacency: Adjacency | None,
    asked_accountant: str | None,
    prior_costs: tuple[PriorCost, ...],
    public_inputs: tuple[PublicInput, ...],
) -> Header:
    """What the header of the run's ledger says besides what that of every run does."""
    known = terms(experiment, adjacency)
    return replace(
        known,
        view=known.view if corpus.about_people else "synthetic",
        data=corpus.commitment,
        people=corpus.identity if corpus.about_people else "",
        split=corpus.split_identity,
        accountant=asked_accountant,
        excluded=(*known.excluded, *corpus.declarations),
        public_inputs=tuple(dict.fromkeys(public_inputs)),
        prior_costs=prior_costs,
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
