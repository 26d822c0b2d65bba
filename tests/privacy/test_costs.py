"""`tacit.epsilon` and its inverse: the accountants' figures, quick imports, refusals."""

import ast
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, PoissonGaussian

OWN = {"sampling_prob": 0.01, "noise_multiplier": 1.0, "rounds": 1000, "delta": 1e-6}
PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize("name", ["pld", "rdp", "moments"])
def test_epsilon_is_the_accountants(name):
    spent = Composition.of([(PoissonGaussian(0.01, 1.0), 1000)])
    expected = accountant_named(name).epsilon(spent, 1e-6)
    assert tacit.epsilon(**OWN, accountant=name) == expected


def test_the_papers_figure():
    # McMahan et al. 2018, Table 1: 4.634 at K = 763,430 with 5,000 of them in 5,000 rounds.
    printed = {"sampling_prob": 5000 / 763_430, "noise_multiplier": 1.0, "rounds": 5000}
    assert tacit.epsilon(**printed, delta=1e-9, accountant="moments") == pytest.approx(
        4.634, abs=5e-4
    )


def test_noise_is_the_inverse():
    rest = {name: OWN[name] for name in ("sampling_prob", "rounds", "delta")}
    z = tacit.noise_multiplier(**rest, epsilon=2.0)
    assert 1.99 < tacit.epsilon(**rest, noise_multiplier=z) <= 2.0
    assert tacit.epsilon(**rest, noise_multiplier=0.99 * z) > 2.0


def test_everybody_in_every_round_is_the_plain_gaussian():
    # Balle and Wang 2018: delta(epsilon) of a Gaussian with a deviation of sqrt(rounds) / z.
    value = tacit.epsilon(**OWN | {"sampling_prob": 1.0, "noise_multiplier": 50.0})
    d = math.sqrt(1000) / 50.0

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    delta = below(d / 2 - value / d) - math.exp(value) * below(-d / 2 - value / d)
    assert delta == pytest.approx(1e-6, rel=1e-3)


def test_limits():
    assert tacit.epsilon(**OWN | {"noise_multiplier": 0.0}) == math.inf
    assert tacit.epsilon(**OWN | {"rounds": 0}) == 0.0
    assert tacit.epsilon(**OWN | {"rounds": 0, "noise_multiplier": 0.0}) == 0.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampling_prob": 1.5}, "sampling_prob must be above 0 and at most 1, got 1.5"),
        ({"sampling_prob": 0.0}, "sampling_prob must be above 0"),
        ({"sampling_prob": 0.0, "noise_multiplier": 0.0}, "sampling_prob must be above 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number of at least 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be"),
        ({"rounds": 2.5}, "rounds must be a whole number, got 2.5"),
        ({"rounds": -1}, "rounds must be at least 0, got -1"),
        ({"delta": 1.0}, "delta must be strictly between 0 and 1, got 1.0"),
        ({"delta": 1.0, "noise_multiplier": 0.0}, "delta must be strictly between 0 and 1"),
        ({"accountant": "pdl"}, "did you mean 'pld'"),
        ({"accountant": "zcdp"}, "no amplification by sampling"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tacit.epsilon(**OWN | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0, got 0.0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"sampling_prob": 2.0}, "sampling_prob must be above 0 and at most 1"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1"),
    ],
)
def test_wrong_arguments_of_the_inverse_are_named(wrong, message):
    asked = {"sampling_prob": 0.01, "epsilon": 2.0, "rounds": 1000, "delta": 1e-6}
    with pytest.raises(ValueError, match=re.escape(message)):
        tacit.noise_multiplier(**asked | wrong)


def test_importing_tacit_imports_neither_accounting_nor_torch():
    script = (
        "import sys, tacit; assert 'scipy' not in sys.modules;"
        " tacit.epsilon(sampling_prob=0.5, noise_multiplier=2.0, rounds=1, delta=1e-3);"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_names_of_tacit_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'epsilom'"):
        _ = tacit.epsilom


def test_the_page_prints_what_comes_out():
    text = PAGE.read_text(encoding="utf-8")
    [block] = [
        body for body in re.findall(r"```python\n(.*?)```", text, re.S) if "tacit.eps" in body
    ]
    printed = re.findall(r"print\((.*)\)  # ([\d.]+)", block)
    assert len(printed) == 2
    for call, figure in printed:
        ast.parse(call, mode="eval")
        assert f"{eval(call, {'tacit': tacit}):.3f}" == figure
