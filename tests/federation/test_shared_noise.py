"""Secure sums to which the clients add the noise: what the server sees, charges and may ask for.

Statistical tests raise a false alarm once in 10^6 runs; noise is from fresh keys in each.
"""

import dataclasses

import numpy as np
import pytest
from scipy import stats

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation import training  # noqa: E402
from tacit.federation.kept_sum import KeptSum  # noqa: E402
from tacit.federation.orders import Order, addressed  # noqa: E402
from tacit.federation.own_ledger import Consent, Refused  # noqa: E402
from tacit.federation.own_noise import OwnNoise, SimulatedNoise  # noqa: E402
from tacit.federation.secure_gathering import Masked, NoSum  # noqa: E402
from tacit.privacy.ledger import Ledger  # noqa: E402
from tacit.runs.run import Run  # noqa: E402
from tests.federation.members import MASKED, Members, SecureWorld, secured  # noqa: E402
from tests.federation.small import (  # noqa: E402
    CalledClients,
    charges_of,
    federated,
    models_of,
    simulated,
)

FALSE_ALARM = 1e-6
LOST = 2  # of eight, of whom six are enough for the noise
SEED = 5  # of the small experiment
TRIPS = 5


def simulating(key):
    return SimulatedNoise(SEED)


@pytest.fixture
def world(tmp_path):
    return SecureWorld(tmp_path / "world", rounds=TRIPS, noise="distributed")


@pytest.fixture
def short(tmp_path):
    """One round of the same."""
    return SecureWorld(tmp_path / "world", rounds=1, noise="distributed")


@pytest.fixture
def overheard(monkeypatch):
    """Every sum that any server has: order, seeds, total."""
    sums, gather = [], Masked.gather

    def listening(self, order, seeds, progress):
        total, took_part = gather(self, order, seeds, progress)
        sums.append((order, seeds, total))
        return total, took_part

    monkeypatch.setattr(Masked, "gather", listening)
    return sums


def test_a_trial_ends_with_the_bits_of_its_simulation_whoever_is_lost(world, tmp_path):
    """Round 0 loses two clients in its first trip, round 1 in its second, and so on."""
    run, gone = tmp_path / "run", set(world.people[:LOST])
    clients = Members(world.members(simulating))
    lost = lambda trip, client: trip == clients.sums - 1 and client in gone  # noqa: E731
    clients.change = lambda trip, client, content: None if lost(trip, client) else content
    secured(world, run, clients)
    simulated(world.simulated, tmp_path / "simulated", like=run)
    assert models_of(run) == models_of(tmp_path / "simulated")
    assert charges_of(run) == charges_of(tmp_path / "simulated")


def test_keys_of_their_own_give_the_same_charges_and_noise_that_no_server_knows(
    world, tmp_path, overheard
):
    run = tmp_path / "run"
    secured(world, run, Members(world.members(OwnNoise.of)))
    simulated(world.simulated, tmp_path / "simulated", like=run)
    assert charges_of(run) == charges_of(tmp_path / "simulated")
    assert models_of(run) != models_of(tmp_path / "simulated")
    guarantee = Run.open(run).guarantee()
    assert "under zero-out-one adjacency" in guarantee.claim
    assert "at least 5 honest ones a round add noise" in guarantee.claim
    assert "the server together with more than 1 of a round's clients" in guarantee.claim
    assert "it sees sums only, to which the clients have added the noise" in guarantee.claim
    assert "before the noise" not in guarantee.claim
    errors = [error_of(world, *each) for each in overheard]
    order, _, _ = overheard[0]
    sigma = order.plan.shared_noise.noise_stddev(len(world.people), order.clip_state)
    assert fits(np.ravel(errors), sigma)
    assert not fits(np.ravel(errors), sigma * np.sqrt(6 / 8))  # as if two shares were missing
    assert not fits(np.ravel(errors), sigma * np.sqrt(11 / 8))


def error_of(world, order, seeds, total):
    """What the server has, less the exact sum of clipped updates."""
    plain = dataclasses.replace(order, plan=dataclasses.replace(order.plan, noise=None))
    exact = plain.plan.empty(len(order.weights))
    for one in world.people:
        trainer = world.trainer(one, Consent(without_noise=True))
        trainer.ledger.give = lambda of: None
        exact += trainer.answer(dataclasses.replace(plain, seed=seeds[one])).contribution
    step = plain.plan.grid(order.clip_state).step
    return order.plan.shared_noise.total(total.update, order.clip_state) - exact.update * step


def fits(errors, sigma):
    p = stats.chi2.cdf(np.sum((errors / sigma) ** 2), errors.size)
    return bool(FALSE_ALARM / 2 < p < 1 - FALSE_ALARM / 2)


def test_fewer_than_the_noise_is_made_for_give_no_sum_and_no_charge(tmp_path):
    world = SecureWorld(tmp_path / "world", noise="distributed", survivors=7)
    run, gone = tmp_path / "run", set(world.people[:LOST])
    clients = Members(world.members(OwnNoise.of))
    clients.change = lambda trip, client, content: (
        None if client in gone and trip == MASKED and clients.sums > 1 else content
    )
    with pytest.raises(NoSum, match="round 1 has no sum after 3 tries"):
        secured(world, run, clients)
    assert [entry.round for entry in Ledger.read(run / "ledger.jsonl").entries[1:]] == [0]
    secured(world, run, Members(world.members(OwnNoise.of)), resume=True)
    assert [(one, attempt) for one, attempt, *_ in charges_of(run)[1:]] == [(0, 0), (1, 0)]


def test_a_sum_that_is_asked_for_again_is_the_same_sum(short, tmp_path, overheard):
    """Else a server could ask often, and average the noise out."""
    secured(short, tmp_path / "run", Members(short.members(OwnNoise.of)))
    order, seeds, total = overheard[-1]
    (tmp_path / "other").mkdir()
    clients = Members(short.members(OwnNoise.of))
    again, _ = Masked(clients, short.roster, KeptSum(tmp_path / "other")).gather(order, seeds, None)
    assert not clients.refused
    assert np.array_equal(again.update, total.update)


def test_noise_follows_from_key_order_and_update_and_from_nothing_less(short, tmp_path, overheard):
    secured(short, tmp_path / "run", Members(short.members(OwnNoise.of)))
    order, _, _ = overheard[0]
    one, other = (OwnNoise.of(short.keys[person]) for person in short.people[:2])
    update = np.arange(5)
    words = lambda noise, of, hidden: tuple(  # noqa: E731
        noise.stream(of, "anybody", hidden).words(2)
    )
    changed = [
        (one, order, update),
        (other, order, update),
        (one, order, update + 1),
        (one, dataclasses.replace(order, attempt=1), update),
        (one, dataclasses.replace(order, seed=bytes(31) + b"1"), update),
        (one, dataclasses.replace(order, run="another"), update),
        (one, dataclasses.replace(order, weights=order.weights + 1), update),
    ]
    assert len({words(*each) for each in changed}) == len(changed)
    assert words(one, order, update) == words(
        OwnNoise.of(short.keys[short.people[0]]), order, update
    )
    assert "secret" not in repr(one)


def test_a_share_of_the_noise_is_never_given_in_the_clear(world, tmp_path):
    with pytest.raises(ValueError, match="needs secure sums, in which a share of the noise is"):
        training.refuse_unfit(
            world.federated.changed(
                corpus={"source": world.federated.source.replace(",sum=secure", "")}
            )
        )
    training.refuse_unfit(world.federated)
    with pytest.raises(ValueError, match="needs secure sums, in which a share of the noise is"):
        federated(world, tmp_path / "run", CalledClients(world))


def test_clients_refuse_to_show_a_share_alone(short, tmp_path, overheard):
    secured(short, tmp_path / "run", Members(short.members(OwnNoise.of)))
    order, seeds, _ = overheard[0]
    person = short.people[0]
    received = Order.read(addressed(order.shared(), seeds[person]))
    trainer = short.trainer(person, noise=OwnNoise.of(short.keys[person]))
    with pytest.raises(Refused, match="hides an update in a secure sum only"):
        trainer.answer_in_the_clear(received)


@pytest.mark.parametrize(
    ("noise", "sums", "reason"),
    [
        (OwnNoise.of, 2, "the difference of two sums with the same noise"),
        (lambda key: None, 1, "users who share the noise need a stream of their own"),
    ],
)
def test_clients_that_could_not_hide_do_not_take_part(tmp_path, noise, sums, reason):
    world = SecureWorld(tmp_path / "world", noise="distributed")
    clients = Members(world.members(noise, sums))
    with pytest.raises(NoSum):
        secured(world, tmp_path / "run", clients)
    assert all(reason in refusal for refusal in clients.refused)
    assert len(clients.refused) == 3 * len(world.people)


def test_masks_are_as_wide_as_the_noise_has_bits(short, tmp_path, overheard):
    clients = Members(short.members(OwnNoise.of))
    secured(short, tmp_path / "run", clients)
    order, _, total = overheard[0]
    padded = order.plan.shared_noise.rotation.padded
    assert (total.update.shape, total.weight, total.bits.size) == ((padded,), 0, 0)
    assert int(np.abs(total.update).max()) < 2**15
    largest = max(sum(a.numpy().nbytes for a in r["message"].values()) for r in clients.received)
    assert 2 * padded <= largest < 2 * padded + 1000
