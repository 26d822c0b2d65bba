"""The search for strategies: its gradient, slower searches, and another library's figures."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

from tacit.mechanisms.participation import Participation
from tacit.mechanisms.strategies import (
    INDEPENDENT,
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
    Strategy,
    running_sum_errors,
)
from tacit.mechanisms.strategy_search import KINDS, _Cost, best

OBJECTIVES = ("mean", "largest")
RECORDED = json.loads(Path(__file__).with_name("jax_privacy_strategies.json").read_text("utf-8"))


def error(strategy: Strategy, rounds: int, separation: int, objective: str = "mean") -> float:
    """Of the running sum at a noise multiplier of 1."""
    figures = dict(zip(OBJECTIVES, running_sum_errors(strategy, rounds), strict=True))
    return figures[objective] * strategy.sensitivity(Participation(separation), rounds)


def dense_error(column: np.ndarray, rounds: int, separation: int, objective: str = "mean") -> float:
    """The same of explicit matrices: no code of ours."""
    padded = np.concatenate([column, np.zeros(rounds - len(column))])
    C = np.array([[padded[t - s] if t >= s else 0.0 for s in range(rounds)] for t in range(rounds)])
    rows = np.linalg.norm(np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(C), axis=1)
    moved = np.linalg.norm(C[:, ::separation].sum(axis=1))
    return float(moved * (rows.max() if objective == "largest" else math.sqrt(np.mean(rows**2))))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("rounds", "separation", "at_most"), [(1, 1, None), (9, 2, None), (24, 5, 3)]
)
def test_the_gradient_is_that_of_finite_differences(rounds, separation, at_most, objective):
    cost = _Cost(rounds, Participation(separation, at_most), objective)
    generator = np.random.default_rng(rounds)
    for falls in (0.5, 0.9):
        column = falls ** np.arange(rounds) * generator.uniform(0.5, 1.5, rounds)
        value, gradient = cost(column)
        differences = approx_fprime(column, lambda c: cost(c)[0], 1e-7)
        assert gradient == pytest.approx(differences, abs=2e-5)
        assert cost(3.7 * column)[0] == pytest.approx(value, rel=1e-12)  # scaling changes nothing
        if at_most is None:
            assert math.exp(value) == pytest.approx(
                dense_error(column, rounds, separation, objective), rel=1e-9
            )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("rounds", "separation"), [(8, 3), (12, 4), (12, 12)])
def test_no_bands_are_better_than_those_that_were_found(rounds, separation, objective):
    """Against BFGS on explicit matrices, without a gradient, from several starts."""
    found = best("banded", rounds, Participation(separation), objective=objective)
    assert len(found.coefficients(rounds)[:separation]) == separation
    ours = error(found, rounds, separation, objective)
    generator = np.random.default_rng(0)
    for _ in range(4):
        start = 0.6 ** np.arange(1, separation) + generator.normal(0, 0.1, separation - 1)
        other = minimize(
            lambda c: dense_error(np.append(1.0, c), rounds, separation, objective), start
        )
        assert ours <= other.fun * (1 + 1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("rounds", "separation"), [(12, 4), (16, 16)])
def test_no_two_buffers_are_better_than_those_that_were_found(rounds, separation, objective):
    """Against Nelder and Mead on explicit matrices, from several starts."""
    found = best("blt", rounds, Participation(separation), buffers=2, objective=objective)
    ours = error(found, rounds, separation, objective)

    def error_of(values: np.ndarray) -> float:
        decays, scales = values[:2], values[2:]
        if not (np.all((values > 0) & (values < 1)) and scales.sum() <= 1):
            return math.inf
        column = scales @ decays[:, None] ** np.arange(rounds - 1)
        return dense_error(np.append(1.0, column), rounds, separation, objective)

    for start in ((0.9, 0.3, 0.2, 0.3), (0.6, 0.5, 0.4, 0.1), (0.97, 0.7, 0.1, 0.4)):
        other = minimize(error_of, np.array(start), method="Nelder-Mead", options={"maxiter": 600})
        assert ours <= other.fun * (1 + 1e-5)


@pytest.mark.parametrize(("rounds", "separation"), [(60, 15), (200, 50), (512, 32)])
def test_more_buffers_are_never_worse_and_no_two_of_them_are_the_same(rounds, separation):
    errors = []
    for buffers in range(1, 6):
        found = best("blt", rounds, Participation(separation), buffers=buffers)
        assert isinstance(found, BufferedToeplitz)
        assert len(found.decays) <= buffers
        lengths = 1 / (1 - np.array(found.decays))
        assert np.all(lengths[:-1] > 1.01 * lengths[1:])
        errors.append(error(found, rounds, separation))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.999 * errors[0] or rounds == 60  # where one does nearly all


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_was_searched_for_is_better_than_what_was_not(objective):
    rounds, separation, who = 96, 24, Participation(24)
    errors = {
        kind: error(best(kind, rounds, who, objective=objective), rounds, separation, objective)
        for kind in KINDS
    }
    independent = error(INDEPENDENT, rounds, separation, objective)
    assert errors["banded"] < errors["square-root"] < 0.5 * independent
    assert errors["blt"] < 1.05 * errors["square-root"]  # of 24 vectors; it keeps at most 4
    assert errors["blt"] < errors["tree"] < independent


def test_more_bands_than_the_separation_fall_so_that_their_sensitivity_is_proved():
    found = best("banded", 40, Participation(5), bands=12)
    assert isinstance(found, BandedToeplitz)
    assert list(found.values) == sorted(found.values, reverse=True)
    assert found.values[-1] >= 0
    assert error(found, 40, 5) < error(best("banded", 40, Participation(5)), 40, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_round_and_daily_users_have_a_strategy_too(kind):
    for rounds, separation in ((1, 1), (1, 5), (2, 1), (7, 1), (3, 9)):
        found = best(kind, rounds, Participation(separation))
        assert error(found, rounds, separation) > 0
        assert error(best(kind, 1, Participation(separation)), 1, separation) == 1


def test_kinds_without_anything_to_search_for_are_themselves():
    assert best("tree", 10, Participation(2)) == BinaryTree()
    assert best("square-root", 10, Participation(4)) == SquareRootToeplitz(4)
    assert best("square-root", 3, Participation(4)) == SquareRootToeplitz(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "pink"}, "noise must be correlated by one of blt, banded, square-root, tree"),
        ({"rounds": 0}, "rounds must be"),
        ({"kind": "blt", "buffers": 0}, "buffers must be"),
        ({"bands": -3}, "bands must be"),
        ({"bands": 0}, "bands must be"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(change, message):
    asked = {"kind": "banded", "rounds": 9, "participation": Participation(3)} | change
    with pytest.raises(ValueError, match=message):
        best(**asked)


# Another library.


@cache
def recorded_search(kind: str, rounds: int, separation: int, objective: str) -> Strategy:
    return best(kind, rounds, Participation(separation), objective=objective)


def named(row: dict) -> str:
    return f"{row['kind']}-{row['rounds']}-{row['separation']}-{row['objective']}"


@pytest.mark.parametrize("row", RECORDED["strategies"], ids=named)
def test_errors_are_those_of_jax_privacy_or_less(row):
    """Within 1%, in the error that either was searched for."""
    rounds, separation, objective = row["rounds"], row["separation"], row["objective"]
    found = recorded_search(row["kind"], rounds, separation, objective)
    assert error(found, rounds, separation, objective) <= 1.01 * row[objective]
    if row["kind"] == "banded":  # the same problem, so that there is one answer
        assert error(found, rounds, separation, objective) >= 0.99 * row[objective]


def test_the_record_has_both_errors_of_bands_and_the_largest_of_buffers():
    assert RECORDED["jax_privacy"] == "2.0.0"
    asked = {(2052, 342), (200, 50), (60, 15), (5000, 152)}
    for kind, most in (("banded", asked), ("blt", asked - {(5000, 152)})):
        for objective in OBJECTIVES if kind == "banded" else ("largest",):
            found = {
                (row["rounds"], row["separation"])
                for row in RECORDED["strategies"]
                if (row["kind"], row["objective"]) == (kind, objective)
            }
            assert most <= found <= asked
