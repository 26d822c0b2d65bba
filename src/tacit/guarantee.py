"""What a run may claim: its epsilon by every sound accountant, and the sentence that goes with it.

The figures come from the ledger alone.  The sentence says what they mean (design rule 2), what
they leave out, and how many other runs have used the same people's text (design rule 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.debts import Debt
from tacit.mechanisms.plan import RoundPlan
from tacit.privacy.accountants import accountant_named, sound_accountants
from tacit.privacy.claims import ALWAYS_EXCLUDED, claim_sentence, format_delta, format_epsilon
from tacit.privacy.events import Composition, NonPrivate
from tacit.privacy.ledger import Ledger
from tacit.runs.experiment import Experiment
from tacit.runs.register import Register

COUNTED = "the number of training users, which is published"
COUNTED_WITH_CLIENTS = (
    "the number of training users, which is published together with that of the audit's canary"
    " clients"
)
STARTED_ELSEWHERE = "the users of other corpora on whose text the starting model was trained"


@dataclass(frozen=True)
class Guarantee:
    """Everything that may be said about the privacy of a run."""

    rounds: int
    delta: float
    epsilon: dict[str, float]  # by accountant; infinite where there is no guarantee
    accountant: str
    claim: str
    others: str = ""  # about the other runs on the same corpus

    def as_row(self) -> dict[str, object]:
        """Under the names that scripts rely on; an infinite epsilon is null."""
        epsilon = {name: _finite(value) for name, value in self.epsilon.items()}
        return {
            "rounds": self.rounds,
            "delta": self.delta,
            "epsilon": epsilon,
            "accountant": self.accountant,
            "claim": self.claim,
            "other_runs": self.others or None,
        }


def guarantee(
    experiment: Experiment,
    plans: Sequence[RoundPlan],
    ledger: Ledger,
    *,
    register: Register | None = None,
    synthetic_users: bool = False,
    trained_on: Sequence[str] = (),
    debt: Debt = Debt(),  # noqa: B008  (frozen)
) -> Guarantee:
    """The guarantee of all that the ledger holds, and of what the tokenizer was learnt from."""
    composition, delta = ledger.composition(), ledger.header.delta
    rounds = sum(entry.kind == "round" for entry in ledger.entries)
    name = experiment.privacy.accountant or "pld"
    epsilon = {
        by: max(value, debt.epsilon_beside(by, delta))
        for by, value in figures(composition, delta, name).items()
    }
    excluded = _excluded(experiment, trained_on, debt)
    claim = _claim(plans, composition, delta, epsilon[name], rounds, name, excluded)
    if composition.is_private and rounds and (more := debt.sentence(name, delta)):
        claim = f"{claim}  {more}"
    if synthetic_users:
        claim = (
            "No claim about people: the users of this run are synthetic, and a guarantee for them"
            " says nothing about anybody."
        )
    elif experiment.seed is not None:
        claim = f"Simulation, not for release, because its noise follows from a seed.  {claim}"
    if experiment.audit.is_on:
        claim = f"Audit run, with canaries planted among its texts or users.  {claim}"
    others = others_on_record(register, ledger.header.run_id, delta, name) if register else ""
    return Guarantee(rounds, delta, epsilon, name, claim, others)


def figures(composition: Composition, delta: float, name: str) -> dict[str, float]:
    """Epsilon by accountant, the named one first."""
    if not composition.is_private:
        return {name: math.inf}
    if not composition.costly():
        return {name: 0.0}
    found = {name: accountant_named(name).epsilon(composition, delta)}
    sound, _ = sound_accountants(composition)
    for accountant in sound:
        if accountant.name != name:
            found[accountant.name] = accountant.epsilon(composition, delta)
    return found


def _excluded(experiment: Experiment, trained_on: Sequence[str], debt: Debt) -> list[str]:
    """What the claim leaves out."""
    excluded = list(ALWAYS_EXCLUDED)
    if experiment.plan.population_is_counted:
        excluded.append(COUNTED_WITH_CLIENTS if experiment.audit.canary_clients else COUNTED)
    if experiment.corpus.users is not None:
        excluded.append(f"which users are the first {experiment.corpus.users:,} of the corpus")
    if experiment.audit.canaries is not None:
        excluded.append("how often each canary was planted, which is published")
    if trained_on:
        excluded.append(STARTED_ELSEWHERE)
    return [*excluded, *debt.excluded]


def _claim(
    plans: Sequence[RoundPlan],
    composition: Composition,
    delta: float,
    epsilon: float,
    rounds: int,
    accountant: str,
    excluded: Sequence[str],
) -> str:
    reasons = sorted(
        {event.reason for event, _ in composition.counts if isinstance(event, NonPrivate)}
    )
    if reasons:
        return f"No differential privacy: {'; '.join(reasons)}."
    if rounds == 0:
        return "Nothing was released yet: no round has been run."
    plan = plans[0]
    noises = {plan.event_multiplier for plan in plans if plan.is_private}
    samplers = list(dict.fromkeys(plan.sampler.describe() for plan in plans))
    described = " and then ".join(samplers)
    if len(noises) > 1:
        described += f" in {len(plans)} phases, of which the one with the least noise is stated"
    return claim_sentence(
        epsilon=epsilon,
        delta=delta,
        unit=plan.unit,
        adjacency=plan.adjacency,
        population=plan.population,
        sampler=described,
        rounds=rounds,
        noise_multiplier=min(noises) if noises else None,
        accountant=accountant,
        excluded=excluded,
    )


def others_on_record(register: Register, run_id: str, delta: float, name: str) -> str:
    """What else was trained on these people's text, as sentences; nothing if nothing was."""
    others = register.others(run_id)
    if not others:
        return ""
    spent = register.spent()
    parts = [f"This corpus has {others} other run{'s' if others > 1 else ''} on record."]
    if spent.private > 1:
        together = accountant_named(name).epsilon(spent.composition, delta)
        parts.append(
            f"All {spent.private} private ones together: epsilon {format_epsilon(together)} at"
            f" delta {format_delta(delta)}, by {name}."
        )
    if spent.without_noise:
        parts.append(f"{spent.without_noise} without privacy, which must not be released.")
    if spent.simulations:
        parts.append(f"{spent.simulations} with a seed, which must not be released.")
    if spent.missing:
        parts.append(f"{spent.missing} whose ledger is gone: nobody knows what they cost.")
    return " ".join(parts)


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
