"""A round of private training, and what it costs.

A `RoundPlan` holds the public choices of a round and derives everything else from them: the noise,
the adjacency, the privacy event, the claim.  Nobody writes an event by hand, so what is accounted
for is what is run.  The mechanism has two points: `contribution` on a user (clip, weigh, quantise)
and `release` on the server (estimate, add noise, divide).  Between them there is only an integer
sum.

Where the noise is one that users share (`DistributedNoise`), it is in their contributions already,
on the grid of that noise; the release has none to add, and only undoes grid and rotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms import clipping, refusals
from tacit.mechanisms.clipping import Clipper, ClipSchedule, ClipState, QuantileClip
from tacit.mechanisms.distributed_noise import DistributedNoise, OwnStream
from tacit.mechanisms.estimators import Estimator, UserWeighting
from tacit.mechanisms.fixed_point import (
    CLIP_BITS,
    HALF_CLIP_BIT,
    WHOLE_WEIGHT,
    Contribution,
    IntegerGrid,
    Integers,
)
from tacit.mechanisms.noise import IndependentNoise, NoiseState, RoundNoise, add_gaussian
from tacit.mechanisms.noise_picture import NoisePicture
from tacit.mechanisms.parts import PlanPart
from tacit.mechanisms.samplers import Cohort, Sampler, TurnSampler
from tacit.mechanisms.turns import FIRST, Position, Turns
from tacit.privacy import events, records
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency, Composition, Event
from tacit.privacy.guarantee import Guarantee, ReleaseGroup
from tacit.privacy.ledger_lines import Header, Unit
from tacit.privacy.records import at_least
from tacit.privacy.stream import Stream

UPDATE_NOISE = "update-noise"
BIT_NOISE = "bit-noise"


@dataclass(frozen=True)
class Release:
    """What a round makes public, the average update and the next clip norms; and a secret.

    `noise_state` is what the next round's noise depends on.  It is empty for independent noise; any
    other is to be kept like the run's key.
    """

    average: NDArray[np.float64]
    clip_state: ClipState
    noise_state: NoiseState = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class RoundPlan(PlanPart):
    """The public facts of a round: one plan for all rounds of a phase.

    `population` is K, declared and never counted.  Without `noise` the plan is not private, and
    its event accounts to infinity.  `weight_aware` clips w_k times the update to S rather than the
    update: all that the fixed denominator needs (McMahan et al. 2018, footnote 3), and kinder to
    users of little weight.

    Guarantee: for every clip state, `release` of the summed contributions of a drawn cohort is one
    release of `event()`.
    """

    population: Annotated[int, at_least(1)]
    sampler: Sampler
    clipper: Clipper
    estimator: Estimator
    noise: RoundNoise | None = None
    weighting: UserWeighting = field(default_factory=UserWeighting)
    schedule: ClipSchedule = field(default_factory=clipping.ConstantClip)
    adaptive: QuantileClip | None = None
    layers: tuple[int, ...] | None = None
    weight_aware: bool = False
    unit: Unit = "user"
    kind: ClassVar[str] = "round-plan"

    def __post_init__(self) -> None:
        super().__post_init__()
        refusals.check_plan(self)

    # What follows from the fields.

    @property
    def is_private(self) -> bool:
        """Whether there is noise, and so a guarantee."""
        return self.noise is not None

    @property
    def noise_multiplier(self) -> float | None:
        """z, or None without noise."""
        return self.noise.noise_multiplier if self.noise else None

    @property
    def adjacency(self) -> Adjacency:
        """What two neighbouring datasets differ in, by the sampler and the noise."""
        return self.noise.adjacency(self.sampler) if self.noise else self.sampler.adjacency

    @property
    def shared_noise(self) -> DistributedNoise | None:
        """The noise, if it is the users who add it."""
        return self.noise if isinstance(self.noise, DistributedNoise) else None

    @property
    def expected_cohort(self) -> float:
        """qK, from declared constants alone."""
        return self.sampler.sampling_prob * self.population

    @property
    def bits(self) -> int:
        """m, how many clip bits each user contributes."""
        return len(self.clipper.norms) if self.adaptive else 0

    @property
    def bit_noise_stddev(self) -> float:
        """sigma_b, on the sums of bits; 0 without noise or without bits."""
        if self.adaptive is None or not self.is_private:
            return 0.0
        return self.adaptive.noise_stddev(self.expected_cohort)

    @property
    def update_noise_multiplier(self) -> float:
        """z, or what of it the clip bits leave for the update; 0 without noise."""
        z = self.noise_multiplier or 0.0
        if not z or not self.bits:
            return z
        return clipping.split_noise_multiplier(z, self.bit_noise_stddev, self.bits)

    def noise_stddev(self, clip_state: ClipState | None = None) -> float:
        """sigma, on the average: zS/(qW), or 2zS/(qW_min) with the clipped denominator."""
        if not self.is_private:
            return 0.0
        state = clip_state or self.initial_clip_state()
        return self.relative_noise * state.total_norm / self._denominator

    @property
    def relative_noise(self) -> float:
        """The noise on the sum in multiples of S: z times what the paper's estimator needs."""
        if not self.is_private:
            return 0.0
        scale = self.estimator.relative_sensitivity(Adjacency.ADD_REMOVE)
        return self.update_noise_multiplier * scale

    def releases(self, rounds: int) -> Composition:
        """What `rounds` rounds release, as accountants read it."""
        if self.noise is None:
            return Composition.of([(self.event(), rounds)])
        return self.noise.releases(self.sampler, self.event_multiplier, rounds)

    def event(self, at: Position = FIRST) -> Event:
        """What one round releases; where users take turns, what its horizon has so far."""
        if self.noise is None:
            return events.NonPrivate("no noise is added to the updates")
        return self.noise.event(self.sampler, self.event_multiplier, at)

    @property
    def has_horizon(self) -> bool:
        """Whether its rounds are charged together, as those of a horizon."""
        return self.is_private and isinstance(self.sampler, TurnSampler)

    @property
    def event_multiplier(self) -> float:
        """Noise stddev / sensitivity under the sampler's own adjacency, update and bits together.

        Under add/remove-one this is z; under replace-one, where the same noise has to hide more,
        z/2 with the fixed denominator and 2z/3 with the clipped one.  Where users take turns it is
        z/2 with either: who leaves and who comes may be of two groups, so that a round sees only
        one of them, and their moves of all rounds add up.
        """
        assert self.is_private, "a plan without noise has no multiplier"
        sensitivity = self.estimator.relative_sensitivity(self.adjacency)
        if isinstance(self.sampler, TurnSampler) and self.adjacency is Adjacency.REPLACE:
            sensitivity = 2 * self.estimator.relative_sensitivity(Adjacency.ADD_REMOVE)
        update = self.relative_noise / sensitivity
        return clipping.joint_noise_multiplier(
            update, self.bit_noise_stddev, self.bits, self.adjacency
        )

    def noise_picture(self, rounds: int) -> NoisePicture | None:
        """How the noise of so many rounds is correlated; None if it is not."""
        return NoisePicture.of(self.noise, self.sampler, rounds)

    # A round.

    def cohort(
        self, users: int, stream: Stream, round: int = 0, turns: Turns | None = None
    ) -> Cohort:
        """Sorted indices of this round's users, out of `users` actual ones.

        Where they take turns, `turns` are theirs.
        """
        if users > self.population:
            raise ValueError(
                f"population must be at least the number of {self.unit}s, {users}, got"
                f" {self.population}; declare a population that they cannot exceed"
            )
        if isinstance(self.sampler, TurnSampler):
            assert turns is not None, "users take turns, and whose turn it is must be given"
            group = turns.of_round(round)
            return group[self.sampler.draw(len(group), stream)]
        return self.sampler.draw(users, stream)

    def refuse_few(self, users: int, round: int) -> None:
        """Raise if the sum of so many has less noise than is accounted for."""
        noise = self.shared_noise
        if noise is not None and users < noise.survivors:
            raise ValueError(
                f"round {round} has {users} {self.unit}s, and the noise that they share is made for"
                f" {noise.survivors} at least: nothing of it is released or charged; set"
                " plan.survivors to the fewest that there may be"
            )

    def initial_clip_state(self) -> ClipState:
        """The public clip norms of round 0."""
        return self.schedule.state(self.clipper.norms, 0)

    def empty(self, size: int) -> Contribution:
        """The sum over no users, for updates of `size` values."""
        noise = self.shared_noise
        return Contribution.zero(size if noise is None else noise.rotation.padded, self.bits)

    def contribution(
        self,
        update: NDArray[Any],
        examples: int,
        clip_state: ClipState,
        own: OwnStream | None = None,
    ) -> Contribution:
        """One user's part of the sum; `own` is the user's, for a share of the noise.

        Guarantee: a function of this user and of public values alone.  With w the quantised weight,
        the exact norm of the quantised update is at most wS (at most S if `weight_aware`), and each
        bit is +-1/2.
        """
        if self.layers is not None and update.size != sum(self.layers):
            raise ValueError(f"update must have {sum(self.layers)} values, got {update.size}")
        weight = self.weighting.weigh(examples)
        if self.weight_aware:
            update = update.astype(np.float64) * (weight / WHOLE_WEIGHT)
        clipped = self._clipper(clip_state).clip(update, self.layers)
        still_to_weigh = WHOLE_WEIGHT if self.weight_aware else weight
        grid, noise = self.grid(clip_state), self.shared_noise
        units = grid.quantise(clipped.values, still_to_weigh)
        if noise is not None:
            if own is None:
                raise ValueError("users who share the noise need a stream of their own for it")
            shared = noise.share(units * grid.step, clip_state, own(units))
            return Contribution(shared, 0, np.zeros(0, np.int64))
        within = np.array(clipped.within[: self.bits], np.bool_)
        return Contribution(units, weight, np.where(within, HALF_CLIP_BIT, -HALF_CLIP_BIT))

    def add(
        self,
        total: Contribution,
        update: NDArray[Any],
        examples: int,
        clip_state: ClipState,
        own: OwnStream | None = None,
    ) -> None:
        """total += contribution(...), with the same bits, without writing a contribution down."""
        writes = self.weight_aware or self.shared_noise is not None
        scale = None if writes else self._clipper(clip_state).scale(update)
        if scale is None or update.shape != total.update.shape:
            total += self.contribution(update, examples, clip_state, own)
            return
        weight = self.weighting.weigh(examples)
        self.grid(clip_state).add_(total.update, update, scale, weight)
        total.weight += weight
        # One norm for the whole update, so at most one bit.
        total.bits += HALF_CLIP_BIT if scale == 1 else -HALF_CLIP_BIT

    def statistic(self, total: Contribution) -> NDArray[Any]:
        """What the noise is added to, in steps of the grid; private, as the sum is."""
        weight_sum = total.weight / WHOLE_WEIGHT
        return self.estimator.statistic(total.update, weight_sum, self.sampler.sampling_prob)

    def release(
        self,
        total: Contribution,
        clip_state: ClipState,
        stream_for: Callable[[str], Stream],
        noise_state: NoiseState = (),
    ) -> Release:
        """The noisy average and the next clip norms, from the sum of contributions.

        `clip_state` has to be the one that the contributions were made with, and `noise_state` that
        of the release before.  `stream_for` gives the stream of a purpose.  An empty cohort is
        released like any other.
        """
        if len(total.bits) != self.bits:
            raise ValueError(f"total must have {self.bits} clip bits, got {len(total.bits)}")
        if self.shared_noise is not None:
            average = self.shared_noise.total(total.update, clip_state) / self._denominator
            return Release(average, self._next_clip_state(clip_state, total.bits, stream_for))
        step = self.grid(clip_state).step
        statistic = self.statistic(total)
        if self.noise is not None:
            statistic, noise_state = self.noise.add(
                statistic, self.noise_steps(clip_state), noise_state, stream_for(UPDATE_NOISE)
            )
        average = statistic * (step / self._denominator)
        next_clip_state = self._next_clip_state(clip_state, total.bits, stream_for)
        return Release(average, next_clip_state, noise_state)

    def noise_steps(self, clip_state: ClipState) -> float:
        """The standard deviation of a round's fresh noise, in steps of the grid."""
        return self.relative_noise * clip_state.total_norm / self.grid(clip_state).step

    def _next_clip_state(
        self, now: ClipState, bits: Integers, stream_for: Callable[[str], Stream]
    ) -> ClipState:
        """The next round's S: by the schedule, or from the noisy clip bits."""
        if self.adaptive is None:
            return self.schedule.state(self.clipper.norms, now.round + 1)
        if self.is_private:
            stddev = self.bit_noise_stddev * 2.0**CLIP_BITS
            bits = add_gaussian(bits, stddev, stream_for(BIT_NOISE))
        sums = [int(units) * 2.0**-CLIP_BITS for units in bits]
        norms = self.adaptive.next_norms(now.norms, sums, self.expected_cohort)
        return ClipState(norms, now.round + 1)

    @property
    def _denominator(self) -> float:
        """qW or qW_min: the public constant that the noisy statistic is divided by."""
        return self.estimator.denominator(self.sampler.sampling_prob)

    def _clipper(self, clip_state: ClipState) -> Clipper:
        """The plan's way of clipping with the norms of this round."""
        if len(clip_state.norms) != len(self.clipper.norms):
            raise ValueError(
                f"clip_state must have {len(self.clipper.norms)} norms, got {len(clip_state.norms)}"
            )
        return self.clipper.with_norms(clip_state.norms)

    def grid(self, clip_state: ClipState) -> IntegerGrid:
        """The grid that the sums of a round with these clip norms are on."""
        if not clip_state.norms:
            return IntegerGrid.unclipped(self.sampler.largest_cohort(self.population))
        return IntegerGrid.for_clip(clip_state.total_norm, self.population, self.relative_noise)

    # What others read.

    def guarantee(
        self, epsilon: float, delta: float, accountant: str, rounds: int, *, projected: bool = False
    ) -> Guarantee:
        """What `rounds` rounds of this plan would be worth: for a training that is only planned."""
        header = Header(
            run_id="planned",
            unit=self.unit,
            population=self.population,
            delta=delta,
            adjacency=self.adjacency,
            accountant=accountant,
            excluded=ALWAYS_EXCLUDED,
        )
        last = replace(FIRST, rounds=rounds)
        part = ReleaseGroup("round", self.event(last), rounds, self.estimator_name)
        return Guarantee(header, (part,), {accountant: epsilon}, accountant, projected)

    @property
    def estimator_name(self) -> str:
        """How the average is made of the sum, as the ledger has it."""
        return f"{self.estimator.kind}, adaptive" if self.adaptive else self.estimator.kind

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON types; `from_json` is the inverse.

        Independent noise (or none) is written as its multiplier alone, as it was before there was
        any other: ledgers have the hash of this.
        """
        data = super().to_json()
        noise = data["noise"]
        if noise is None or noise["kind"] == IndependentNoise.kind:
            del data["noise"]
            data["noise_multiplier"] = noise and noise["noise_multiplier"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan that `to_json` wrote; anything unknown in it is refused."""
        data = dict(data)
        if "noise" not in data and "noise_multiplier" in data:
            z = data.pop("noise_multiplier")
            independent = {"kind": IndependentNoise.kind, "noise_multiplier": z}
            data["noise"] = None if z is None else independent
        return super().from_json(data)

    def hash(self) -> str:
        """SHA-256 over all public fields: equal plans have equal hashes."""
        return hashlib.sha256(records.canonical_json(self.to_json()).encode()).hexdigest()
