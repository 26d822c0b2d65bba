"""Flower's Fleet API, served over TLS from the process that trains.

Only enrolled clients are known: each request is signed with the client's key, and nobody can
register here.  A body that is larger than an honest client's is refused before it is read, and so
is an answer in another client's name (Flower checks who asks, and not who is said to answer).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, Response

from tacit.federation.fleet import FleetState
from tacit.federation.keys import ServerFiles

_SLACK = 1 << 16  # bytes that a request has besides the values in it
_MOST_FETCHING, _LONGEST_FETCH = 16, 120  # clients at once, and seconds of one
_OBJECT = 5_242_880  # bytes of the largest piece of an array, as Flower cuts them
_SERVED = {
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
    )
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
        limits: SimpleNamespace,
    ) -> None:
        """`files` are the certificate and its key; None for no TLS, which is for loopback alone."""
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
                fleet_app(state, limits),
                log_config=None,
                log_level="critical",
                access_log=False,
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


def fleet_app(state: FleetState, limits: SimpleNamespace) -> FastAPI:
    """The part of Flower's Fleet API that clients need, and nothing else of Flower's."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(_Limited, limits),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=_refuse_other_names(limits)),
        ],
    )
    app.state.linkstate_factory = SimpleNamespace(state=lambda: state)
    app.state.enable_supernode_auth = True  # nobody registers over the network
    app.include_router(router)
    return app


class _Limited:
    """Refuses what is not served, and bodies that are too large, without reading them.

    Few clients at a time are sent the model, so that memory does not grow with all who wait for it.
    """

    def __init__(self, app: Any, limits: SimpleNamespace) -> None:
        self._app, self._limits = app, limits
        self._fetching = asyncio.Semaphore(_MOST_FETCHING)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in _SERVED:
            await PlainTextResponse("not served here", 404)(scope, receive, send)
            return
        largest = min(self._limits.largest, _OBJECT) + _SLACK
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > largest:  # the server holds a body to its length
            await PlainTextResponse("too large", 413)(scope, receive, send)
            return
        if not scope["path"].endswith("/pull-object"):
            await self._app(scope, receive, send)
            return
        async with self._fetching:
            with suppress(TimeoutError):  # the client asks again
                await asyncio.wait_for(self._app(scope, receive, send), _LONGEST_FETCH)


def _refuse_other_names(limits: SimpleNamespace) -> Callable[..., Awaitable[Response]]:
    """The check that an answer is one message, from the node that signed, of a few objects."""

    async def dispatch(request: Request, call_next: Any) -> Response:
        sent = getattr(request.state, "protobuf_request", None)
        if isinstance(sent, PushMessagesRequest):
            most = 16 + limits.largest // _OBJECT
            trees = sent.message_object_trees
            if not (
                len(sent.messages_list) == len(trees) == 1
                and sent.messages_list[0].metadata.src_node_id == sent.node.node_id
                and sum(1 for _ in iterate_object_tree(trees[0])) <= most
            ):
                raise HTTPException(403, "not an answer of this client")
        response: Response = await call_next(request)
        return response

    return dispatch
