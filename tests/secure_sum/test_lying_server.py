"""What a client refuses: a server that lies about who is there, and messages out of place.

Every refusal is one sentence, changes nothing, and comes before anything secret is said.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.secure_sum import (
    RefusedError,
    Session,
    SessionMemory,
    SumClient,
    SumRules,
    SumServer,
)
from tacit.secure_sum.messages import (
    HEADER_SIZE,
    SERVER,
    Advert,
    Confirmation,
    Kind,
    RevealedShare,
    ShareOf,
    pack,
    split,
    unpack,
)
from tests.secure_sum.parties import KEYS, SESSION, Group, roster_of, rules_for


def entries(message: bytes, size: int) -> list[bytes]:
    return split(memoryview(message)[HEADER_SIZE:], size)


def from_server(group: Group, kind: Kind, *items: bytes) -> bytes:
    return pack(kind, group.session.context(group.rules), SERVER, items)


def ids_of(*ids: int) -> list[bytes]:
    return [one.to_bytes(8, "big") for one in ids]


# Who is there


def test_a_client_that_nobody_enrolled_is_refused():
    """A server cannot fill the group with clients of its own."""
    group = Group(rules_for(4))
    adverts = entries(group.advertise()[1], Advert.SIZE)
    mallory = Ed25519PrivateKey.generate()
    fake = Advert.from_bytes(adverts[-1])
    fake = replace(fake, sender=9, exchange=b"\x09" + bytes(31), masking=b"\x08" + bytes(31))
    fake = replace(fake, signature=mallory.sign(fake.signed(group.session.context(group.rules))))
    lie = from_server(group, Kind.ADVERTS, *adverts[:-1], fake.to_bytes())
    with pytest.raises(RefusedError, match="client 9 is not enrolled"):
        group.clients[1].share(lie)


def test_a_key_that_its_client_has_not_signed_is_refused():
    """A server cannot put its own key in the place of a client's."""
    group = Group(rules_for(4))
    adverts = [Advert.from_bytes(e) for e in entries(group.advertise()[1], Advert.SIZE)]
    adverts[2] = replace(adverts[2], masking=b"\x09" + bytes(31))
    lie = from_server(group, Kind.ADVERTS, *(advert.to_bytes() for advert in adverts))
    with pytest.raises(RefusedError, match="the keys of client 3 are not signed by it"):
        group.clients[1].share(lie)


def test_keys_signed_for_another_attempt_are_refused():
    earlier = Group(rules_for(4), session=replace(SESSION, attempt=7))
    group = Group(rules_for(4))
    old = entries(earlier.advertise()[1], Advert.SIZE)[3]
    adverts = entries(group.advertise()[1], Advert.SIZE)
    lie = from_server(group, Kind.ADVERTS, *adverts[:3], old)
    with pytest.raises(RefusedError, match="the keys of client 4 are not signed by it"):
        group.clients[1].share(lie)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: [a[0], a[1], a[3], a[2]], "ids must be ascending"),
        (lambda a: [*a, a[3]], "listed more than once"),
        (lambda a: a[1:], "the keys of client 1 are not its own"),
        (lambda a: a[:2], "advertised keys must be from 3 to 4, got 2"),
        (lambda a: [a[0], a[1], a[2], a[3][:8] + a[2][8:]], "two clients have advertised the same"),
        (lambda a: [a[0], a[1], a[2], a[3][:-1]], "a body must be a multiple of 168 bytes"),
        (lambda a: [bytes(8) + a[0][8:], *a], "ids must be from 1 to"),
    ],
)
def test_a_list_of_keys_that_is_not_right_is_refused_and_the_right_one_taken(change, message):
    group = Group(rules_for(4))
    inbox = group.advertise()
    adverts = entries(inbox[1], Advert.SIZE)
    with pytest.raises(RefusedError, match=message):
        group.clients[1].share(from_server(group, Kind.ADVERTS, *change(adverts)))
    assert group.clients[1].share(inbox[1])


def test_more_clients_than_the_rules_allow_are_refused():
    group = Group(rules_for(4, threshold=3, survivors=3))
    more = Group(rules_for(4), ids=(1, 2, 3, 4, 5))
    client = more.clients[5]
    fifth = client.advertise()[HEADER_SIZE:]
    adverts = entries(group.advertise()[1], Advert.SIZE)
    client = SumClient(1, KEYS[1], roster_of(range(1, 6)), SESSION, group.rules, SessionMemory())
    own = client.advertise()[HEADER_SIZE:]
    with pytest.raises(RefusedError, match="must be from 3 to 4, got 5"):
        client.share(from_server(group, Kind.ADVERTS, own, *adverts[1:], fifth))


def shared(clients: int = 4) -> tuple[Group, dict[int, bytes]]:
    group = Group(rules_for(clients))
    return group, group.share(group.advertise())


def test_shares_from_too_few_are_refused():
    """One among few is hardly hidden."""
    group, inbox = shared()
    two = entries(inbox[1], 90)[:1]
    with pytest.raises(RefusedError, match="that have shared must be from 3 to 4, got 2"):
        group.clients[1].mask(from_server(group, Kind.SHARES_FOR_YOU, *two), group.vectors[1])


def test_shares_from_a_stranger_or_twice_are_refused():
    group, inbox = shared()
    own = entries(inbox[1], 90)
    stranger = (9).to_bytes(8, "big") + own[0][8:]
    for items, message in (
        ([*own, stranger], r"shares came from \[9\]"),
        ([own[0], *own], "each once"),
    ):
        with pytest.raises(RefusedError, match=message):
            group.clients[1].mask(from_server(group, Kind.SHARES_FOR_YOU, *items), group.vectors[1])


@pytest.mark.parametrize(
    ("survivors", "message"),
    [
        ((1, 2), "survivors must be from 3 to 4, got 2"),
        ((2, 3, 4), "client 1 is not among the survivors"),
        ((1, 2, 9), r"must have shared their keys, got \[9\]"),
        ((1, 3, 2), "ids must be ascending"),
        ((1, 2, 2, 3), "each once"),
    ],
)
def test_survivors_that_cannot_be_are_refused(survivors, message):
    group, inbox = shared()
    group.mask(inbox)
    lie = from_server(group, Kind.SURVIVORS, *ids_of(*survivors))
    with pytest.raises(RefusedError, match=message):
        group.clients[1].confirm(lie)


def test_a_server_that_tells_two_halves_different_survivors_gets_no_share_from_either():
    """The attack: half reveal a seed, the other half the key of the same client."""
    group, inbox = shared(6)
    group.mask(inbox)
    told = {one: (1, 2, 3, 4, 5, 6) if one < 4 else (1, 2, 4, 5, 6) for one in (1, 2, 4, 5, 6)}
    signed = {
        one: group.clients[one].confirm(from_server(group, Kind.SURVIVORS, *ids_of(*ids)))
        for one, ids in told.items()
    }
    all_signed = [Confirmation(one, s[HEADER_SIZE:]).to_bytes() for one, s in signed.items()]
    for one, they in told.items():
        with pytest.raises(RefusedError, match="was told that others are there than we"):
            group.clients[one].reveal(from_server(group, Kind.CONFIRMATIONS, *all_signed))
        same = [
            Confirmation(other, s[HEADER_SIZE:]).to_bytes()
            for other, s in signed.items()
            if told[other] == they
        ]
        with pytest.raises(RefusedError, match=r"at least 5 survivors must confirm .*, got [23]"):
            group.clients[one].reveal(from_server(group, Kind.CONFIRMATIONS, *same))


def test_a_server_that_tells_two_halves_of_different_sharers_gets_no_share():
    """Masks with a client of which others do not know would hide nothing from it."""
    group, inbox = shared(6)
    for one, message in inbox.items():
        some = entries(message, 90)
        if one < 4:  # they are not told of client 6
            some = [e for e in some if int.from_bytes(e[:8], "big") != 6]
        if one != 6:
            forged = from_server(group, Kind.SHARES_FOR_YOU, *some)
            group.server.receive(group.clients[one].mask(forged, group.vectors[one]))
    five = from_server(group, Kind.SURVIVORS, *ids_of(1, 2, 3, 4, 5))
    signed = [
        Confirmation(one, group.clients[one].confirm(five)[HEADER_SIZE:]).to_bytes()
        for one in range(1, 6)
    ]
    for one in range(1, 6):
        with pytest.raises(RefusedError, match="was told that others are there than we"):
            group.clients[one].reveal(from_server(group, Kind.CONFIRMATIONS, *signed))


def confirmed(clients: int = 4) -> tuple[Group, dict[int, bytes]]:
    group, inbox = shared(clients)
    return group, group.confirm(group.mask(inbox, {clients}))


def test_confirmations_of_strangers_repeated_or_too_few_are_refused():
    group, inbox = confirmed()
    signed = entries(inbox[1], Confirmation.SIZE)
    dropped_out = (4).to_bytes(8, "big") + signed[0][8:]
    for items, message in (
        (signed[:2], "at least 3 survivors must confirm .*, got 2"),
        ([signed[0], signed[0], signed[1]], "each once"),
        ([*signed[:2], dropped_out], r"\[4\] confirmed without being survivors"),
        ([*signed[:2], signed[2][:-1] + b"\0"], "client 3 was told"),
    ):
        with pytest.raises(RefusedError, match=message):
            group.clients[1].reveal(from_server(group, Kind.CONFIRMATIONS, *items))
    assert group.clients[1].reveal(inbox[1])


def test_no_client_ever_reveals_both_kinds_of_share_of_a_peer_or_its_own_key():
    group, inbox = confirmed(6)
    for one, message in inbox.items():
        answer = group.clients[one].reveal(message)
        shares = [RevealedShare.from_bytes(e) for e in entries(answer, RevealedShare.SIZE)]
        assert [share.peer for share in shares] == [1, 2, 3, 4, 5, 6]
        assert [share.of for share in shares] == [ShareOf.SEED] * 5 + [ShareOf.KEY]


# Sessions


def test_every_message_is_sent_once():
    group = Group(rules_for(3))
    client = group.clients[1]
    verbs = [
        lambda _: client.advertise(),
        client.share,
        lambda message: client.mask(message, group.vectors[1]),
        client.confirm,
        client.reveal,
    ]
    inbox = {1: b""}
    phases = [group.advertise, group.share, group.mask, group.confirm, group.reveal]
    for phase, verb in zip(phases, verbs, strict=True):
        before = inbox[1]
        inbox = (phase() if phase == group.advertise else phase(inbox)) or {1: b""}
        for again in verbs:
            if again is not verbs[min(verbs.index(verb) + 1, 4)] or verb is verbs[4]:
                with pytest.raises(RefusedError, match="sends each message once and in order"):
                    again(before)


def test_a_client_never_takes_part_twice_in_a_session_whatever_it_forgot():
    group = Group(rules_for(3))
    memory = SessionMemory()
    group.client(1, log=memory).advertise()
    with pytest.raises(RefusedError, match=r"in the session before \(run run, round 3, attempt 0"):
        group.client(1, log=memory).advertise()
    other_rules = rules_for(3, survivors=3, size=7)
    with pytest.raises(RefusedError, match="was in the session before"):
        group.client(1, other_rules, memory).advertise()


def attempts(memory: SessionMemory, count: int) -> None:
    """So many attempts of one round, in all of which client 1 helps unmask."""
    for attempt in range(count):
        group = Group(rules_for(3), session=replace(SESSION, attempt=attempt))
        group.clients[1] = group.client(1, log=memory)
        group.run()


def test_a_client_helps_unmask_one_sum_of_a_round_or_as_many_as_it_was_told():
    """Two sums that differ by one client give that one away."""
    attempts(SessionMemory(2), 2)
    with pytest.raises(RefusedError, match=r"has helped unmask 1 sum.* of round 3 already"):
        attempts(SessionMemory(), 2)


def test_a_failed_attempt_does_not_count():
    memory = SessionMemory()
    group = Group(rules_for(3), session=replace(SESSION, attempt=9))
    group.clients[1] = group.client(1, log=memory)
    group.mask(group.share(group.advertise()))
    attempts(memory, 1)


def test_another_attempt_that_was_open_is_refused_once_a_sum_of_the_round_is_unmasked():
    memory = SessionMemory()
    group, inbox = shared(3)
    memory.join(SESSION)
    group.clients[1]._log = memory
    inbox = group.confirm(group.mask(inbox))
    attempts_of_another = Group(rules_for(3), session=replace(SESSION, attempt=1))
    attempts_of_another.clients[1] = attempts_of_another.client(1, log=memory)
    attempts_of_another.run()
    with pytest.raises(RefusedError, match="has helped unmask"):
        group.clients[1].reveal(inbox[1])
    with pytest.raises(RefusedError, match="has not joined the session"):
        memory.reveal(replace(SESSION, round=8))


@pytest.mark.parametrize(
    ("session", "rules"),
    [
        (replace(SESSION, attempt=1), rules_for(4)),
        (replace(SESSION, round=4), rules_for(4)),
        (replace(SESSION, run="other"), rules_for(4)),
        (SESSION, rules_for(4, size=41)),
        (SESSION, rules_for(4, limit=7)),
    ],
)
def test_messages_of_another_session_or_other_rules_are_refused_by_both_sides(session, rules):
    group, other = Group(rules_for(4)), Group(rules, session)
    with pytest.raises(RefusedError, match="of another session, round, attempt or set of rules"):
        group.server.receive(other.clients[1].advertise())
    group.clients[1].advertise()
    with pytest.raises(RefusedError, match="of another session, round, attempt or set of rules"):
        group.clients[1].share(other.advertise({1})[2])


def test_a_session_has_a_name_and_counts_from_zero():
    with pytest.raises(ValueError, match="round must be at least 0, got -1"):
        Session("run", -1, 0)
    with pytest.raises(ValueError, match="run must be text that is not empty"):
        Session("", 0, 0)


def test_a_client_has_to_be_in_the_roster_with_its_own_key():
    with pytest.raises(ValueError, match="client 1 is not in the roster with its own key"):
        SumClient(1, KEYS[2], roster_of([1, 2]), SESSION, rules_for(3), SessionMemory())


# What the server refuses costs only its sender


def test_a_message_is_taken_once_and_in_its_phase():
    group = Group(rules_for(4))
    advert = group.clients[1].advertise()
    assert group.server.receive(advert) == 1
    assert group.server.answered == {1}
    assert group.server.expected == {2, 3, 4}
    with pytest.raises(RefusedError, match="client 1 has answered in this phase before"):
        group.server.receive(advert)
    for one in (2, 3):
        group.server.receive(group.clients[one].advertise())
    late = group.clients[4].advertise()
    group.server.advance()
    with pytest.raises(RefusedError, match="expected a message of kind 'shares', got 'advert'"):
        group.server.receive(late)
    stranger = pack(Kind.SHARES, group.session.context(group.rules), 4)
    with pytest.raises(RefusedError, match="client 4 is not in this phase"):
        group.server.receive(stranger)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m[:20], "a message must have at least 48 bytes, got 20"),
        (lambda m: b"flwr" + m[4:], "not a message of a secure sum of version 1"),
        (lambda m: m[:4] + b"\x02" + m[5:], "not a message of a secure sum of version 1"),
        (lambda m: m[:5] + b"\x63" + m[6:], "expected a message of kind 'advert', got '99'"),
        (lambda m: m[:-1], "an advert must have 168 bytes, got 167"),
        (lambda m: m[:-1] + bytes([m[-1] ^ 1]), "the keys of client 1 are not signed by it"),
        (lambda m: m[:47] + b"\x02" + m[48:], "client 2 sent the keys of client 1"),
        (lambda m: m[:47] + b"\x09" + m[48:], "client 9 is not in this phase"),
    ],
)
def test_an_advert_that_is_not_right_is_refused_and_the_right_one_taken(change, message):
    group = Group(rules_for(4))
    advert = group.clients[1].advertise()
    with pytest.raises(RefusedError, match=message):
        group.server.receive(change(advert))
    assert group.server.receive(advert) == 1


def test_adverts_with_keys_in_use_or_of_no_use_or_beyond_the_group_are_refused():
    group = Group(rules_for(3), ids=(1, 2, 3, 4))
    context = group.session.context(group.rules)
    first = Advert.from_bytes(group.clients[1].advertise()[HEADER_SIZE:])
    group.server.receive(pack(Kind.ADVERT, context, 1, [first.to_bytes()]))
    for changes, message in (
        ({"masking": first.exchange}, "client 2 has sent a key that is in use"),
        ({"masking": bytes(32)}, "client 2 has no valid X25519 key"),
    ):
        second = replace(first, sender=2, exchange=b"\x09" + bytes(31), **changes)
        second = replace(second, signature=KEYS[2].sign(second.signed(context)))
        with pytest.raises(RefusedError, match=message):
            group.server.receive(pack(Kind.ADVERT, context, 2, [second.to_bytes()]))
    for one in (2, 3):
        group.server.receive(group.clients[one].advertise())
    with pytest.raises(RefusedError, match="the session has its 3 clients already"):
        group.server.receive(group.clients[4].advertise())


def test_a_masked_input_of_another_length_is_refused_and_leaves_the_sum():
    group, inbox = shared()
    sent = {one: group.clients[one].mask(inbox[one], group.vectors[one]) for one in inbox}
    for wrong in (sent[1][:-1], sent[1] + bytes(8), sent[1][:48]):
        with pytest.raises(RefusedError, match="a masked input must be 320 bytes long"):
            group.server.receive(wrong)
    for message in sent.values():
        group.server.receive(message)
    inbox = group.confirm(group.server.advance())
    group.reveal(inbox)
    assert np.array_equal(group.server.total, group.sum_of(group.ids))
    with pytest.raises(RefusedError, match="the sum is complete, and no more messages"):
        group.server.receive(sent[1])
    with pytest.raises(RefusedError, match="no phase is left to end"):
        group.server.advance()


def test_shares_confirmations_and_reveals_that_are_not_right_are_refused():
    group = Group(rules_for(4))
    context = group.session.context(group.rules)
    inbox = group.advertise()
    own = group.clients[1].share(inbox[1])
    with pytest.raises(RefusedError, match="client 1 has not sent a share for each other client"):
        group.server.receive(own[:-90])
    group.server.receive(own)
    group.clients[1].share = lambda _: own  # type: ignore[method-assign]
    for one in (2, 3, 4):
        group.server.receive(group.clients[one].share(inbox[one]))
    inbox = group.mask(group.server.advance(), {4})
    with pytest.raises(RefusedError, match="client 1 has not signed who is there"):
        group.server.receive(pack(Kind.CONFIRMATION, context, 1, [bytes(64)]))
    with pytest.raises(RefusedError, match="client 4 is not in this phase"):
        group.server.receive(pack(Kind.CONFIRMATION, context, 4, [bytes(64)]))
    inbox = group.confirm(inbox)
    share = bytes(33)
    for revealed, message in (
        (RevealedShare(4, ShareOf.SEED, share), "client 1 revealed the wrong share of 4"),
        (RevealedShare(2, ShareOf.KEY, share), "client 1 revealed the wrong share of 2"),
        (RevealedShare(9, ShareOf.KEY, share), "revealed a share of 9, who shared none"),
    ):
        with pytest.raises(RefusedError, match=message):
            group.server.receive(pack(Kind.REVEALED, context, 1, [revealed.to_bytes()]))
    group.reveal(inbox)
    assert np.array_equal(group.server.total, group.sum_of([1, 2, 3]))


def test_a_server_can_wait_on_after_too_few_have_come():
    group = Group(rules_for(3))
    for one in (1, 2):
        group.server.receive(group.clients[one].advertise())
    with pytest.raises(Exception, match="at least 3 clients must have sent their advert, got 2"):
        group.server.advance()
    group.server.receive(group.clients[3].advertise())
    assert set(group.server.advance()) == {1, 2, 3}


def test_a_client_takes_no_message_of_another_client_for_one_of_the_server():
    group = Group(rules_for(3))
    inbox = group.advertise()
    context = group.session.context(group.rules)
    forged = pack(Kind.ADVERTS, context, 2, entries(inbox[1], Advert.SIZE))
    with pytest.raises(RefusedError, match="expected a message of the server, got one of client 2"):
        group.clients[1].share(forged)
    assert unpack(inbox[1], Kind.ADVERTS, context)[0] == SERVER


def test_the_server_needs_no_secret():
    rules = SumRules.against_a_lying_server(4, 10, 100)
    assert SumServer(SESSION, rules, roster_of(range(1, 5))).expected == {1, 2, 3, 4}
