"""What is charged: plausible as a sequence, within the budget, and free where it says so."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.config.experiment import Experiment
from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import format_epsilon
from tacit.privacy.events import NonPrivate, PostProcessing
from tacit.runs.bundle import EXPORTED
from tacit.tasks.language.coins import COMMITTED
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import epoch_steps
from tacit.verification.evidence import Evidence

FREE = ("canaries", COMMITTED, EXPORTED)
KINDS = ("round", "tokenizer", "vocabulary", "scaling", *FREE)


def adjacency(evidence: Evidence) -> Iterator[str]:
    """Each event is stated for the header's adjacency, or for any."""
    stated = evidence.ledger.header.adjacency
    for entry in evidence.ledger.entries:
        if entry.event.adjacency not in (None, stated):
            yield (
                f"{evidence.ledger.path}: entry {entry.index} is stated for"
                f" {entry.event.adjacency} adjacency, and the header for {stated}"
            )


def kinds(evidence: Evidence) -> Iterator[str]:
    """A run makes releases of a few kinds; those that only record something cost nothing."""
    file = evidence.ledger.path
    for entry in evidence.own:
        if entry.kind not in KINDS:
            yield f"{file}: entry {entry.index} is of a kind that no training makes, {entry.kind!r}"
        if entry.kind in FREE and not isinstance(entry.event, PostProcessing):
            yield f"{file}: entry {entry.index} ({entry.kind}) must cost nothing"
        if entry.kind == "tokenizer" and not isinstance(entry.event, PostProcessing | NonPrivate):
            yield f"{file}: entry {entry.index}: a tokenizer's cost is in entries of its own"


def attempts(evidence: Evidence) -> Iterator[str]:
    """The attempts at a round are 0, 1, 2, ..., and no round is left out."""
    file, counted = evidence.ledger.path, evidence.ledger.header.counted.removesuffix("s")
    seen: dict[int, int] = {}
    for entry in evidence.charged:
        expected = seen.get(entry.round, -1) + 1
        if entry.attempt != expected:
            what = "a second time" if entry.attempt < expected else f"and not attempt {expected}"
            yield (
                f"{file}: entry {entry.index} charges {counted} {entry.round}, attempt"
                f" {entry.attempt}, {what}"
            )
        seen[entry.round] = max(entry.attempt, seen.get(entry.round, 0))
    step = _step(sorted(seen), evidence)
    for place, round in enumerate(sorted(seen)):
        if round != evidence.ledger.header.first_round + place * step:
            yield f"{file}: no charge of the {counted} before {counted} {round}"
            return


def _step(rounds: list[int], evidence: Evidence) -> int:
    """By how much a round's number grows: that of an epoch is its first step's."""
    experiment = evidence.experiment
    is_by_epoch = isinstance(experiment, NluExperiment) and (
        experiment.training.method not in PRIVATE or not experiment.noise.noise_multiplier
    )
    return rounds[1] if is_by_epoch and len(rounds) > 1 else 1


def enough(evidence: Evidence) -> Iterator[str]:
    """As many charged as the last checkpoint has behind it, and no more than were planned."""
    experiment, file = evidence.experiment, evidence.ledger.path
    rounds = {entry.round for entry in evidence.charged}
    if isinstance(experiment, Experiment):
        planned = range(evidence.ledger.header.first_round, experiment.rounds)
        if evidence.is_bundle:
            done, where = evidence.bundle.round, f"the model of {evidence.path}"
        else:
            done = evidence.last.leg
            where = str(evidence.directory.checkpoints.state_file(done))
        missing = done - evidence.ledger.header.first_round - len(rounds)
    else:
        in_epoch = _epoch_charges(experiment)
        planned = range(experiment.training.epochs * in_epoch if in_epoch > 1 else 2**62)
        done = evidence.last.leg
        where = str(evidence.directory.checkpoints.state_file(done))
        missing = done * in_epoch - len(rounds)
    if missing > 0:
        yield f"{where} is after round {done}, and {file} has {missing} too few charges for it"
    if rounds and (max(rounds) not in planned or min(rounds) not in planned):
        yield (
            f"{file} charges round {max(rounds)}, and {evidence.directory.experiment_file} plans"
            f" {planned.stop}"
        )


def _epoch_charges(experiment: NluExperiment) -> int:
    """How many charges an epoch has."""
    if experiment.training.method not in PRIVATE or not experiment.noise.noise_multiplier:
        return 1
    assert experiment.noise.population is not None
    return epoch_steps(experiment, experiment.noise.population)


def budget(evidence: Evidence) -> Iterator[str]:
    """What is charged is within the run's own budget."""
    header, ledger = evidence.ledger.header, evidence.ledger
    if header.budget is None or not any(entry.kind == "round" for entry in evidence.own):
        return
    name, delta = header.budget.accountant, header.budget.delta
    composition = ledger.composition()
    known = evidence.guarantee.epsilon
    if not composition.is_private:
        yield f"{ledger.path} has a budget, and releases without any noise"
        return
    is_known = name in known and delta == header.delta and not header.prior_costs
    spent = known[name] if is_known else accountant_named(name).epsilon(composition, delta)
    if spent > header.budget.epsilon:
        yield (
            f"{ledger.path} has charged epsilon {format_epsilon(spent)} by {name}, and its budget"
            f" is {header.budget.epsilon:g}"
        )
