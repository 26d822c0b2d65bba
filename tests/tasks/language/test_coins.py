"""The secret of the canary clients' coins: where it comes from, and that it cannot be swapped."""

from types import SimpleNamespace

import pytest

from tacit.privacy.randomness import RunKey
from tacit.tasks.language import canary_clients as coins
from tacit.tasks.language.canary_clients import CanaryClients


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    return tmp_path


def clients(key):
    return CanaryClients(200, 50, 1.0, key, ((0, 50),))


class FakeLedger:
    """Entries (kind, digest, branch) of a run on the branch "mine"."""

    header = SimpleNamespace(branch="mine", first_round=0)

    def __init__(self, *entries):
        self.entries = [
            SimpleNamespace(kind=kind, plan_hash=digest, branch=on) for kind, digest, on in entries
        ]

    def charge(self, charges):
        self.entries += [
            SimpleNamespace(kind=one.kind, plan_hash=one.plan_hash, branch="mine")
            for one in charges
        ]


def simulated(seed):
    return coins.coins_of(RunKey.from_seed(seed))


def test_two_runs_have_different_coins_and_directions():
    one, other = (clients(coins.coins_of(RunKey.generate())) for _ in range(2))
    assert (one.included != other.included).any()
    assert abs(float(one.direction(0) @ other.direction(0))) < 0.9


def test_a_simulation_repeats_its_coins():
    assert simulated(5) == simulated(5) != simulated(6)


def test_the_coins_outlive_the_run_key(folder):
    key, ledger = RunKey.generate(), FakeLedger()
    made = coins.keep_coins(folder, key, ledger)
    file = folder / "private" / coins.COINS_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert coins.keep_coins(folder, key, ledger) == made  # a run that goes on
    assert len(ledger.entries) == 1
    assert coins.coins_of_run(folder, ledger) == made  # an audit, when the key is gone


def test_the_secret_is_not_printed():
    assert "key" not in repr(clients(simulated(1)))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.unlink(), "canary-coins is missing"),
        (lambda file: file.chmod(0o644), "readable by its owner alone"),
        (lambda file: file.write_bytes(b"heads"), "canary-coins is not a run key"),
        (lambda file: file.write_bytes(file.read_bytes() + b"x"), "canary-coins is not a run key"),
    ],
    ids=["missing", "open to others", "something else", "longer"],
)
def test_coins_that_cannot_be_relied_on_are_refused(folder, spoil, says):
    ledger = FakeLedger()
    coins.keep_coins(folder, RunKey.generate(), ledger)
    spoil(folder / "private" / coins.COINS_FILE)
    with pytest.raises(ValueError, match=says):
        coins.coins_of_run(folder, ledger)


def test_the_coins_of_another_run_are_refused(folder):
    coins.keep_coins(folder, RunKey.generate(), FakeLedger())
    with pytest.raises(ValueError, match="does not belong to the key"):
        coins.keep_coins(folder, RunKey.generate(), FakeLedger())


def test_coins_that_the_ledger_did_not_commit_to_are_refused(folder):
    """Other coins show nothing, so they would open a gate that the true ones keep shut."""
    held = coins.keep_coins(folder, RunKey.generate(), FakeLedger())
    mine = (coins.COMMITTED, coins.commitment(held), "mine")
    other = (coins.COMMITTED, coins.commitment(simulated(0)), "mine")
    assert coins.coins_of_run(folder, FakeLedger(mine, ("round", "00", "mine"))) == held
    for entries in ([], [other], [mine, other]):
        with pytest.raises(ValueError, match="committed to before the training"):
            coins.coins_of_run(folder, FakeLedger(*entries))
    (folder / "private" / coins.COINS_FILE).unlink()
    with pytest.raises(ValueError, match="canary-coins is missing"):
        coins.coins_of_run(folder, FakeLedger(mine))


def test_a_branch_is_held_against_its_own_commitment(folder):
    held = coins.keep_coins(folder, RunKey.generate(), FakeLedger())
    parent = (coins.COMMITTED, coins.commitment(simulated(0)), "parent")
    mine = (coins.COMMITTED, coins.commitment(held), "mine")
    assert coins.coins_of_run(folder, FakeLedger(parent, mine)) == held


def test_a_commitment_binds_without_telling():
    key = RunKey.from_seed(1)
    made = coins.commitment(coins.coins_of(key))
    assert made == coins.commitment(simulated(1)) != coins.commitment(simulated(2))
    assert key.hmac(b"canary coins").hex() not in made
