"""What is accounted is what is configured: each charge against the experiment's plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tacit.config.experiment import Experiment
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.privacy.events import Event, NonPrivate
from tacit.privacy.ledger_lines import Entry
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import epoch_steps, method_of
from tacit.tasks.nlu.scaling import read as read_scaling
from tacit.tasks.nlu.scaling import release_of
from tacit.tokenizers.provenance import ORACLE
from tacit.verification.evidence import Evidence
from tacit.verification.findings import Remark

MOST = 3  # charges that differ in the same way are named up to here


def digest(evidence: Evidence) -> Iterator[str]:
    """The experiment's file is the one in the header; a bundle's has shorter paths."""
    file = evidence.directory.experiment_file
    if evidence.is_bundle:
        return
    if not file.is_file():
        yield f"{file} is missing"
    elif hashlib.sha256(file.read_bytes()).hexdigest() != evidence.ledger.header.experiment:
        yield f"{file} was changed: the ledger's header has another digest of it"


def charges(evidence: Evidence) -> Iterator[str]:
    """Event, plan and estimator of each charge are those of its phase, step or epoch."""
    if isinstance(evidence.experiment, Experiment):
        yield from _limited(_of_language_model(evidence, evidence.experiment))
    else:
        yield from _limited(_of_nlu(evidence, evidence.experiment))


def _limited(differences: Iterator[str]) -> Iterator[str]:
    count = 0
    for one in differences:
        if isinstance(one, Remark):
            yield one
            continue
        count += 1
        if count <= MOST:
            yield one
    if count > MOST:
        yield f"and {count - MOST:,} more charges differ from what is configured"


def _of_language_model(evidence: Evidence, experiment: Experiment) -> Iterator[str]:
    configured = [(plan.event(), plan.estimator_name) for plan in evidence.plans()]
    hashes: dict[tuple[int, str], str] = {}  # by phase and tokenizer
    sizes = {one.fingerprint: one.vocab_size for one in evidence.tokenizers.values()}
    plans: dict[str, list[str]] = {}  # the digests of each phase's, by tokenizer
    vocabularies = Vocabularies(evidence)
    for entry in evidence.charged:
        phase = experiment.phase_of(entry.round)
        event, estimator = configured[phase]
        what = f"{evidence.ledger.path}: entry {entry.index}, round {entry.round},"
        if entry.event != event:
            yield f"{what} charges {entry.event}, and what is configured is {event}"
        if entry.estimator != estimator:
            yield f"{what} has the estimator {entry.estimator!r}, not {estimator!r}"
        words = vocabularies.at(entry.round)
        if words in sizes and not evidence.is_own_model and words not in plans:
            plans[words] = [plan.hash() for plan in evidence.plans(sizes[words])]
        expected = plans[words][phase] if words in plans else None
        # Where the model's sizes cannot be known, all rounds of a phase must have one plan.
        known = hashes.setdefault((phase, words), expected or entry.plan_hash)
        if entry.plan_hash != known:
            yield f"{what} is of the plan {entry.plan_hash[:12]}, not {known[:12]}"
    if evidence.charged and evidence.is_own_model:
        yield Remark("the digests of plans are not recomputed: the model is made by your own code")


class Vocabularies:
    """Which tokenizer a round was in, by the ledger."""

    def __init__(self, evidence: Evidence) -> None:
        of_kind = [entry for entry in evidence.ledger.entries if entry.kind == "tokenizer"]
        own = {entry.index for entry in evidence.own}
        self._own = sorted(
            (entry.round, entry.index, entry.plan_hash) for entry in of_kind if entry.index in own
        )
        inherited = [entry.plan_hash for entry in of_kind if entry.index not in own]
        self._inherited = inherited[-1] if inherited else ""

    def at(self, round: int) -> str:
        """The fingerprint of the tokenizer that a round is computed in."""
        before = [words for start, _, words in self._own if start <= round]
        return before[-1] if before else self._inherited


def _of_nlu(evidence: Evidence, experiment: NluExperiment) -> Iterator[str]:
    file = evidence.ledger.path
    first = release_of(experiment.noise)  # before any step
    charged = [entry.event for entry in evidence.own if entry.kind == "scaling"]
    if charged != ([] if first is None else [first]):
        yield (
            f"{file} charges {charged or 'nothing'} for the scaling factors, and what is configured"
            f" is {first or 'that they cost nothing'}"
        )
    for entry in evidence.own:
        what = f"{file}: entry {entry.index}, {entry.kind} {entry.round},"
        if entry.plan_hash != experiment.fingerprint:
            yield f"{what} is of the plan {entry.plan_hash[:12]}, not {experiment.fingerprint[:12]}"
    configured = Steps(evidence, experiment)
    for entry in evidence.charged:
        event = configured(entry)
        if event is not None and entry.event != event:
            what = f"{file}: entry {entry.index}, step {entry.round},"
            yield f"{what} charges {entry.event}, and what is configured is {event}"


class Steps:
    """The event of a charge, from the method's public numbers."""

    def __init__(self, evidence: Evidence, experiment: NluExperiment) -> None:
        training = experiment.training
        self._by_step: dict[int, Event] = {}
        self._by_epoch: list[Event] = []
        if training.method in PRIVATE and experiment.noise.noise_multiplier:
            K = experiment.noise.population
            assert K is not None
            method = method_of(experiment, LayerScaling.none((1,)), K)
            steps = range(training.epochs * epoch_steps(experiment, K))
            self._by_step = dict(method.charges(steps))
            return
        # An epoch is one charge, and how many steps it has depends on the data.  With as many
        # units as a batch has it is one step, so that the epochs can be counted through.
        is_printed = training.method == "edp-sgd-paper"
        scaling = read_scaling(evidence.path) if is_printed else LayerScaling.none((1,))
        method = method_of(experiment, scaling, training.batch_size)
        for epoch in range(training.epochs):
            [(_, event)] = method.charges(range(epoch, epoch + 1))
            self._by_epoch.append(event)
        starts = sorted({entry.round for entry in evidence.charged})
        self._epoch_of = {start: epoch for epoch, start in enumerate(starts)}

    def __call__(self, entry: Entry) -> Event | None:
        if self._by_step:
            return self._by_step.get(entry.round)
        epoch = self._epoch_of[entry.round]
        return self._by_epoch[epoch] if epoch < len(self._by_epoch) else None


def vocabulary(evidence: Evidence) -> Iterator[str]:
    """What was learnt from people's own text leaves no guarantee, and the ledger says so."""
    experiment, file = evidence.experiment, evidence.ledger.path
    if isinstance(experiment, NluExperiment):
        is_void = experiment.model.vocabulary == ORACLE and not experiment.model.pretrained
        said = any(
            entry.kind == "vocabulary" and isinstance(entry.event, NonPrivate)
            for entry in evidence.own
        )
        if is_void and not said:
            yield f"{file} does not say that the vocabulary is from people's own text"
        return
    for words in evidence.tokenizers.values():
        entries = [entry for entry in evidence.ledger.entries if _is_of(entry, words.fingerprint)]
        if words.why_void and any(not isinstance(one.event, NonPrivate) for one in entries):
            yield f"{file} does not say that the tokenizer voids the guarantee: {words.why_void}"


def _is_of(entry: Entry, fingerprint: str) -> bool:
    return entry.kind == "tokenizer" and entry.plan_hash == fingerprint
