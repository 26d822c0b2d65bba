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
    return CanaryClients(count=200, dimension=50, clip_norm=1.0, key=key)


def test_two_runs_have_different_coins_and_directions():
    one, other = (clients(coins.coins_of(RunKey.generate())) for _ in range(2))
    assert (one.included != other.included).any()
    assert abs(float(one.direction(0) @ other.direction(0))) < 0.9


def test_a_simulation_repeats_its_coins():
    assert (
        coins.simulated_coins(5) == coins.coins_of(RunKey.from_seed(5)) != coins.simulated_coins(6)
    )


def test_the_coins_outlive_the_run_key(folder):
    key = RunKey.generate()
    made = coins.coins_key(folder, key)
    file = folder / "private" / coins.COINS_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert coins.coins_key(folder, key) == made  # a run that goes on
    assert coins.coins_key(folder) == made  # an audit, when the key is gone


def test_the_secret_is_not_printed():
    key = coins.simulated_coins(1)
    assert repr(key)[2:-1] not in repr(clients(key))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.unlink(), "canary-coins is missing"),
        (lambda file: file.chmod(0o644), "readable by its owner alone"),
        (lambda file: file.write_bytes(b"heads"), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes() + b"x"), "is damaged"),
    ],
    ids=["missing", "open to others", "something else", "longer"],
)
def test_coins_that_cannot_be_relied_on_are_refused(folder, spoil, says):
    coins.coins_key(folder, RunKey.generate())
    spoil(folder / "private" / coins.COINS_FILE)
    with pytest.raises(ValueError, match=says):
        coins.coins_key(folder)


def test_the_coins_of_another_run_are_refused(folder):
    coins.coins_key(folder, RunKey.generate())
    with pytest.raises(ValueError, match="does not belong to the key"):
        coins.coins_key(folder, RunKey.generate())


def ledger(*entries, branch="mine"):
    rows = [SimpleNamespace(kind=kind, plan_hash=digest, branch=on) for kind, digest, on in entries]
    return SimpleNamespace(entries=rows, header=SimpleNamespace(branch=branch))


def test_coins_that_the_ledger_did_not_commit_to_are_refused(folder):
    """Other coins show nothing, so they would open a gate that the true ones keep shut."""
    held = coins.coins_key(folder, RunKey.generate())
    mine = (coins.COMMITTED, coins.commitment(held), "mine")
    other = (coins.COMMITTED, coins.commitment(coins.simulated_coins(0)), "mine")
    assert coins.coins_of_run(folder, ledger(mine, ("round", "00", "mine"))) == held
    for entries in ([], [other], [mine, other]):
        with pytest.raises(ValueError, match="committed to before the training"):
            coins.coins_of_run(folder, ledger(*entries))
    (folder / "private" / coins.COINS_FILE).unlink()
    with pytest.raises(ValueError, match="canary-coins is missing"):
        coins.coins_of_run(folder, ledger(mine))


def test_a_branch_is_held_against_its_own_commitment(folder):
    held = coins.coins_key(folder, RunKey.generate())
    parent = (coins.COMMITTED, coins.commitment(coins.simulated_coins(0)), "parent")
    mine = (coins.COMMITTED, coins.commitment(held), "mine")
    assert coins.coins_of_run(folder, ledger(parent, mine)) == held


def test_a_commitment_binds_without_telling():
    key = coins.simulated_coins(1)
    assert (
        coins.commitment(key) == coins.commitment(key) != coins.commitment(coins.simulated_coins(2))
    )
    assert key.hex() not in coins.commitment(key)
