"""What is accounted and declared is what is configured: the ledger against the experiment.

The resolved experiment names every value that decided about a run.  From it follow the event of
each round, step or epoch, and all that a header declares without looking at the corpus.  Both are
derived here again, for language models from round plans, and for intent and slot models from the
method's public numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import is_synthetic
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.turns import FIRST, Position
from tacit.privacy.events import Composition, Event, Horizon, NonPrivate
from tacit.privacy.ledger_lines import Entry
from tacit.tasks.language import task as language
from tacit.tasks.nlu import scaling as scaling_file
from tacit.tasks.nlu import task as nlu
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import method_of, scaling_release
from tacit.tokenizers.provenance import ORACLE
from tacit.verification.evidence import Check, Evidence, Remark

# What a header says that the experiment alone decides, under the same names.
_TERMS = (
    *("unit", "population", "population_is_counted", "adjacency", "part", "audit", "counted"),
    *("delta", "budget", "simulation"),
)
_MOST = 3  # charges that differ in the same way are named up to here


def _digest(evidence: Evidence) -> Iterator[str]:
    """The experiment's file is the one whose digest is in the header.

    A bundle's has shorter paths, since whole ones tell about a machine; its digest is in the last
    line of the bundle's ledger instead.
    """
    file = evidence.directory.experiment_file
    if evidence.is_bundle:
        return
    if not file.is_file():
        yield f"{file} is missing"
    elif hashlib.sha256(file.read_bytes()).hexdigest() != evidence.header.experiment:
        yield f"{file} was changed: the ledger's header has another digest of it"


def _charges(evidence: Evidence) -> Iterator[str]:
    """Event, plan and estimator of each charge are those of its phase, step or epoch.

    An event with more noise than was configured would understate epsilon.  Only the first few of
    many differences are named.
    """
    experiment = evidence.experiment
    if isinstance(experiment, Experiment):
        differences = list(_language_charges(evidence, experiment))
        if evidence.charged and evidence.is_own_model:
            yield Remark(
                "the digests of plans are not recomputed: the model is made by your own code"
            )
    else:
        differences = list(_nlu_charges(evidence, experiment))
    yield from differences[:_MOST]
    if len(differences) > _MOST:
        yield f"and {len(differences) - _MOST:,} more charges differ from what is configured"


def _language_charges(evidence: Evidence, experiment: Experiment) -> Iterator[str]:
    """The rounds of a language model, each against the plan of its phase and tokenizer."""
    configured = evidence.plans()
    begun: dict[str, Entry] = {}  # horizons, by their first charge
    sizes = {one.fingerprint: one.vocab_size for one in evidence.tokenizers.values()}
    hashes: dict[tuple[int, str], str] = {}  # of plans, by phase and tokenizer
    plans: dict[str, list[str]] = {}  # the digests of each phase's plan, by tokenizer
    for entry in evidence.charged:
        phase = experiment.phase_of(entry.round)
        plan, at = configured[phase], entry.event
        what = f"{evidence.ledger.path}: entry {entry.index}, round {entry.round},"
        event = plan.event(Position(at.horizon, at.rounds) if isinstance(at, Horizon) else FIRST)
        if entry.event != event:
            yield f"{what} charges {entry.event}, and what is configured is {event}"
        elif isinstance(at, Horizon):
            first = begun.setdefault(at.horizon, entry)
            if entry.round - first.round != at.rounds - 1:
                yield f"{what} is no next round of the horizon {at.horizon!r}: turns were passed by"
        if entry.estimator != plan.estimator_name:
            yield f"{what} has the estimator {entry.estimator!r}, not {plan.estimator_name!r}"
        words = evidence.tokenizer_at(entry.round)
        if words in sizes and not evidence.is_own_model and words not in plans:
            plans[words] = [plan.hash() for plan in evidence.plans(sizes[words])]
        expected = plans[words][phase] if words in plans else None
        # Where the model's sizes cannot be known, all rounds of a phase must have one plan.
        known = hashes.setdefault((phase, words), expected or entry.plan_hash)
        if entry.plan_hash != known:
            yield f"{what} is of the plan {entry.plan_hash[:12]}, not {known[:12]}"


def _nlu_charges(evidence: Evidence, experiment: NluExperiment) -> Iterator[str]:
    """The scaling factors, and the steps or epochs of an intent and slot model."""
    file = evidence.ledger.path
    first = scaling_release(experiment.noise)  # before any step
    charged = [entry.event for entry in evidence.own if entry.kind == "scaling"]
    if charged != ([] if first is None else [first]):
        yield (
            f"{file} charges {charged or 'nothing'} for the scaling factors, and what is configured"
            f" is {first or 'that they cost nothing'}"
        )
    for entry in evidence.own:
        if entry.plan_hash != experiment.fingerprint:
            yield (
                f"{file}: entry {entry.index}, {entry.kind} {entry.round}, is of the plan"
                f" {entry.plan_hash[:12]}, not {experiment.fingerprint[:12]}"
            )
    events = _nlu_events(evidence, experiment)
    for entry in evidence.charged:
        if events.get(entry.round, entry.event) != entry.event:
            yield (
                f"{file}: entry {entry.index}, step {entry.round}, charges {entry.event}, and what"
                f" is configured is {events[entry.round]}"
            )


def _nlu_events(evidence: Evidence, experiment: NluExperiment) -> dict[int, Event]:
    """The event of each charge by the round in its entry, from the method's public numbers.

    Without noise, or by the method as printed in the paper, there is one charge for an epoch;
    entries of epochs beyond the planned ones have no event here, and are reported as too many
    elsewhere.
    """
    training = experiment.training
    in_epoch = evidence.epoch_charges
    assert in_epoch is not None
    if training.method in PRIVATE and experiment.noise.noise_multiplier:
        assert experiment.noise.population is not None
        method = method_of(experiment, LayerScaling.none((1,)), experiment.noise.population)
        return dict(method.charges(range(training.epochs * in_epoch)))
    # An epoch is one charge, and how many steps it has depends on the data.  With as many units as
    # a batch has it is one step, so that the epochs can be counted through.
    is_printed = training.method == "edp-sgd-paper"
    scaling = scaling_file.read(evidence.path) if is_printed else LayerScaling.none((1,))
    method = method_of(experiment, scaling, training.batch_size)
    first = evidence.header.first_round
    epochs = (range(epoch, epoch + 1) for epoch in range(first, training.epochs))
    by_epoch = [event for epoch in epochs for _, event in method.charges(epoch)]
    starts = sorted({entry.round for entry in evidence.charged})
    return dict(zip(starts, by_epoch, strict=False))


def _vocabulary(evidence: Evidence) -> Iterator[str]:
    """What was learnt from people's own text leaves no guarantee, and the ledger says so.

    An oracle's vocabulary, or a tokenizer learnt without noise, needs an entry that accounts to
    infinity (design rule 9).
    """
    experiment, file = evidence.experiment, evidence.ledger.path
    if isinstance(experiment, NluExperiment):
        is_void = experiment.model.vocabulary == ORACLE and not experiment.model.pretrained
        said = [entry.event for entry in evidence.own if entry.kind == "vocabulary"]
        if is_void and not any(isinstance(event, NonPrivate) for event in said):
            yield f"{file} does not say that the vocabulary is from people's own text"
        return
    for words in evidence.tokenizers.values():
        entries = [e for e in evidence.tokenizer_entries if e.plan_hash == words.fingerprint]
        if words.why_void and any(not isinstance(one.event, NonPrivate) for one in entries):
            yield f"{file} does not say that the tokenizer voids the guarantee: {words.why_void}"


def _header(evidence: Evidence) -> Iterator[str]:
    """Each value of the header that the experiment decides; a difference is named with both.

    These are the terms of the claim: unit, adjacency, population, delta, budget, whose text it is,
    what is excluded and what was declared public.  The chain keeps a header from being edited, but
    not from having been written with other values than the run had.
    """
    header, file, experiment = evidence.header, evidence.ledger.path, evidence.experiment
    before = [entry.event for entry in evidence.inherited]
    # Without an accountant by name, the claim is by the sound one with the least epsilon.
    asked = None if header.accountant is None else experiment.privacy.accountant
    expected: dict[str, Any] = {"accountant": asked}
    if isinstance(experiment, Experiment):
        planned = [plan.event() for plan in evidence.plans()]
        terms = language.terms(experiment, Composition.of([*before, *planned]).adjacency)
        public = language.named_public(experiment, _has_public_words(evidence))
        corpus = experiment.corpus
        expected["people"] = corpus.identity if header.view != "synthetic" else ""
        # Only the corpus knows whether its people were made up.
        view = "synthetic" if is_synthetic(corpus.source) else terms.view
        views = dict.fromkeys((view, "synthetic"))
    else:
        terms, public = nlu.terms(experiment, Composition.of(before)), nlu.named_public(experiment)
        views = dict.fromkeys((terms.view,))
    for name, value in (expected | {name: getattr(terms, name) for name in _TERMS}).items():
        if getattr(header, name) != value:
            yield _differs(evidence, name, value)
    if header.view not in views:
        yield _differs(evidence, "view", " or ".join(views))
    for words in terms.excluded:
        if words not in header.excluded:
            yield f"{file}: its header does not exclude {words}"
    for what in dict.fromkeys(what for what, _ in public):
        if what not in [one.what for one in header.public_inputs]:
            yield f"{file}: its header does not list the {what} as declared public"


def _differs(evidence: Evidence, name: str, value: object) -> str:
    """A sentence about a value of the header that the experiment has otherwise."""
    stated = getattr(evidence.header, name)
    return (
        f"{evidence.ledger.path}: {name} is {'nothing' if stated is None else stated} in its"
        f" header, and {'nothing' if value is None else value} in"
        f" {evidence.directory.experiment_file}"
    )


def _has_public_words(evidence: Evidence) -> bool:
    """Whether the first tokenizer is neither from people's text nor paid for by anybody."""
    first = next(iter(evidence.tokenizer_entries), None)
    is_void = first is not None and isinstance(first.event, NonPrivate)
    return not is_void and all(cost.what != "tokenizer" for cost in evidence.header.prior_costs)


EXPERIMENT = Check(
    "experiment",
    "its digest, and that what is accounted is what it configures",
    (_digest, _charges, _vocabulary),
)
HEADER = Check(
    "header",
    "population, delta, budget, unit, adjacency, view, accountant, simulation, audit",
    (_header,),
)
