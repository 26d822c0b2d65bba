"""What the same noise on the average would cost with more users: a figure for no run that was.

A model's accuracy depends on the noise on the average update, sigma, and hardly on the cohort
(McMahan et al. 2018, section 3).  With a fixed denominator sigma is zS/C where C users take part on
average, so that the same sigma at C' users is a noise multiplier of z C'/C.  The result is labelled
wherever it stands (design rule 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.privacy import checks
from tacit.privacy.accountants import default_accountant
from tacit.privacy.claims import PROJECTED, claim_sentence, format_number
from tacit.privacy.events import Adjacency, Composition, PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.run import Run


@dataclass(frozen=True)
class Projection:
    """A cohort and a population that the run did not have; delta is population^-1.1."""

    cohort: float
    population: int

    def __post_init__(self) -> None:
        checks.positive("the projected cohort", self.cohort)
        checks.whole("the projected population", self.population, at_least=2)
        if self.cohort > self.population:
            raise ValueError(
                f"the projected cohort must be at most the projected population of"
                f" {self.population:,}, got {self.cohort:g}"
            )

    def facts(self, run: Run, guarantee: Guarantee) -> dict[str, Any]:
        """The projected figures of a run, with its rounds and its sigma."""
        plan, *later = run.plans()
        is_plain = (plan.sampler.kind, plan.estimator.kind) == ("poisson", "fixed-denominator")
        if later or not is_plain or plan.adaptive or not plan.noise_multiplier:
            raise ValueError(
                "a projection needs a private run of one phase with Poisson sampling, the fixed"
                " denominator and a clip norm that does not adapt"
            )
        if guarantee.rounds == 0:
            raise ValueError("a projection needs a run that has done at least one round")
        z = plan.noise_multiplier * self.cohort / plan.expected_cohort
        q, delta = self.cohort / self.population, float(self.population) ** -1.1
        composition = Composition.of([(PoissonGaussian(q, z), guarantee.rounds)])
        accountant = default_accountant(composition)
        epsilon = accountant.epsilon(composition, delta)
        sentence = claim_sentence(
            epsilon=epsilon,
            delta=delta,
            unit=plan.unit,
            adjacency=Adjacency.ADD_REMOVE,
            population=self.population,
            sampler=f"Poisson sampling with probability {format_number(q)}",
            rounds=guarantee.rounds,
            noise_multiplier=z,
            accountant=accountant.name,
            projected=True,
        )
        return {
            "label": PROJECTED,
            "sentence": sentence,
            "epsilon": epsilon,
            "delta": delta,
            "accountant": accountant.name,
            "cohort": self.cohort,
            "population": self.population,
            "sampling_prob": q,
            "noise_multiplier": z,
            "rounds": guarantee.rounds,
        }
