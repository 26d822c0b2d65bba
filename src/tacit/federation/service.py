"""Flower's Fleet API, served over TLS from the process that trains.

Only enrolled clients are known: each request is signed with the client's key, and nobody can
register here.  A body that is larger than an honest client's is refused before it is read, and so
is an answer in another client's name (Flower checks who asks, and not who is said to answer).

Memory does not grow with the clients: all are sent the model from the same bytes, in pieces, as
fast as each takes them; and an answer is taken when there is room for it (`waiting_room`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import uvicorn
from fastapi import HTTPException
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers

from tacit.federation.fleet import FleetState
from tacit.federation.keys import ServerFiles
from tacit.federation.waiting_room import WaitingRoom

_SLACK = 1 << 16  # bytes that a request has besides the values in it
_MOST_FETCHING, _LONGEST_FETCH = 64, 600  # clients at once, and seconds of one
_PIECE = 1 << 16  # bytes that are sent before a client has to take some
_LONGEST_WAIT = 10.0  # seconds that a request waits here: clients give up after 30
_OBJECT = 5_242_880  # bytes of the largest piece of an array, as Flower cuts them


def _pull_messages(sent: Any, state: FleetState) -> Any:
    return fleet_handlers.pull_messages(sent, state, state.object_store)


# What clients need of Flower's Fleet API, and nothing else of Flower's.
_SERVED: dict[str, tuple[Callable[[], Any], Callable[[Any, FleetState], Any]]] = {
    "/v1/fleet/activate-node": (ActivateNodeRequest, fleet_handlers.activate_node),
    "/v1/fleet/deactivate-node": (DeactivateNodeRequest, fleet_handlers.deactivate_node),
    "/v1/fleet/send-node-heartbeat": (
        SendNodeHeartbeatRequest,
        fleet_handlers.send_node_heartbeat,
    ),
    "/v1/fleet/pull-messages": (PullMessagesRequest, _pull_messages),
    "/v1/fleet/push-messages": (PushMessagesRequest, fleet_handlers.push_messages),
    "/v1/fleet/pull-object": (PullObjectRequest, fleet_handlers.pull_object),
    "/v1/fleet/push-object": (PushObjectRequest, fleet_handlers.push_object),
}


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """HOST:PORT, with the host in brackets if it has colons."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError(f"an address must be HOST:PORT, such as 0.0.0.0:8443, got {text!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; a name is looked up by nobody here."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def refuse_insecure(self) -> None:
        """Raise unless it is on this machine: without TLS everybody on the way sees updates."""
        if not self.is_loopback:
            raise ValueError(
                f"--insecure is for 127.0.0.1 only: on {self.host} everybody on the way would see"
                " each client's update and its seed"
            )


class Service:
    """The Fleet API on a socket, in a thread of its own until it is closed."""

    def __init__(
        self,
        state: FleetState,
        address: Address,
        files: ServerFiles | None,
        *,
        silence: float,
    ) -> None:
        """`files` are the certificate and its key; None for no TLS, which is for loopback alone.

        A client that waits for an order is heard twice in `silence` seconds.
        """
        if files is None:
            address.refuse_insecure()
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((address.host, address.port))
        except OSError as problem:
            self._socket.close()
            raise ValueError(f"cannot listen on {address}: {problem.strerror}") from None
        self.address = Address(address.host, self._socket.getsockname()[1])
        certificate: dict[str, Any] = {}
        if files is not None:
            files.refuse_unusable()
            certificate = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
        self._server = uvicorn.Server(
            uvicorn.Config(
                FleetApp(state, min(_LONGEST_WAIT, silence / 2)),
                log_config=None,
                log_level="critical",
                access_log=False,
                interface="asgi3",
                lifespan="off",
                ws="none",
                timeout_keep_alive=60,
                timeout_graceful_shutdown=1,
                **certificate,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise ValueError(f"the service on {self.address} could not be started")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()


class FleetApp:
    """Flower's handlers behind its check of signatures, as an ASGI app without a framework.

    A framework's layers would take more time than the handlers, and keep what clients have sent
    until Python looks for cycles.
    """

    def __init__(self, state: FleetState, patience: float) -> None:
        self._state, self._room = state, WaitingRoom(state, patience)
        self._fetching = asyncio.Semaphore(_MOST_FETCHING)
        self._hashing = ThreadPoolExecutor(2)
        factory = SimpleNamespace(state=lambda: state)
        self._app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        code, reply = await self._reply(scope, receive)
        start = {"type": "http.response.start", "status": code}
        kind = PROTOBUF_MEDIA_TYPE if code == 200 else "text/plain"
        headers = {"content-type": kind, "content-length": str(len(reply))}
        start["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send(start)
        if len(reply) <= _PIECE:
            await send({"type": "http.response.body", "body": reply})
            return
        async with self._fetching:
            with suppress(TimeoutError):  # the client asks again
                await asyncio.wait_for(_send_in_pieces(send, reply), _LONGEST_FETCH)

    async def _reply(self, scope: Any, receive: Any) -> tuple[int, bytes]:
        """The code and the body of the reply; what is too large is refused before it is read."""
        if scope["path"] not in _SERVED or scope["method"] != "POST":
            return 404, b"not served here"
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        largest = min(self._state.largest, _OBJECT) + _SLACK
        if not length.isdecimal() or int(length) > largest:  # the server holds a body to its length
            return 413, b"too large"
        make, handle = _SERVED[scope["path"]]
        sent = make()
        try:
            sent.ParseFromString(await _read(receive))
            self._authenticate(headers, sent)
            return 200, await self._handled(sent, handle)
        except DecodeError:
            return 400, b"not such a request"
        except HTTPException as refusal:
            return refusal.status_code, str(refusal.detail).encode()
        except FlowerError as refusal:
            return API_ERROR_MAP[refusal.code].http_status_code, b"refused"

    def _authenticate(self, headers: Headers, sent: Any) -> None:
        """Flower's check that an enrolled client has signed, and that it is the node it says."""
        signed = SimpleNamespace(protobuf_request=sent)
        request: Any = SimpleNamespace(headers=headers, state=signed, app=self._app)
        authenticate_node(request)

    async def _handled(self, sent: Any, handle: Callable[[Any, FleetState], Any]) -> bytes:
        """What Flower replies, or what is known without it; a request may wait for its turn."""
        if hasattr(sent, "node"):
            self._state.hear(sent.node.node_id)
        if isinstance(sent, PullObjectRequest):
            if (reply := self._state.reply_with(sent.object_id)) is not None:
                self._state.store_traffic(sent.run_id, bytes_sent=len(reply), bytes_recv=0)
                return reply
        elif isinstance(sent, PullMessagesRequest):
            await self._room.for_order(sent.node.node_id)
        elif isinstance(sent, PushMessagesRequest):
            _refuse_other_names(sent, self._state.largest)
            await self._room.for_room()
        elif isinstance(sent, PushObjectRequest):
            loop = asyncio.get_running_loop()
            stored = await loop.run_in_executor(self._hashing, handle, sent, self._state)
            return bytes(stored.SerializeToString())
        return bytes(handle(sent, self._state).SerializeToString())


async def _read(receive: Any) -> bytes:
    """The body of a request; a client that is gone meanwhile has sent no such request."""
    pieces = []
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise DecodeError
        pieces.append(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(pieces)


async def _send_in_pieces(send: Any, body: bytes) -> None:
    """Send it all; `send` waits while the client has not taken what was sent before."""
    left = memoryview(body)
    while len(left) > _PIECE:
        await send({"type": "http.response.body", "body": left[:_PIECE], "more_body": True})
        left = left[_PIECE:]
    await send({"type": "http.response.body", "body": left})


def _refuse_other_names(sent: PushMessagesRequest, largest: int) -> None:
    """Raise unless an answer is one message, from the node that signed, of a few objects."""
    most = 16 + largest // _OBJECT
    trees = sent.message_object_trees
    if not (
        len(sent.messages_list) == len(trees) == 1
        and sent.messages_list[0].metadata.src_node_id == sent.node.node_id
        and sum(1 for _ in iterate_object_tree(trees[0])) <= most
    ):
        raise HTTPException(403, "not an answer of this client")
