"""An independent accountant for Poisson-sampled Gaussian rounds, to hold ours against.

Numerical composition of privacy loss random variables after Gopi, Lee and Wutschitz 2021: the loss
is rounded to the *nearest* grid point, shifted so that its mean stays exact, and convolved by a
plain FFT in long double.  It shares nothing with `tacit.privacy.pld`, which rounds by connecting
the dots and tilts.  It is an estimate, not a bound, and handles small q, for which the
prv-accountant package needs more memory than there is.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm


def epsilon(q: float, z: float, rounds: int, delta: float, points_per_scale: float = 60) -> float:
    """The epsilon at which removing a user has this delta (adding one is never worse here)."""
    scale = q * math.sqrt(math.expm1(1 / z**2))
    step = scale / points_per_scale

    def loss(x: float) -> float:
        return math.log1p(q * math.expm1((2 * x - 1) / (2 * z * z)))

    # Beyond this x, all rounds together have 1e-5 of delta.
    top = 1 + z * norm.isf(1e-5 * delta / rounds)
    low, high = math.floor(math.log1p(-q) / step) - 1, math.ceil(loss(top) / step) + 1
    edges = (np.arange(low, high + 2) - 0.5) * step
    with np.errstate(divide="ignore", invalid="ignore"):
        x = z * z * np.log1p(np.expm1(edges) / q) + 0.5
    x = np.where(np.isnan(x), -np.inf, x)
    # Each bin's mass from the tail that is nearer, so that small masses stay exact.
    mass = (1 - q) * _between(x / z) + q * _between((x - 1) / z)

    def integrand(x: float) -> float:
        density = (1 - q) * norm.pdf(x, 0, z) + q * norm.pdf(x, 1, z)
        return loss(x) * density / scale

    mean = scale * quad(integrand, -10 * z, top, epsabs=1e-13, epsrel=1e-11, limit=400)[0]
    grid = np.arange(low, high + 1) * step
    shift = mean - float(mass @ grid) / float(mass.sum())

    spread = math.sqrt(rounds * float(mass @ (grid - mean) ** 2))
    window = 2 * max(12 * spread, (high - low) * step * 1.5)
    size = next_fast_len(math.ceil(window / step), real=True)
    wrapped = np.zeros(size, np.longdouble)
    np.add.at(wrapped, np.arange(low, high + 1) % size, mass.astype(np.longdouble))
    transform = rfft(wrapped)
    composed = irfft(np.exp(rounds * np.log(transform)), size)
    centre = round(rounds * (mean - shift) / step)
    start = centre - size // 3
    probs = np.roll(composed, -(start % size)).astype(np.float64)
    losses = (start + np.arange(size)) * step + rounds * shift

    def found(eps: float) -> float:
        above = losses > eps
        return float(-np.expm1(eps - losses[above]) @ probs[above])

    small, large = 0.0, float(losses[-1])
    for _ in range(60):
        middle = (small + large) / 2
        small, large = (middle, large) if found(middle) > delta else (small, middle)
    return large


def _between(x: np.ndarray) -> np.ndarray:
    upper = x[:-1] > 0
    return np.where(upper, ndtr(-x[:-1]) - ndtr(-x[1:]), ndtr(x[1:]) - ndtr(x[:-1]))
