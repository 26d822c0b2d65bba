"""A sharp test of an implementation: one canary, in or out, over thousands of tiny trainings.

Each repetition draws cohorts, clips, weighs, sums and releases by the very `RoundPlan` that a real
training uses, with all randomness of its own.  In half of the repetitions a canary client takes
part; its update is along the first coordinate and ten clip norms long.  Where users take turns its
group follows from its name, as theirs from their ids; its name is one of the first group, whose
members have the most turns.  The statistic is made of the releases' first coordinates, in units of
what a clipped canary of weight 1 adds to one: 0 in the mean without the canary, and with it the
number of rounds it was drawn for.  Above a threshold the auditor says "in".

With independent noise the statistic is the sum over the rounds that the canary was drawn for.  With
correlated noise, C^-1 z in the rounds' first coordinates a, a sum over rounds would show less than
there is to be seen.  C a = C g + z has independent noise (it is whitened), and the canary, g = 1 in
the rounds it was drawn for, moves it by the sum p of these columns of C.  The best test looks along
p (it is a matched filter): k <p, C a> / |p|^2 with k the number of these rounds, which has
deviation k z / |p|.  Which rounds these are is seen from what the code does, not from what it
should do, so that a canary that is drawn too early shows.

Clopper and Pearson's limits on the false positive and the false negative rate, each at half of
1 - confidence, hold together with the given confidence.  From them:

- If the claim is exactly Gaussian (everybody in every round, or turns without a claim of sampling,
  so that the releases together are one Gaussian release), the mechanism is claimed to be mu-GDP,
  and for any test at all

      mu >= Phi^-1(1 - false positive rate) - Phi^-1(false negative rate)

  (Dong, Roth and Su 2022; as a lower bound Nasr et al. 2023).  The limits give a lower bound on mu,
  and the Gaussian formula turns it into epsilon at the claim's delta.  With the fixed denominator
  the test is the best one there is, so this is sharp: such a plan is the one to test with.  (With
  the clipped denominator, or when users are replaced rather than removed, one canary that comes or
  goes is less than the claim allows for, and the bound stays below it.)
- Otherwise (sampled cohorts), only what (epsilon, delta)-DP itself says about the two rates is
  used: epsilon >= log((1 - delta - one) / other), for both orders.  This is valid and blunt.

In both cases the limits are also held against the whole claimed curve: for every epsilon', one
rate must be at least 1 - delta(epsilon') - e^epsilon' times the other.  `contradicts_claim` says
whether that fails, which is sharper than the bound at one delta and equally valid.

Guarantee: if the implementation keeps the claim, `lower_bound` exceeds the claimed epsilon, or
`contradicts_claim` is true, with a probability of at most 1 - confidence.  This needs a threshold
that does not depend on the repetitions that are counted: it is given beforehand (one half of the
rounds that the canary is drawn for, for a Gaussian claim), or chosen in a pilot whose repetitions
are not counted again.  The best of many thresholds on the same repetitions would be no bound.

Some mistakes cost no privacy, such as noise that is never taken back, and others hide from a test
that looks along p.  So the noise itself is looked at as well: without the canary, C a / z has
independent standard normal values.  `noise_p` is the p-value of that.  If the implementation adds
the noise of the plan, it is below a level with a probability of at most that level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, erfc, ndtri

from tacit.audit.roc import _clopper_pearson
from tacit.mechanisms.noise import NoiseState
from tacit.mechanisms.noise_comparison import strategy_of
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import TurnSampler
from tacit.mechanisms.turns import Turns, turn_of
from tacit.privacy import checks
from tacit.privacy.accountants import Accountant, default_accountant
from tacit.privacy.events import Composition, Gaussian
from tacit.privacy.pld import gaussian_epsilon
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tacit.tasks.language.canary_clients import LENGTH

FEWEST_REPETITIONS = 200
_PILOT = 0.25  # of the repetitions, where the threshold is not given
_THRESHOLDS = 40  # tried in the pilot
_CURVE = tuple(np.r_[0.0, np.geomspace(0.02, 12.0, 24)].tolist())  # epsilons of the claimed curve

Values = NDArray[np.float64]


@dataclass(frozen=True)
class RepeatedRuns:
    """The auditor's errors, and what they prove, beside the claim.

    `mu` is the lower bound of Gaussian DP, and None where the claim is not exactly Gaussian.
    `ceiling` is what `lower_bound` would be without a single error.  `noise_p` is the p-value of
    the releases without a canary being noise of the plan's law.
    """

    lower_bound: float
    ceiling: float
    claimed_epsilon: float
    contradicts_claim: bool
    mu: float | None
    false_positives: int
    without_canary: int
    false_negatives: int
    with_canary: int
    threshold: float
    noise_p: float
    delta: float
    confidence: float


@dataclass(frozen=True)
class _Seen:
    """The releases' first coordinates in units of one canary: repetition by repetition, in rows."""

    plan: RoundPlan
    outs: Values  # without the canary
    ins: Values
    drawn: NDArray[np.bool_]  # by round: whether a canary was drawn for it in any repetition

    @property
    def times(self) -> int:
        """For how many rounds."""
        return int(self.drawn.sum())

    @cached_property
    def _strategy(self) -> Values:
        """C of the plan's noise."""
        return strategy_of(self.plan).matrix(len(self.drawn))

    def statistics(self) -> tuple[Values, Values]:
        """The matched filter of the repetitions without the canary, and of those with it."""
        if not self.times:
            raise ValueError("the canary was drawn in no repetition at all, so nothing can be seen")
        pattern = self._strategy @ self.drawn
        weights = self.times / (pattern @ pattern) * (pattern @ self._strategy)
        return self.outs @ weights, self.ins @ weights

    def noise_p(self) -> float:
        """The least p-value of a variance or a covariance of whitened rounds, times their number.

        The squares of n standard normal values sum to chi-squared of n; the product of two rounds
        over the norm of one of them is standard normal.
        """
        whitened = self.outs @ self._strategy.T / self.plan.relative_noise
        trials, rounds = whitened.shape
        squares = (whitened**2).sum(axis=0)
        spreads = 2 * np.minimum(chdtr(trials, squares), chdtrc(trials, squares))
        products = np.abs(whitened.T @ whitened) / np.sqrt(squares)
        pairs = erfc(products[np.triu_indices(rounds, 1)] / math.sqrt(2))
        every = np.r_[spreads, pairs]
        return min(float(len(every) * every.min()), 1.0)


@dataclass(frozen=True)
class _Rates:
    """Upper limits on the two error rates of a test."""

    false_positive: float
    false_negative: float

    @classmethod
    def of(cls, wrong: tuple[int, int], outs: int, ins: int, confidence: float) -> _Rates:
        limits = [
            _clopper_pearson(errors, trials, confidence)[1]
            for errors, trials in zip(wrong, (outs, ins), strict=True)
        ]
        return cls(*limits)

    @property
    def mu(self) -> float:
        return max(float(-ndtri(self.false_positive) - ndtri(self.false_negative)), 0.0)

    def epsilon(self, delta: float) -> float:
        pairs = (
            (self.false_positive, self.false_negative),
            (self.false_negative, self.false_positive),
        )
        room = [(1 - delta - one, other) for one, other in pairs]
        return max([math.log(left / other) for left, other in room if left > 0] + [0.0])


@dataclass(frozen=True)
class _Claim:
    """What some rounds of a plan are accounted for."""

    accountant: Accountant
    composition: Composition
    delta: float
    is_gaussian: bool

    @classmethod
    def of(cls, plan: RoundPlan, rounds: int, delta: float) -> _Claim:
        checks.whole("rounds", rounds, at_least=1)
        checks.open_unit("delta", delta)
        if not plan.is_private:
            raise ValueError("the plan must have noise: without any it claims nothing to be tested")
        composition = plan.releases(rounds)
        is_gaussian = all(isinstance(event, Gaussian) for event, _ in composition.counts)
        return cls(default_accountant(composition), composition, delta, is_gaussian)

    @cached_property
    def epsilon(self) -> float:
        return self.accountant.epsilon(self.composition, self.delta)

    def bound(self, rates: _Rates) -> float:
        if self.is_gaussian:
            return gaussian_epsilon(rates.mu, self.delta)
        return rates.epsilon(self.delta)

    def is_contradicted_by(self, rates: _Rates) -> bool:
        # Where not even delta = 0 is contradicted, the accountant need not be asked.
        worth_asking = (epsilon for epsilon in _CURVE if rates.epsilon(0.0) > epsilon)
        return any(
            rates.epsilon(self.accountant.delta(self.composition, epsilon)) > epsilon
            for epsilon in worth_asking
        )


def audit_repeatedly(
    plan: RoundPlan,
    *,
    key: RunKey,
    delta: float,
    repetitions: int = 2000,
    rounds: int = 1,
    dimension: int = 50,
    bystanders: int = 1,
    confidence: float = 0.999,
    threshold: float | None = None,
) -> RepeatedRuns:
    """Hold the plan, as it is implemented, against what it claims for `rounds` rounds at `delta`.

    `key` decides all randomness of the repetitions, of which every second has the canary.
    `dimension` is the length of an update, and `bystanders` are users along other coordinates who
    take part in every repetition.  `threshold` is the statistic above which the auditor says "in";
    by default it is half of the rounds that the canary is drawn for if the claim is Gaussian, and
    else chosen in a pilot.
    """
    checks.open_unit("confidence", confidence)
    checks.whole("repetitions", repetitions, at_least=FEWEST_REPETITIONS)
    claim = _Claim.of(plan, rounds, delta)
    seen = _seen(plan, key, repetitions, rounds, dimension, bystanders)
    outs, ins = seen.statistics()
    if threshold is None and claim.is_gaussian:
        threshold = seen.times / 2
    if threshold is None:
        pilot = round(_PILOT * repetitions / 2)
        threshold = _best_threshold(claim, outs[:pilot], ins[:pilot], confidence)
        outs, ins = outs[pilot:], ins[pilot:]
    return _judged(claim, outs, ins, threshold, confidence, seen.noise_p())


def _judged(
    claim: _Claim,
    outs: Values,
    ins: Values,
    threshold: float,
    confidence: float,
    noise_p: float,
) -> RepeatedRuns:
    """What these repetitions prove, with a threshold that was chosen without them."""
    wrong = _errors(outs, ins, threshold)
    rates = _Rates.of(wrong, len(outs), len(ins), confidence)
    bound = claim.bound(rates)
    return RepeatedRuns(
        lower_bound=bound,
        ceiling=claim.bound(_Rates.of((0, 0), len(outs), len(ins), confidence)),
        claimed_epsilon=claim.epsilon,
        contradicts_claim=bound > claim.epsilon or claim.is_contradicted_by(rates),
        mu=rates.mu if claim.is_gaussian else None,
        false_positives=wrong[0],
        without_canary=len(outs),
        false_negatives=wrong[1],
        with_canary=len(ins),
        threshold=threshold,
        noise_p=noise_p,
        delta=claim.delta,
        confidence=confidence,
    )


def _statistics(
    plan: RoundPlan, key: RunKey, repetitions: int, rounds: int, dimension: int, bystanders: int
) -> tuple[Values, Values]:
    """The statistic of the repetitions without the canary, and of those with it."""
    return _seen(plan, key, repetitions, rounds, dimension, bystanders).statistics()


def _seen(
    plan: RoundPlan, key: RunKey, repetitions: int, rounds: int, dimension: int, bystanders: int
) -> _Seen:
    """All repetitions; every second one has the canary."""
    checks.whole("bystanders", bystanders)
    if checks.whole("dimension", dimension, at_least=1) <= bystanders:
        raise ValueError(
            f"dimension must be above the number of bystanders, {bystanders}, got {dimension}"
        )
    if bystanders >= plan.population:
        raise ValueError(
            f"bystanders must be below the plan's population of {plan.population}, got {bystanders}"
        )
    updates = np.zeros((bystanders + 1, dimension), np.float32)
    np.fill_diagonal(updates, LENGTH * plan.initial_clip_state().total_norm)
    canary_last = updates[::-1]  # so that a repetition without it has the others' numbers
    names = [*(f"bystander {number}" for number in range(bystanders)), _first_in_turn(plan)]
    released = np.zeros((repetitions, rounds))
    drawn = np.zeros(rounds, np.bool_)
    for number in range(repetitions):
        users = bystanders + number % 2
        turns = _turns(plan, names[:users])
        cohorts = _trained(plan, key, number, turns, canary_last[:users], released[number])
        drawn |= [bystanders in cohort for cohort in cohorts]
    return _Seen(plan, released[::2], released[1::2], drawn)


def _first_in_turn(plan: RoundPlan) -> str:
    """A name for the canary that puts it into the first group, where users take turns."""
    groups = plan.sampler.separation if isinstance(plan.sampler, TurnSampler) else 1
    return next(name for name in map("canary {}".format, count()) if turn_of(name, groups) == 0)


def _turns(plan: RoundPlan, names: Sequence[str]) -> Turns | None:
    """Whose turn it is, by users' own names; None where everybody may always take part."""
    if not isinstance(plan.sampler, TurnSampler):
        return None
    return Turns.of(names, plan.sampler.separation)


def _trained(
    plan: RoundPlan,
    key: RunKey,
    number: int,
    turns: Turns | None,
    updates: NDArray[np.float32],
    released: Values,
) -> list[list[int]]:
    """One tiny training: fills `released` in, round by round, and returns the cohorts."""
    examples = math.ceil(plan.weighting.user_weight_cap or 1)
    state, cohorts = plan.initial_clip_state(), []
    noise: NoiseState = ()
    for round in range(len(released)):
        stream_for = partial(_stream, key, number, round)
        summed = plan.empty(updates.shape[1])
        cohort = plan.cohort(len(updates), stream_for("cohort"), round, turns).tolist()
        for user in cohort:
            summed += plan.contribution(updates[user], examples, state)
        release = plan.release(summed, state, stream_for, noise)
        one_canary = plan.noise_stddev(state) / plan.relative_noise  # S over the denominator
        released[round] = float(release.average[0]) / one_canary
        state, noise = release.clip_state, release.noise_state
        cohorts.append(cohort)
    return cohorts


def _stream(key: RunKey, number: int, round: int, purpose: str) -> Stream:
    return key.stream(branch=f"repetition {number}", round=round, attempt=0, purpose=purpose)


def _errors(outs: Values, ins: Values, threshold: float) -> tuple[int, int]:
    """False positives and false negatives."""
    return int((outs > threshold).sum()), int((ins <= threshold).sum())


def _best_threshold(claim: _Claim, outs: Values, ins: Values, confidence: float) -> float:
    """The threshold with the best bound in a pilot; of equal ones, that which separates best."""

    def worth(threshold: float) -> tuple[float, float]:
        rates = _Rates.of(_errors(outs, ins, threshold), len(outs), len(ins), confidence)
        return claim.bound(rates), rates.mu

    tried = np.quantile(np.r_[outs, ins], np.linspace(0.01, 0.99, _THRESHOLDS)).tolist()
    return float(max(tried, key=worth))
