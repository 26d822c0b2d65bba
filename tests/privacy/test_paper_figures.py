"""The moments accountant reproduces every epsilon that McMahan et al. 2018 print."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as library

from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, FixedSizeGaussian, PoissonGaussian
from tests.privacy.figures import REFERENCE, STATED, TABLE_1, TABLE_1_CELLS, TABLE_2


def moments(users: int, cohort: int, z: float, rounds: int, delta: float) -> float:
    composition = Composition.of([(PoissonGaussian(cohort / users, z), rounds)])
    return accountant_named("moments").epsilon(composition, delta)


def test_table_1_has_63_cells():
    assert len(TABLE_1) == 9
    assert len(TABLE_1_CELLS) == 63


@pytest.mark.parametrize(("users", "cohort", "z", "rounds", "printed"), TABLE_1_CELLS)
def test_table_1_to_the_printed_decimals(users, cohort, z, rounds, printed):
    assert f"{moments(users, cohort, z, rounds, users**-1.1):.2f}" == printed


@pytest.mark.parametrize(("users", "cohort", "printed"), TABLE_2)
def test_table_2_to_the_printed_decimals(users, cohort, printed):
    assert f"{moments(users, cohort, 1.0, 5000, 1e-9):.3f}" == printed


@pytest.mark.parametrize(("users", "cohort", "rounds", "delta", "printed"), STATED)
def test_stated_guarantees(users, cohort, rounds, delta, printed):
    epsilon = moments(users, cohort, 1.0, rounds, delta)
    decimals = len(printed.split(".")[1])
    within = 0.01 if decimals == 2 else 0.5 * 10**-decimals
    assert abs(epsilon - float(printed)) <= within


def test_the_32_moments_are_the_floor_of_the_table():
    """However little is done, epsilon stays at log(1/delta)/32."""
    assert moments(10**9, 1, 3.0, 1, 1e-10) == pytest.approx(np.log(1e10) / 32, rel=1e-2)


def test_thakkar_2020_prints_what_the_library_says_and_not_what_noise_zS_gives():
    """Their 18.8 is fixed-size RDP with the classic conversion and the multiplier taken as is.

    dp-accounting reads that multiplier relative to 2S.  If the noise is z times S, the multiplier
    is z/2 and the same rounds cost 152.8.
    """
    case = REFERENCE["thakkar_z1"][0]
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        case["N"], case["C"], dp_accounting.GaussianDpEvent(1.0)
    )
    accountant = library.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(event, case["rounds"])
    classic = np.min(
        accountant.rdp[accountant.orders > 1]
        - np.log(case["delta"]) / (accountant.orders[accountant.orders > 1] - 1)
    )
    assert f"{classic:.1f}" == "18.8"
    ours = Composition.of([(FixedSizeGaussian(case["N"], case["C"], 0.5), case["rounds"])])
    assert accountant_named("rdp").epsilon(ours, case["delta"]) == pytest.approx(152.79, rel=1e-4)
