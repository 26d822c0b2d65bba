"""The papers' extrapolation: what an experiment at a small cohort would cost at a large one.

A model's accuracy depends on the noise on the *average* update, sigma, and on the clip norm S,
hardly on the cohort (McMahan et al. 2018, section 3).  So one trains with a small cohort at sigma,
and asks what guarantee the same sigma would carry at a cohort large enough: with C users on
average, the fixed-denominator estimator's sensitivity is S/C, and the noise multiplier is

    z = sigma C / S.

The result is a figure for a run that did not take place, and is labelled so (design rule 10).
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.privacy import checks


@dataclass(frozen=True)
class SmallExperiment:
    """What was really run: users per round, noise stddev on the average, and clip norm.

    Its population and rounds, where they differ from those that are projected to.
    """

    cohort: float
    noise_stddev: float
    clip_norm: float
    population: int | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        checks.positive("cohort", self.cohort)
        checks.positive("noise_stddev (sigma)", self.noise_stddev)
        checks.positive("clip_norm", self.clip_norm)
        if self.rounds is not None:
            checks.whole("the experiment's rounds", self.rounds, at_least=1)
        if self.population is not None:
            checks.whole("the experiment's population", self.population, at_least=2)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the run itself."""
        return self.noise_multiplier_at(self.cohort)

    def noise_multiplier_at(self, cohort: float) -> float:
        """The noise multiplier of the same sigma at another cohort."""
        return self.noise_stddev * cohort / self.clip_norm

    def cohort_for(self, noise_multiplier: float) -> float:
        """The cohort at which the same sigma has this noise multiplier."""
        return noise_multiplier * self.clip_norm / self.noise_stddev
