"""What the noise of a small run would be worth where more people take part (design rule 10).

The same noise on the average of a cohort of C' instead of C is a larger multiplier, z C'/C (McMahan
et al. 2018, section 3).
"""

from __future__ import annotations

import math
from typing import Any

from tacit.debts import spent
from tacit.experiments.grid import Projection
from tacit.mechanisms.planning import Question, answers
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import Composition, Event, Gaussian, Lapse, PoissonGaussian, PureDP
from tacit.privacy.ledger import Ledger
from tacit.privacy.projection import SmallExperiment
from tacit.run import Run


def projected(run: Run, to: Projection) -> dict[str, Any]:
    """Epsilon of the same noise on the average at another cohort and population."""
    plan, found = run.plans()[0], run.guarantee()
    small = SmallExperiment(
        cohort=plan.expected_cohort,
        noise_stddev=plan.noise_stddev(),
        clip_norm=plan.initial_clip_state().total_norm,
        population=plan.population,
        rounds=found.rounds,
    )
    question = Question(
        population=to.population,
        cohort=to.cohort,
        rounds=to.rounds or found.rounds,
        noise_multiplier=None,
        delta=to.delta,
        sampling=to.sampling,
        experiment=small,
    )
    (answer, *_), _ = answers(question)
    return {
        "label": PROJECTED,
        "epsilon": answer.epsilon if math.isfinite(answer.epsilon) else None,
        "delta": answer.delta,
        "cohort": to.cohort,
        "population": to.population,
        "accountant": answer.accountant,
        "claim": answer.claim,
    }


def has_one_kind_of_round(ledger: Ledger) -> bool:
    """Whether all that was charged is the same event: `projected` knows one plan and no other."""
    return len(ledger.composition().costly()) == 1


def projected_ledger(ledger: Ledger, to: Projection, accountant: str) -> float:
    """Epsilon of all that a ledger holds, where more people take part.

    A release from everybody costs what it costs.  Other ways of sampling than Poisson are not
    projected: infinity.
    """
    events: list[tuple[Event, int]] = []
    for event, count in ledger.composition().costly():
        if isinstance(event, PoissonGaussian) and to.sampling == "poisson":
            times = to.cohort / (event.sampling_prob * ledger.header.population)
            larger = PoissonGaussian(
                sampling_prob=to.cohort / to.population,
                noise_multiplier=event.noise_multiplier * times,
            )
            events.append((larger, to.rounds or count))
        elif isinstance(event, PureDP | Gaussian | Lapse):
            events.append((event, count))
        else:
            return math.inf
    return spent(Composition.of(events), accountant, to.delta)
