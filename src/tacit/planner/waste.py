"""What would be wasted: said before a training starts, with what would be better.

A training that takes days, or whose noise drowns what its users could teach, ends in a model that
knows nothing, and has spent people's privacy for it.  All of it can be known beforehand, from
public numbers and from the speed of this machine.  A training of a minute is not worth a warning.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.models.base import LanguageModel, layer_sizes, parameter_count
from tacit.planner.choice import noise_over_clip_norm
from tacit.planner.speed import measure_speed, tokens_per_round
from tacit.tasks.language import first_checks, plans
from tacit.tasks.language.people import People
from tacit.tasks.language.starts import fill_in_start

LONG = 3600.0  # seconds from which on a training says how long it takes
FEW = 10  # times fewer users than a recipe is meant for
# How many times the noise on an average may exceed, in norm, the longest average that clipping
# allows.  McMahan et al. 2018 (Figure 3: S = 20, 1.35 million weights) see almost no loss at
# sigma = 0.012, which is 0.7 times that, a small one at 0.024, and no accuracy left at 0.2, which
# is 12 times that.  With momentum and a rate that falls, models learnt at 5 times that
# (docs/results/own-text.md): only what is above is spoken of.
LOUD = 6.0
_SLOWEST = 2e9  # multiplications a second that any core is good for; most do ten times as many
_SHORT = 600.0  # seconds at that speed, about a minute in fact: not worth a word


def warnings_before(experiment: Experiment, run: str, workers: int) -> list[str]:
    """What a person should know before a new training starts; empty if all is well.

    Args:
        experiment: as it was asked for; noise that it leaves to be solved for is solved for here.
        run: where the run would be written, for the commands that are suggested.
        workers: how many processes will compute users' updates.

    Raises:
        ValueError: for what is refused before any work (`tasks.language.first_checks`).
    """
    experiment = fill_in_start(experiment)
    if _slowest_seconds(experiment) < _SHORT:
        return []
    people = People.of(experiment)  # of whom only the number is looked at
    first_checks.refuse_early(experiment, people, Path(run))  # no warning before a refusal
    model, users = first_checks.sized_model(experiment), first_checks.user_count(experiment, people)
    lines = [*_of_users(experiment, users), *_of_noise(experiment, users, model)]
    if _slowest_seconds(experiment) / workers >= LONG:
        lines += _of_time(experiment, model, workers)
    if lines and people.people:
        corpus = shlex.quote(experiment.source)
        lines.append(
            "a plan made for this corpus, this machine and half an hour: tacit train --corpus"
            f" {corpus} --run {shlex.quote(run)} --epsilon 8 --minutes 30"
        )
    return lines


def _slowest_seconds(experiment: Experiment) -> float:
    """An upper bound of what one process takes: known without a probe, and far too high."""
    tokens = experiment.rounds * experiment.plan.cohort * tokens_per_round(experiment)
    weights = parameter_count(first_checks.sized_model(experiment))
    return 6 * weights * tokens * experiment.update.local_epochs / _SLOWEST


def _of_users(experiment: Experiment, users: int) -> Iterator[str]:
    meant = experiment.about.users
    if meant is not None and users * FEW < meant:
        yield (
            f"{experiment.name} is meant for about {meant:,} users, and {experiment.source} has"
            f" {users:,} to train on: the same epsilon then takes far more noise"
        )


def _of_noise(experiment: Experiment, users: int, model: LanguageModel) -> Iterator[str]:
    weights = parameter_count(model)
    resolved = plans.resolved(experiment, users, layer_sizes(model))
    plan = plans.round_plans(resolved, layer_sizes(model))[0]
    times = noise_over_clip_norm(plan, weights, experiment.rounds)
    if times > LOUD:
        cohort = math.ceil(plan.expected_cohort * times)
        yield (
            f"the noise on each round's average, {plan.noise_stddev():.3g} on each of {weights:,}"
            f" weights, is {times:.1f} times as long as clipping at"
            f" {plan.initial_clip_state().total_norm:g} lets the average itself be, and models"
            f" learn little from about 6 on; it would take a cohort of about {cohort:,} users at"
            " this noise multiplier, fewer trained weights, or a larger epsilon"
        )


def _of_time(experiment: Experiment, model: LanguageModel, workers: int) -> Iterator[str]:
    seconds = measure_speed(experiment, model, workers=workers).seconds(experiment)
    if seconds >= LONG:
        hours = timedelta(minutes=math.ceil(float(f"{seconds / 60:.2g}")))
        yield (
            f"{experiment.rounds:,} rounds of {experiment.plan.cohort:g} users with up to"
            f" {tokens_per_round(experiment):,} tokens take up to about"
            f" {str(hours).removesuffix(':00')} hours on this machine; --rounds makes it shorter"
        )
