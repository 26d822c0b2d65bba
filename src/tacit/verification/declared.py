"""The header against the experiment that was run: each value that a claim rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import is_synthetic
from tacit.privacy.budget import Budget
from tacit.privacy.claims import ALWAYS_EXCLUDED, SETTINGS
from tacit.privacy.events import Adjacency, Composition, NonPrivate
from tacit.tasks.language.beginning import CANARIES, CLIENTS
from tacit.tasks.nlu.beginning import PER_UTTERANCE, VALID_AND_TEST
from tacit.tasks.nlu.experiment import PRIVATE, NluExperiment
from tacit.tasks.nlu.plan import releases
from tacit.tokenizers.provenance import ORACLE
from tacit.verification.evidence import Evidence


def header(evidence: Evidence) -> Iterator[str]:
    """Each value that both have; a difference is named with both."""
    stated, experiment = evidence.ledger.header, evidence.experiment
    expected = (
        _of_language_model(evidence, experiment)
        if isinstance(experiment, Experiment)
        else _of_nlu(experiment)
    )
    for name, value in expected.items():
        found = getattr(stated, name)
        if found != value:
            yield _differs(evidence, name, found, value)
    asked = experiment.privacy.accountant
    if stated.accountant not in (None, asked):
        yield _differs(evidence, "accountant", stated.accountant, asked)
    views = _views(experiment)
    if stated.view not in views:
        yield _differs(evidence, "view", stated.view, " or ".join(views))
    for words in _left_out(experiment):
        if words not in stated.excluded:
            yield f"{evidence.ledger.path}: its header does not exclude {words}"
    for what in _public(evidence, experiment):
        if what not in [one.what for one in stated.public_inputs]:
            yield f"{evidence.ledger.path}: its header does not list the {what} as declared public"


def _differs(evidence: Evidence, name: str, found: object, value: object) -> str:
    return (
        f"{evidence.ledger.path}: {name} is {_shown(found)} in its header, and"
        f" {_shown(value)} in {evidence.directory.experiment_file}"
    )


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _of_language_model(evidence: Evidence, experiment: Experiment) -> dict[str, Any]:
    plan, privacy = experiment.plan, experiment.privacy
    is_about_people = evidence.ledger.header.view != "synthetic"
    inherited = evidence.ledger.entries[: _inherited(evidence)]
    events = [*(entry.event for entry in inherited), *(one.event() for one in evidence.plans())]
    return {
        "unit": "user",
        "people": experiment.corpus.identity if is_about_people else "",
        "part": experiment.corpus.part,
        "counted": "rounds",
        "population": plan.population,
        "population_is_counted": plan.population_is_counted,
        "delta": privacy.delta,
        "budget": _budget(privacy.budget_epsilon, privacy.delta, privacy.accountant),
        "simulation": experiment.seed is not None,
        "audit": experiment.audit.is_on,
        "adjacency": Composition.of(events).adjacency,
    }


def _inherited(evidence: Evidence) -> int:
    parent = evidence.ledger.header.parent
    return parent.head.entries if parent else 0


def _of_nlu(experiment: NluExperiment) -> dict[str, Any]:
    training, noise, privacy = experiment.training, experiment.noise, experiment.privacy
    return {
        "unit": training.unit,
        "counted": "steps" if training.method in PRIVATE else "epochs",
        "population": noise.population,
        "population_is_counted": noise.population_is_counted,
        "delta": privacy.delta,
        "budget": _budget(privacy.budget_epsilon, privacy.delta, privacy.accountant or "pld"),
        "simulation": experiment.seed is not None,
        "audit": False,
        "adjacency": _nlu_adjacency(experiment),
    }


def _nlu_adjacency(experiment: NluExperiment) -> Adjacency | None:
    if experiment.training.method in PRIVATE:
        return releases(experiment).adjacency
    is_noisy = experiment.training.method != "sgd" and experiment.noise.noise_multiplier
    return Adjacency.REPLACE if is_noisy else None


def _budget(epsilon: float | None, delta: float | None, accountant: str | None) -> Budget | None:
    if epsilon is None:
        return None
    assert delta is not None
    assert accountant is not None
    return Budget(epsilon, delta, accountant)


def _views(experiment: Experiment | NluExperiment) -> tuple[str, ...]:
    """Whose texts they can be; only the corpus knows whether its people were made up."""
    if isinstance(experiment, NluExperiment):
        made_up = experiment.data.source.partition(":")[0] == "generated"
        return ("synthetic",) if made_up else ("people",)
    if is_synthetic(experiment.corpus.source):
        return ("synthetic",)
    return ("iid" if experiment.corpus.view == "iid" else "people", "synthetic")


def _left_out(experiment: Experiment | NluExperiment) -> Iterator[str]:
    """What a header has to exclude, whatever the corpus adds to it."""
    if isinstance(experiment, NluExperiment):
        yield from (SETTINGS, VALID_AND_TEST)
        if experiment.training.unit == "record":
            yield PER_UTTERANCE
        return
    yield from ALWAYS_EXCLUDED
    if experiment.plan.population_is_counted and experiment.audit.canary_clients:
        yield CLIENTS
    if experiment.corpus.users is not None:
        yield f"which users are the first {experiment.corpus.users:,} of the corpus"
    if experiment.audit.canaries is not None:
        yield CANARIES


def _public(evidence: Evidence, experiment: Experiment | NluExperiment) -> Iterator[str]:
    """What is declared public by being named in an experiment."""
    if isinstance(experiment, NluExperiment):
        if experiment.model.vocabulary != ORACLE and not experiment.model.pretrained:
            yield "dictionary"
        if experiment.model.vectors:
            yield "word vectors"
        if experiment.model.pretrained:
            yield "trained weights"
        return
    if _has_public_words(evidence):
        yield "dictionary"
    if experiment.model.start:
        yield "starting weights"
    if experiment.model.pretrain is not None:
        yield "pre-training text"
    if isinstance(experiment.model.public_output_bias, str):
        yield "word frequencies"
    if experiment.plan.clip_norm_from:
        yield "text behind the clip norm"


def _has_public_words(evidence: Evidence) -> bool:
    """Whether the first tokenizer is neither from people's text nor paid for by anybody."""
    ledger = evidence.ledger
    first = next((entry for entry in ledger.entries if entry.kind == "tokenizer"), None)
    is_void = first is not None and isinstance(first.event, NonPrivate)
    return not is_void and all(cost.what != "tokenizer" for cost in ledger.header.prior_costs)
