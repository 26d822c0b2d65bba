"""One round of a secure sum: what the server gets, and what clients refuse."""

import dataclasses
import hashlib

import numpy as np
import pytest
from scipy.stats import chisquare

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402

from tacit.federation import keys  # noqa: E402
from tacit.federation.kept_sum import KeptSum  # noqa: E402
from tacit.federation.orders import Answer, addressed  # noqa: E402
from tacit.federation.own_ledger import Refused  # noqa: E402
from tacit.federation.roster import Roster  # noqa: E402
from tacit.federation.secure_client import SumMember  # noqa: E402
from tacit.federation.secure_gathering import Masked, NoSum  # noqa: E402
from tacit.federation.sum_ledger import SumLedger  # noqa: E402
from tacit.federation.sum_terms import first_message, message_in, to_answer  # noqa: E402
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution  # noqa: E402
from tacit.mechanisms.samplers import MinSeparationSampler  # noqa: E402
from tacit.privacy.documents import DamagedFile  # noqa: E402
from tacit.secure_sum import RefusedError  # noqa: E402
from tests.federation.members import ADVERT, MASKED, REVEALED, SHARES, Members  # noqa: E402
from tests.federation.test_bounds import plan  # noqa: E402
from tests.federation.test_orders import order as any_order  # noqa: E402

SIX = [hashlib.sha256(bytes([number])).hexdigest()[:32] for number in range(6)]
PRIVATE = {one: Ed25519PrivateKey.generate() for one in SIX}
ROSTER = Roster({one: key.public_key().public_bytes_raw() for one, key in PRIVATE.items()})
SEEDS = {one: hashlib.sha256(one.encode()).digest() for one in SIX}
HEADER = 48  # bytes before a masked input


def order(separation=1, share=1.0, **changes):
    sampler = MinSeparationSampler(separation, share)
    return any_order(**{"plan": plan(layers=None, sampler=sampler)} | changes)


def contribution(one, of):
    """What a client computes: a function of its id and its own order."""
    random = np.random.default_rng(list(hashlib.sha256((one + of.digest).encode()).digest()))
    update = random.integers(-(2**20), 2**20, len(of.weights))
    return Contribution(update, WHOLE_WEIGHT, np.zeros(0, np.int64))


@dataclasses.dataclass
class Computing:
    """Stands for a trainer, which would train."""

    one: str

    def answer(self, of):
        return Answer(of.round, of.attempt, contribution(self.one, of))


def member(folder, one, sums_per_round=1, roster=ROSTER, **options):
    key = keys.ClientKey(one, None, PRIVATE[one], "")
    ledger = SumLedger(folder / f"{one}.sums.jsonl", sums_per_round)
    return SumMember(Computing(one), key, roster, ledger, **options)


def group(folder, change=lambda trip, client, content: content, **options):
    return Members({one: member(folder, one, **options) for one in SIX}, change)


def gathered(folder, clients, of=None, told=lambda what: None):
    made = Masked(clients, ROSTER, KeptSum(folder), told)
    return made.gather(of or order(), SEEDS, None)


def exact(of, clients):
    total = Contribution.zero(len(of.weights), 0)
    for one in clients:
        total += contribution(one, dataclasses.replace(of, seed=SEEDS[one]))
    return total


def assert_equal(total, expected):
    assert (total.update == expected.update).all()
    assert total.weight == expected.weight


def lost(trip, *clients):
    return lambda at, client, content: None if at == trip and client in clients else content


def test_the_sum_is_exact(tmp_path):
    total, there = gathered(tmp_path, group(tmp_path))
    assert there == sorted(SIX)
    assert_equal(total, exact(order(), SIX))


def masked_inputs(clients):
    """The masked vectors that the server received, as bytes."""
    return [
        np.frombuffer(message_in(content)[HEADER:], np.uint8)
        for (trip, _), content in zip(clients.asked, clients.received, strict=True)
        if trip == MASKED
    ]


def uniform(values):
    """The p value of equally likely bytes."""
    return chisquare(np.bincount(values, minlength=256)).pvalue


def test_what_the_server_gets_is_uniform_and_an_update_in_the_clear_is_not(tmp_path):
    """The sound one fails once in 10^6; also the difference of two clients' inputs is tried, which
    a mask that both have would not hide."""
    clients = group(tmp_path)
    gathered(tmp_path, clients)
    inputs = masked_inputs(clients)
    views = [*inputs, *(one - inputs[0] for one in inputs[1:])]
    assert len(views) == 2 * len(SIX) - 1
    assert min(map(uniform, views)) > 1e-6 / len(views)
    own = contribution(SIX[0], order())
    assert uniform(own.update.view(np.uint8).reshape(-1, 8)[:, :5].ravel()) < 1e-12


def test_a_client_that_was_sent_another_model_has_no_mask_in_common_with_the_others(tmp_path):
    """So a server cannot make the others' updates vanish and keep one."""
    clients, told = group(tmp_path), []
    victim = clients.members[SIX[2]]
    honest = victim.answer

    def sent_another(content):
        if "order" in content:
            weights = flower.ArrayRecord({"weights": flower.Array(order().weights + np.float32(1))})
            content = flower.RecordDict({**content, "model": weights})
        return honest(content)

    victim.answer = sent_another
    _, there = gathered(tmp_path, clients, told=told.append)
    assert there == sorted(set(SIX) - {SIX[2]})
    assert "is of another session" in told[0]


def test_a_client_refuses_what_its_owner_did_not_agree_to(tmp_path):
    of = order()
    shared = of.shared()
    content = addressed(shared, SEEDS[SIX[0]])
    own = member(tmp_path, SIX[0])
    with pytest.raises(Refused, match="in the clear"):
        own.answer(content)
    fewer = Roster({one: ROSTER.keys[one] for one in SIX[:5]})
    with pytest.raises(Refused, match="roster is not the one"):
        own.answer(first_message(content, bytes(16), fewer))
    with pytest.raises(Refused, match="hides among 6 at least"):
        member(tmp_path, SIX[0], fewest=6).answer(first_message(content, bytes(16), ROSTER))
    with pytest.raises(ValueError, match="not about a secure sum"):
        own.answer(first_message(content, bytes(15), ROSTER))
    for other, why in (
        (order(share=0.5), "everybody whose turn"),
        (order(4), "3 clients, and of 6 in 4"),
    ):
        seeded = addressed(other.shared(), SEEDS[SIX[0]])
        with pytest.raises(ValueError, match=why):
            own.answer(first_message(seeded, bytes(16), ROSTER))
    assert not (tmp_path / f"{SIX[0]}.sums.jsonl").exists()


def test_a_client_joins_a_sum_once_and_says_the_same_thing_again(tmp_path):
    content = first_message(addressed(order().shared(), SEEDS[SIX[0]]), bytes(16), ROSTER)
    own = member(tmp_path, SIX[0])
    first = message_in(own.answer(content))
    assert message_in(own.answer(content)) == first
    with pytest.raises(RefusedError, match="was in this sum of round 7 before"):
        member(tmp_path, SIX[0]).answer(content)  # started anew, its secrets are gone


def test_a_client_reveals_the_same_sum_again_and_no_other(tmp_path):
    """Else the difference of two sums of a round would be a client's update."""
    gathered(tmp_path / "first", group(tmp_path, lost(MASKED, SIX[0])))
    again = group(tmp_path, lost(MASKED, SIX[0]))
    total, _ = gathered(tmp_path / "second", again)
    assert not again.refused
    assert_equal(total, exact(order(), SIX[1:]))
    for of in (order(), order(attempt=3)):
        more = group(tmp_path)
        with pytest.raises(NoSum):
            gathered(tmp_path / f"third {of.attempt}", more, of)
        assert any("another one, of other survivors" in why for why in more.refused)
        assert not KeptSum(tmp_path / f"third {of.attempt}").read(of)
    allowed = group(tmp_path, sums_per_round=2)
    assert_equal(gathered(tmp_path / "fourth", allowed)[0], exact(order(), SIX))
    other = order(round=8)
    assert_equal(gathered(tmp_path / "fifth", group(tmp_path), other)[0], exact(other, SIX))


def test_too_few_in_any_trip_are_no_sum(tmp_path):
    """Five of six are the threshold."""
    for trip in (ADVERT, SHARES, MASKED, REVEALED):
        clients = group(tmp_path, lost(trip, *SIX[:2]))
        with pytest.raises(NoSum, match="after 3 tries: at least 5 clients"):
            gathered(tmp_path / str(trip), clients, order(round=trip))
        assert clients.sums == 3
    assert_equal(gathered(tmp_path / "last", group(tmp_path))[0], exact(order(), SIX))


def test_a_message_in_another_name_is_refused(tmp_path):
    """Shares and inputs are not signed: the connection says whose they are."""
    told = []

    def pretend(trip, client, content):
        if trip == MASKED and client == SIX[1]:
            message = bytearray(message_in(content))
            message[HEADER - 1] = ROSTER.numbers[SIX[2]]
            return to_answer(bytes(message))
        return content

    _, there = gathered(tmp_path, group(tmp_path, pretend), told=told.append)
    assert there == sorted(set(SIX) - {SIX[1]})
    assert "in the name of" in told[0]


def test_a_sum_that_nobody_honest_can_have_made_is_not_taken(tmp_path):
    def garbage(trip, client, content):
        if trip == MASKED and client == SIX[1]:
            message = bytearray(message_in(content))
            message[HEADER:] = bytes(len(message) - HEADER)
            return to_answer(bytes(message))
        return content

    with pytest.raises(NoSum, match="one of them at least was not honest"):
        gathered(tmp_path, group(tmp_path, garbage))
    assert not (tmp_path / "secure-sum.npz").exists()


def test_a_server_goes_on_with_the_sum_that_it_has(tmp_path):
    gathered(tmp_path, group(tmp_path))
    nobody = Members({})
    total, there = gathered(tmp_path, nobody)
    assert (nobody.sums, there) == (0, sorted(SIX))
    assert_equal(total, exact(order(), SIX))
    assert KeptSum(tmp_path).read(order(attempt=5)) is None
    assert KeptSum(tmp_path).read(order(weights=order().weights * 2)) is None
    file = tmp_path / "secure-sum.npz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DamagedFile, match=r"secure-sum\.npz is damaged"):
        gathered(tmp_path, nobody)
    KeptSum(tmp_path).forget()
    assert KeptSum(tmp_path).read(order()) is None


@pytest.fixture(autouse=True)
def folders(tmp_path):
    for name in ("first", "second", "third 1", "third 3", "fourth", "fifth", "last", *"0124"):
        (tmp_path / name).mkdir()
