"""A client's side of the Fleet API: be there, take the order that waits, hand in the answer.

Whatever is lost on the way is sent again; nothing is taken as lost that may have arrived, since the
server and the client both know an order, and an answer, that they have seen.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

import httpx
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tacit.federation.flower import Message, RecordDict
from tacit.federation.keys import ClientKey

_INTERVAL = 30  # seconds: the heartbeat that Flower is told, which the server does not rely on
_HEARTBEAT = 5.0  # seconds between signs of life while an update is computed
_LARGEST_MESSAGE = 1 << 31  # bytes of all objects of an order

T = TypeVar("T")


class Unreachable(ConnectionError):
    """Nobody answers at the server's address, for now."""


class NotKnown(ValueError):
    """The server does not know this client."""


class Connection:
    """A client that is connected, and stays so until it is closed.

    What of an order is the same as the last time (a tokenizer, say) is not fetched again.
    """

    def __init__(self, server: str, key: ClientKey, *, insecure: bool) -> None:
        verify: ssl.SSLContext | bool = False
        if not insecure:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.minimum_version = ssl.TLSVersion.TLSv1_3
            verify.load_verify_locations(cadata=key.authority)
        self._server = server
        self._client: Any = FleetHttpClient(
            f"{'http' if insecure else 'https'}://{server}",
            interceptors=[NodeAuthHttpInterceptor(key.private, key.private.public_key())],
            verify=verify,
        )
        self._public = key.public_pem().encode()
        self._node: Any = None
        self._objects: dict[str, bytes] = {}  # of the last order
        self._closed = threading.Event()
        self._is_heard = False  # by a request that is under way
        self._pulse = threading.Thread(target=self._beat, daemon=True)

    def open(self) -> Self:
        """Say that this client is there.

        Raises:
            Unreachable: if there is no server now.
            NotKnown: if the server does not know the client's key.
            ValueError: if the server's certificate is not one that the client's authority signed,
                or not valid any more, or for another host.
        """
        self._node = None
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=_INTERVAL)
        response = self._call(self._client.ActivateNode, request)
        self._node = Node(node_id=response.node_id)
        if not self._pulse.is_alive():
            self._pulse.start()
        return self

    def take(self) -> Message | None:
        """The order that waits for this client; None if none came while the server let it wait."""
        self._is_heard = True
        try:
            response = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        finally:
            self._is_heard = False
        if not response.messages_list:
            return None
        proto, tree = response.messages_list[0], response.message_object_trees[0]
        metadata, contents, total = message_from_proto(proto).metadata, {}, 0
        for one in iterate_object_tree(tree):
            content = self._objects.get(one.object_id)
            if content is None:
                content = self._pull(metadata.run_id, one.object_id)
            total += len(content)
            if total > _LARGEST_MESSAGE:
                raise ValueError(f"an order must be below {_LARGEST_MESSAGE} bytes, got more")
            contents[one.object_id] = content
        self._objects = dict(contents)
        message = inflate_object_from_contents(metadata.message_id, contents)
        if not isinstance(message, Message) or metadata.src_node_id != SUPERLINK_NODE_ID:
            raise ValueError("the server sent something else than an order")
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message

    def hand_in(self, answer: Message) -> bool:
        """Send an answer; whether the server took it (else somebody was faster, or it is late)."""
        with no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            tree, objects = get_object_tree(answer), get_all_nested_objects(answer)
            head = Message(RecordDict(), metadata=answer.metadata)
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(head)],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],  # how long it took is nobody's business
            )
            try:
                response = self._call(self._client.PushMessages, request)
                for object_id in dict.fromkeys(response.objects_to_push):
                    pushed = self._call(
                        self._client.PushObject,
                        PushObjectRequest(
                            node=self._node,
                            run_id=answer.metadata.run_id,
                            object_id=object_id,
                            object_content=objects[object_id].deflate(),
                            session_id=response.session_id,
                        ),
                    )
                    if not pushed.stored:
                        raise Unreachable("the server does not know how this answer began")
            except _NotTaken:
                return False
        return True

    def close(self) -> None:
        """Say goodbye, if anybody listens."""
        self._closed.set()
        if self._node is not None:
            with suppress(Exception):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _pull(self, run_id: int, object_id: str) -> bytes:
        request = PullObjectRequest(node=self._node, run_id=run_id, object_id=object_id)
        response = self._call(self._client.PullObject, request)
        content = bytes(response.object_content)
        if get_object_id(content) != object_id:
            raise Unreachable("a part of an order is not there (any more)")
        return content

    def _beat(self) -> None:
        """Say now and then that this client is alive, while it computes."""
        while not self._closed.wait(_HEARTBEAT):
            if self._is_heard:
                continue
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_INTERVAL)
            with suppress(Exception):  # the next request tells
                self._client.SendNodeHeartbeat(request)

    def _call(self, send: Callable[[Any], T], request: Any) -> T:
        """What the server answers, with what went wrong told apart by what helps."""
        try:
            return send(request)
        except httpx.HTTPStatusError as refusal:
            code = refusal.response.status_code
            if code in (400, 401, 403, 404, 409, 412) and self._node is None:
                raise NotKnown(
                    f"the server {self._server} does not know this client: it has to be enrolled"
                    " there with tacit federate keys enrol"
                ) from None
            if code == 401:
                raise Unreachable("the server began anew, and has to be greeted again") from None
            if code in (403, 404, 409, 413):
                raise _NotTaken(f"the server refused it ({code})") from None
            raise Unreachable(f"the server cannot now ({code})") from None
        except httpx.TransportError as problem:
            cause: BaseException | None = problem
            while cause is not None:
                if isinstance(cause, ssl.SSLCertVerificationError):
                    raise ValueError(
                        f"the certificate of {self._server} is not to be trusted:"
                        f" {cause.verify_message}"
                    ) from None
                cause = cause.__cause__ or cause.__context__
            raise Unreachable(f"{self._server} cannot be reached: {problem}") from None


class _NotTaken(ValueError):
    """An answer that the server does not want (any more)."""
