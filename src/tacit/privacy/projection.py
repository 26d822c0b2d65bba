"""The papers' extrapolation: what an experiment at a small cohort would cost at a large one.

A model's accuracy depends on the noise on the *average* update, sigma, and on the clip norm S,
hardly on the cohort (McMahan et al. 2018, section 3).  So one trains with a small cohort at sigma,
and asks what guarantee the same sigma would carry at a cohort large enough: with C users on
average, the fixed-denominator estimator's sensitivity is S/C, and the noise multiplier is

    z = sigma C / S.

The result is a figure for a run that did not take place, and is labelled so (design rule 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tacit.privacy.events import PoissonGaussian
from tacit.privacy.records import OpenUnit, Positive, Record, at_least


@dataclass(frozen=True)
class Projection(Record):
    """A cohort and a population that a run did not have.

    Without a delta it is the run's own at its own population, and population^-1.1 elsewhere.
    Without a number of rounds it is the run's own; another one needs rounds that are all alike.
    """

    cohort: Positive
    population: Annotated[int, at_least(2)]
    delta: OpenUnit | None = None
    rounds: Annotated[int, at_least(1)] | None = None
    prefix: ClassVar[str] = "the projected "

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort > self.population:
            raise ValueError(
                f"the projected cohort must be at most the projected population of"
                f" {self.population:,}, got {self.cohort:g}"
            )

    def enlarge(self, event: PoissonGaussian, cohort: float, population: int) -> PoissonGaussian:
        """A round's event at the projected cohort, with the same noise on the average.

        `cohort` is the expected size of the run's largest cohort, which becomes the projected one;
        the cohorts of other rounds grow in proportion.  `population` is the run's own.
        """
        if math.isclose(cohort, self.cohort, rel_tol=1e-12):
            cohort = self.cohort  # q K is C but for its last bit
        larger = self.cohort / cohort
        q = min(event.sampling_prob * larger * (population / self.population), 1.0)
        return PoissonGaussian(q, event.noise_multiplier * larger)


@dataclass(frozen=True)
class SmallExperiment(Record):
    """What was really run: users per round, noise stddev on the average, and clip norm.

    Population and rounds are None where they are those that are projected to.
    """

    cohort: Positive
    noise_stddev: Positive  # sigma
    clip_norm: Positive
    population: Annotated[int, at_least(2)] | None = None
    rounds: Annotated[int, at_least(1)] | None = None
    prefix: ClassVar[str] = "the experiment's "

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the run itself."""
        return self.noise_multiplier_at(self.cohort)

    def noise_multiplier_at(self, cohort: float) -> float:
        """The noise multiplier of the same sigma at another cohort."""
        return self.noise_stddev * cohort / self.clip_norm
