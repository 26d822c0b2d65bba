"""How many bytes a client of a round is sent and sends, from the messages as they are built.

Counted are the bodies of requests and their replies.  Besides, each request has about a kilobyte of
headers, among them the client's key and signature, and what TLS adds.  Small parts of answers that
another client has sent just now (a weight, say) need not be sent again; that is not counted on.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    Reconnect,
)
from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

from tacit.federation.fleet import TRAIN
from tacit.federation.flower import ConfigRecord, Message, RecordDict
from tacit.federation.orders import Answer, Order, addressed, width_of
from tacit.federation.sum_terms import NAME_SIZE, later_message, to_answer
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution
from tacit.secure_sum import ContributionLayout, width_for
from tacit.secure_sum.messages import (
    SERVER,
    SIGNATURE_SIZE,
    Advert,
    Confirmation,
    Kind,
    RevealedShare,
    SealedShares,
    pack,
)

_ID = (1 << 63) + 1  # of a run or a node: drawn from 64 bits, and written in ten bytes
_DIGEST, _SESSION = "0" * 64, "0" * 36  # a SHA-256, a UUID


@dataclass(frozen=True)
class Traffic:
    """Of one client: its requests, and the bytes of their bodies."""

    requests: int = 0
    sent: int = 0  # by the server
    received: int = 0

    def __add__(self, other: Self) -> Traffic:
        return Traffic(
            self.requests + other.requests,
            self.sent + other.sent,
            self.received + other.received,
        )


def round_traffic(order: Order) -> Traffic:
    """What a client of a round in the clear takes and hands in."""
    draw = np.random.default_rng(0)
    limit = order.plan.grid(order.clip_state).limit
    update = draw.integers(-limit + 1, limit, len(order.weights))  # zeros would be sent once
    bits = np.zeros(order.plan.bits, np.int64)
    answer = Answer(order.round, order.attempt, Contribution(update, WHOLE_WEIGHT, bits))
    return _trip(
        addressed(order.shared(), bytes(32)), answer.to_content(width_of(limit)), RecordDict()
    )


def secure_traffic(order: Order, clients: int) -> Traffic:
    """What a client of a secure sum of so many takes and hands in, if nobody is lost."""
    shared = addressed(order.shared(), bytes(32))
    invitation = ConfigRecord({"name": bytes(NAME_SIZE), "roster": _DIGEST})
    content = RecordDict({**shared, "sum": invitation})
    total, before = Traffic(), RecordDict()
    for asked, answered in _sum_messages(order, clients):
        content = later_message(bytes(NAME_SIZE), asked) if asked else content
        total += _trip(content, to_answer(answered), before)
        before = content
    return total


def _sum_messages(order: Order, clients: int) -> Iterator[tuple[bytes, bytes]]:
    """What the server's state machine says to a client, and the client's, in the order of trips."""
    grid = order.plan.grid(order.clip_state)
    layout = ContributionLayout.for_grid(grid, len(order.weights), order.plan.bits)
    width = width_for(clients, layout.limit)
    vector = np.random.default_rng(0).bytes(layout.size * width // 8)

    def of(kind: Kind, *entries: bytes) -> bytes:
        return pack(kind, bytes(32), SERVER, entries)

    adverts, shares = [bytes(Advert.SIZE)] * clients, [bytes(SealedShares.SIZE)] * (clients - 1)
    confirmations = [bytes(Confirmation.SIZE)] * clients
    revealed = [bytes(RevealedShare.SIZE)] * clients
    yield b"", of(Kind.ADVERT, adverts[0])
    yield of(Kind.ADVERTS, *adverts), of(Kind.SHARES, *shares)
    yield of(Kind.SHARES_FOR_YOU, *shares), of(Kind.MASKED, vector)
    yield of(Kind.SURVIVORS, *[bytes(8)] * clients), of(Kind.CONFIRMATION, bytes(SIGNATURE_SIZE))
    yield of(Kind.CONFIRMATIONS, *confirmations), of(Kind.REVEALED, *revealed)


def _trip(content: RecordDict, answer: RecordDict, before: RecordDict) -> Traffic:
    """A message to a client and its answer, as `connection` takes and hands in.

    Of the message, what is as in the one before is not fetched again.
    """
    with no_object_id_recompute():
        known = get_all_nested_objects(before)
    return _taken(_message(content), known) + _handed_in(_message(answer, reply_to=_DIGEST))


def _taken(message: Message, known: Container[str]) -> Traffic:
    with no_object_id_recompute():
        tree, objects = get_object_tree(message), get_all_nested_objects(message)
    node, head = Node(node_id=_ID), message_to_proto(_head(message))
    found = PullMessagesResponse(messages_list=[head], message_object_trees=[tree])
    total = Traffic(1, found.ByteSize(), PullMessagesRequest(node=node).ByteSize())
    for one, part in objects.items():
        if one in known:
            continue
        request = PullObjectRequest(node=node, run_id=_ID, object_id=one)
        reply = PullObjectResponse(
            object_found=True, object_available=True, object_content=part.deflate()
        )
        total += Traffic(1, reply.ByteSize(), request.ByteSize())
    return total


def _handed_in(message: Message) -> Traffic:
    with no_object_id_recompute():
        tree, objects = get_object_tree(message), get_all_nested_objects(message)
    node, head = Node(node_id=_ID), message_to_proto(_head(message))
    request = PushMessagesRequest(
        node=node,
        messages_list=[head],
        message_object_trees=[tree],
        clientapp_runtime_list=[0.0],
    )
    reply = PushMessagesResponse(
        reconnect=Reconnect(reconnect=5),
        results={_DIGEST: 0},
        objects_to_push=list(objects),
        session_id=_SESSION,
    )
    total = Traffic(1, reply.ByteSize(), request.ByteSize())
    for one, part in objects.items():
        pushed = PushObjectRequest(
            node=node,
            run_id=_ID,
            object_id=one,
            object_content=part.deflate(),
            session_id=_SESSION,
        )
        total += Traffic(1, PushObjectResponse(stored=True).ByteSize(), pushed.ByteSize())
    return total


def _message(content: RecordDict, reply_to: str = "") -> Message:
    ends = (_ID, SUPERLINK_NODE_ID) if reply_to else (SUPERLINK_NODE_ID, _ID)
    return Message(content, metadata=Metadata(_ID, _DIGEST, *ends, reply_to, "", 1e9, 1e4, TRAIN))


def _head(message: Message) -> Message:
    return Message(RecordDict(), metadata=message.metadata)
