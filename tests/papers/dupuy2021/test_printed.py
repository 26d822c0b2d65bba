"""The three figures for eDP-SGD as printed: what each is, by closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms.edp_sgd import NoiseDecay, PaperEdpSgd
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, Composition, Gaussian
from tacit_papers.dupuy2021.printed import printed_figures

DELTA = 5e-4  # the paper's


def figures(source="private gradients", z=1.0, decay=None, epochs=5):
    scaling = LayerScaling((0.5, 2.0), (1, 1), source)
    method = PaperEdpSgd(8, 0.5, z, scaling, decay or NoiseDecay())
    return printed_figures(method, epochs, DELTA)


def test_printed_algorithm_has_no_finite_epsilon_and_says_why():
    actual, conditional, published = figures()
    assert actual.epsilon == math.inf
    assert "infinite, because the scaling factors alpha_k are taken from" in actual.meaning
    assert "if the scaling factors alpha_k were public" in conditional.meaning
    assert "no guarantee" in published.meaning
    assert actual.delta == conditional.delta == DELTA


def test_printed_algorithm_with_public_factors_has_the_conditional_figure():
    actual, conditional, _ = figures(source="public batch")
    assert actual.epsilon == conditional.epsilon == figures()[1].epsilon
    assert "alpha_k are public, and" in actual.meaning


@pytest.mark.parametrize(
    "decay", [NoiseDecay(), NoiseDecay("linear", 0.3), NoiseDecay("exponential", 0.1)]
)
def test_conditional_figure_is_one_gaussian_per_epoch_of_the_effective_multiplier(decay):
    """Of all epochs together, by the closed form; without amplification."""
    _, conditional, _ = figures(z=20.0, decay=decay)
    z_t = np.array([20.0 * decay.factor(epoch) for epoch in range(5)])
    m = 1 / math.sqrt(np.sum((2 * math.sqrt(8) * 2.0 / z_t) ** 2))
    epsilon = conditional.epsilon
    below = stats.norm.cdf(-epsilon * m - 1 / (2 * m))
    delta = stats.norm.cdf(1 / (2 * m) - epsilon * m) - math.exp(epsilon) * below
    assert delta == pytest.approx(DELTA, rel=1e-6)


def test_the_figures_are_of_the_micro_batches_and_not_of_the_workers():
    scaling = LayerScaling((0.5, 2.0), (1, 1), "private gradients")
    one = PaperEdpSgd(1, 0.5, 1.0, scaling, micro_batches=8)
    assert printed_figures(one, 5, DELTA) == figures()
    assert printed_figures(PaperEdpSgd(1, 0.5, 1.0, scaling), 5, DELTA) != figures()


def test_conditional_figure_is_stated_for_replace_one():
    method = PaperEdpSgd(4, 1.0, 1.0, LayerScaling.none((1,)))
    _, conditional, _ = printed_figures(method, 2, DELTA)
    events = Composition(((Gaussian(0.25, Adjacency.REPLACE), 2),))
    assert conditional.epsilon == accountant_named("pld").epsilon(events, DELTA)
    assert "under replace-one adjacency" in conditional.meaning


def test_published_figure_is_far_below_the_conditional_one():
    # rho = 5/2, and log(1/delta) = 7.6009.
    _, conditional, published = figures()
    assert published.epsilon == pytest.approx(2.5 + 2 * math.sqrt(2.5 * 7.60090246))
    assert published.epsilon < conditional.epsilon / 20


def test_figures_of_the_papers_smallest_noise_are_finite_numbers_of_its_order():
    """Its Table 1 has log10(epsilon) up to 24.4."""
    _, conditional, published = figures(z=1e-6, decay=NoiseDecay("exponential", 0.5), epochs=40)
    assert 20 < math.log10(published.epsilon) < 32
    ratio = conditional.epsilon / published.epsilon
    assert ratio == pytest.approx(4 * 8 * 2.0**2, rel=1e-3)  # rho grows by 4 N max alpha_k^2


def test_without_noise_all_figures_are_infinite():
    assert all(each.epsilon == math.inf for each in figures(source="public batch", z=0.0))


def test_a_delta_that_is_none_is_refused():
    method = PaperEdpSgd(4, 1.0, 1.0, LayerScaling.none((1,)))
    with pytest.raises(ValueError, match="delta must be"):
        printed_figures(method, 2, 0.0)


@pytest.mark.parametrize(("decay", "inverse_squares"), [("none", 5), ("linear", 55)])
def test_published_figure_is_the_papers_formula(decay, inverse_squares):
    """rho + 2 sqrt(rho log(1/delta)), rho half of the sum of 1/z_t^2: 1 + 4 + 9 + 16 + 25 = 55."""
    shape = NoiseDecay() if decay == "none" else NoiseDecay("linear", 1.0)
    rho = inverse_squares / 2
    published = figures(decay=shape)[2].epsilon
    assert published == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / DELTA)), rel=1e-12)
