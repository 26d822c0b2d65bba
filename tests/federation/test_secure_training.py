"""Trainings with secure sums end with the bits of the simulation, whoever is lost and killed."""

import pytest

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.corpus.builtin import enrolment_name, has_secure_sums  # noqa: E402
from tacit.federation.kept_sum import KeptSum  # noqa: E402
from tacit.federation.participations import FILE, Participations  # noqa: E402
from tacit.federation.secure_gathering import NoSum  # noqa: E402
from tacit.privacy.ledger import Ledger  # noqa: E402
from tacit.runs.run import Run  # noqa: E402
from tests.federation.members import MASKED, Members, SecureWorld, secured  # noqa: E402
from tests.federation.small import charges_of, models_of, simulated  # noqa: E402
from tests.federation.test_engine import Killed, kill  # noqa: E402

LOST = 2  # of eight, of whom six can end a sum
TRIPS = 5


@pytest.fixture
def world(tmp_path):
    return SecureWorld(tmp_path / "world", rounds=TRIPS)


def took_part(run, round):
    return Participations(run / "private" / FILE).of(round, 0)


def assert_like_its_simulation(world, run, tmp_path):
    simulated(world.simulated, tmp_path / "simulated", like=run)
    assert models_of(run) == models_of(tmp_path / "simulated")
    assert charges_of(run) == charges_of(tmp_path / "simulated")


def test_clients_that_are_lost_in_any_trip_of_a_round_are_recovered(world, tmp_path):
    """Round 0 loses two clients in its first trip, round 1 in its second, and so on.  The result
    is that of the simulation on those whose input had come."""
    run, gone = tmp_path / "run", set(world.people[:LOST])
    clients = Members(world.members())
    lost = lambda trip, client: trip == clients.sums - 1 and client in gone  # noqa: E731
    clients.change = lambda trip, client, content: None if lost(trip, client) else content
    secured(world, run, clients)
    everybody = set(world.people)
    for round in range(TRIPS):
        assert set(took_part(run, round)) == everybody - (gone if round <= MASKED else set())
    assert_like_its_simulation(world, run, tmp_path)
    claim = Run.open(run).guarantee().claim
    assert "by secure aggregation none of them alone" in claim
    assert "every client's clipped update" not in claim


@pytest.mark.slow
@pytest.mark.parametrize("trip", range(TRIPS))
def test_a_round_that_too_few_are_left_in_is_not_charged_until_they_are_back(world, tmp_path, trip):
    run, gone = tmp_path / "run", set(world.people[: LOST + 1])
    clients = Members(world.members())
    clients.change = lambda at, one, content: (
        None if clients.sums > 2 and at == trip and one in gone else content
    )
    with pytest.raises(NoSum, match="round 2 has no sum after 3 tries"):
        secured(world, run, clients)
    rounds = [entry.round for entry in Ledger.read(run / "ledger.jsonl").entries[1:]]
    assert rounds == [0, 1]
    secured(world, run, Members(world.members()), resume=True)
    assert [(one, attempt) for one, attempt, *_ in charges_of(run)[1:]] == [
        (round, 0) for round in range(TRIPS)
    ]
    assert_like_its_simulation(world, run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "leg"), [("charge", 2), ("accept", 2), ("save", 3)])
def test_a_server_that_was_killed_with_a_sum_goes_on_with_it_and_asks_nobody(
    world, tmp_path, monkeypatch, method, leg
):
    run = tmp_path / "run"
    kill(monkeypatch, method, leg)
    with pytest.raises(Killed):
        secured(world, run, Members(world.members()))
    clients = Members(world.members())
    secured(world, run, clients, resume=True)
    assert clients.sums == 2  # of rounds 3 and 4
    assert_like_its_simulation(world, run, tmp_path)


@pytest.mark.slow
def test_a_server_that_was_killed_while_it_unmasked_asks_the_same_clients_for_the_same_sum(
    world, tmp_path, monkeypatch
):
    """One was late for the sum and is there now: it is left out, or the sums would differ by it."""
    run, late, write = tmp_path / "run", world.people[0], KeptSum.write

    def dying(self, order, *arguments):
        if order.round == 2:
            raise Killed
        write(self, order, *arguments)

    monkeypatch.setattr(KeptSum, "write", dying)
    with pytest.raises(Killed):
        secured(
            world,
            run,
            Members(
                world.members(),
                lambda trip, one, content: None if (trip, one) == (MASKED, late) else content,
            ),
        )
    monkeypatch.setattr(KeptSum, "write", write)
    clients = Members(world.members())
    secured(world, run, clients, resume=True)
    assert not clients.refused
    assert set(took_part(run, 2)) == set(world.people) - {late}
    assert set(took_part(run, 3)) == set(world.people)
    assert_like_its_simulation(world, run, tmp_path)


def test_how_people_are_summed_is_in_the_name_that_the_experiment_has_for_them():
    assert has_secure_sums(enrolment_name("some/where", "corpus", secure_sum=True))
    assert not has_secure_sums(enrolment_name("some/where", "corpus,sum=secure"))
    with pytest.raises(ValueError, match="must not have ',sum=secure'"):
        enrolment_name("a,sum=secure", "corpus")
