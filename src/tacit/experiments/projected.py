"""What the noise of a small run would be worth where more people take part (design rule 10)."""

from __future__ import annotations

import math
from typing import Any

from tacit.experiments.grid import Projection
from tacit.mechanisms.planning import Question, answers
from tacit.privacy.claims import PROJECTED
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
