"""Secure sums end with the bits of the simulation, whoever is lost; with too few there is none."""

import numpy as np
import pytest

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.kept_sum import KeptSum  # noqa: E402
from tacit.federation.orders import from_record, to_record  # noqa: E402
from tacit.federation.participations import FILE, Participations  # noqa: E402
from tacit.federation.secure_gathering import NoSum  # noqa: E402
from tacit.federation.sum_terms import to_answer  # noqa: E402
from tacit.privacy.ledger import Ledger  # noqa: E402
from tacit.runs.session import Session  # noqa: E402
from tests.federation.members import (  # noqa: E402
    ADVERT,
    CONFIRMATION,
    LOST,
    MASKED,
    REVEALED,
    SHARES,
    Members,
    SecureWorld,
    secured,
)
from tests.federation.small import (  # noqa: E402
    CalledClients,
    charges_of,
    federated,
    models_of,
    simulated,
)


@pytest.fixture
def world(tmp_path):
    return SecureWorld(tmp_path / "world")


def took_part(run, round, attempt=0):
    return Participations(run / "private" / FILE).of(round, attempt)


def assert_like_its_simulation(world, run, tmp_path):
    other = tmp_path / "simulated"
    simulated(world.simulated, other, like=run)
    assert models_of(run) == models_of(other)
    assert charges_of(run) == charges_of(other)


def lost(trip, clients):
    """These are lost in a trip: what they made of its message never arrives."""
    return lambda at, client, content: None if at == trip and client in clients else content


@pytest.mark.parametrize("trip", [ADVERT, SHARES, MASKED, CONFIRMATION, REVEALED])
def test_clients_that_are_lost_in_any_trip_are_recovered(world, tmp_path, trip):
    """With the bits of the simulation on those whose input had come."""
    gone = set(world.people[:LOST])
    run = tmp_path / "run"
    secured(world, run, Members(world, lost(trip, gone)))
    there = set(world.people) - (gone if trip <= MASKED else set())
    assert [set(took_part(run, round)) for round in (0, 1)] == [there, there]
    assert_like_its_simulation(world, run, tmp_path)


