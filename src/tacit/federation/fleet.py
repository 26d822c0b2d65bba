"""Flower's state of clients and messages, and a `Grid` on it in the process that trains.

The state is in memory: after a crash clients connect again, and what was under way is asked again.
A message waits for its client until that has answered, so that a connection may be lost at any
moment; a client answers the same order in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastapi import HTTPException
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager

from tacit.federation.flower import Grid, Message, RecordDict

TRAIN = "train"
_UNREAD = 1 << 26  # bytes of answers that are kept until they are added; more wait with clients
_FEWEST_UNREAD, _MOST_UNREAD = 4, 64  # answers that may be kept, whatever their size
_WORTH_SHARING = 1 << 14  # bytes of a part of a message from which its reply is built once for all
_LIFE = 86_400.0  # seconds: a message is forgotten with its round, and clients' clocks differ
_LONG = 1e9  # seconds; whether a client is there is known by when it was last heard


class FleetState(InMemoryLinkState):
    """Flower's own, but for what a client that is killed, cut off or hostile may do to it."""

    def __init__(self) -> None:
        super().__init__(NoOpFederationManager(), InMemoryObjectStore())
        self.heard: dict[int, float] = {}  # when each node was last heard, by the monotonic clock
        self.waiting: dict[int, str] = {}  # the message that waits for each node
        self.largest = 0  # bytes of values in an answer
        self._replies: dict[str, bytes] = {}  # to who fetches a large part, by its id

    def hear(self, node_id: int) -> None:
        """The client has just said something."""
        self.heard[node_id] = time.monotonic()

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """A client that was killed may come back before anybody has missed it."""
        self.deactivate_node(node_id)
        self.hear(node_id)
        return bool(super().activate_node(node_id, heartbeat_interval))

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        self.hear(node_id)
        return bool(super().acknowledge_node_heartbeat(node_id, heartbeat_interval))

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Any]:
        """The message that waits for the node, as often as it asks, until its answer begins."""
        self.hear(node_id)
        with self.lock:
            return [self.message_ins_store[self.waiting[node_id]]] if self.asks(node_id) else []

    def asks(self, node_id: int) -> bool:
        """Whether a message waits for the node."""
        message_id = self.waiting.get(node_id)
        is_answered = message_id in self.message_ins_id_to_message_res_id
        return message_id in self.message_ins_store and not is_answered

    @property
    def room(self) -> int:
        """How many answers more may come before one is added: the memory does not grow with them.

        One that is on its way counts.
        """
        fitting = _UNREAD // max(1, self.largest)
        most = min(max(fitting, _FEWEST_UNREAD), _MOST_UNREAD)
        return most - len(self.message_res_store)

    def reply_with(self, object_id: str) -> bytes | None:
        """What is sent to whoever fetches this large part of a message, built once; None if small.

        Those whose part is gone are dropped when the next one is built.
        """
        if (reply := self._replies.get(object_id)) is not None:
            return reply
        content = self.object_store.get(object_id) or b""
        if len(content) < _WORTH_SHARING:
            return None
        kept = {one: old for one, old in self._replies.items() if one in self.object_store}
        found = PullObjectResponse(object_found=True, object_available=True, object_content=content)
        self._replies = {**kept, object_id: found.SerializeToString()}
        return self._replies[object_id]

    def store_message_and_object_tree(
        self, message: Any, object_tree: Any, session_id: str
    ) -> tuple[bool, list[str]]:
        """Take an answer, if there is room."""
        try:
            if message.metadata.reply_to_message_id:
                self._refuse_unwanted(message)
            taken = super().store_message_and_object_tree(message, object_tree, session_id)
            if not taken[0]:
                raise HTTPException(409, "another answer was here before")
        except HTTPException:
            self._cleanup_push_session(session_id, cleanup_messages=False)
            raise
        return True, list(taken[1])

    def _refuse_unwanted(self, answer: Any) -> None:
        with self.lock:
            is_known = answer.metadata.message_id in self.message_res_store
            if not is_known and self.room <= 0:
                raise HTTPException(503, "there are answers to be added first")
            if self.waiting.get(answer.metadata.src_node_id) != answer.metadata.reply_to_message_id:
                raise HTTPException(409, "nobody waits for this answer")

    def retract(self, is_gone: Callable[[int], bool]) -> None:
        """Forget answers that have begun to come from nodes which are gone.

        They would take the room of others; a node that comes back begins its answer again.
        """
        for answer_id, answer in list(self.message_res_store.items()):
            session = self._object_push_session_by_root.get(answer_id)
            if session is not None and is_gone(answer.metadata.src_node_id):
                self._cleanup_push_session(session, cleanup_messages=True)

    def forget(self, message_id: str) -> None:
        """Drop a message and its answer; a client that answers it from now on is refused."""
        with self.lock:
            answer_id = self.message_ins_id_to_message_res_id.get(message_id, "")
            if (message := self.message_ins_store.get(message_id)) is not None:
                self.waiting.pop(message.metadata.dst_node_id, None)
            self.delete_messages({message_id})
        if (session := self._object_push_session_by_root.get(answer_id)) is not None:
            self._cleanup_push_session(session, cleanup_messages=False)
        for one in (message_id, answer_id):
            self.object_store.delete(one)

    def _cleanup_expired_task_tokens_locked(self) -> None:
        """Nothing: the task is this process, and cannot outlive it."""

    def contents_of(self, message_id: str) -> dict[str, bytes] | None:
        """All objects of a message, by their ids; None until all have come."""
        store = self.object_store
        if message_id not in store:
            return None
        tree = store.get_object_tree(message_id)
        contents = {node.object_id: store.get(node.object_id) for node in iterate_object_tree(tree)}
        return contents if all(contents.values()) else None


class FleetGrid(Grid):
    """Sends messages to clients through the state, and reads what they answered from it."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        run_id = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
        )
        self._run = state.get_run_info(run_ids=[run_id])[0]
        state.claim_task(self._run.primary_task_id)
        state.activate_task(self._run.primary_task_id)
        TaskIdentity.run_id, TaskIdentity.node_id = run_id, SUPERLINK_NODE_ID
        TaskIdentity.task_id = self._run.primary_task_id

    def register(self, public_key: bytes) -> int:
        """The node of a client, who is recognised by its key from now on.

        A message can wait for it before it was ever there.
        """
        node = int(self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, _LONG))
        self.state.nodes[node].status = NodeStatus.OFFLINE
        return node

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.state.get_nodes(self._run.run_id))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each message wait for its node; what several share is hashed once and kept once."""
        ids: list[str] = []
        try:
            with no_object_id_recompute():
                for message in messages:
                    ids.append(self._push(message))
        except BaseException:
            self.forget(ids)
            raise
        return ids

    def _push(self, message: Message) -> str:
        message_id = str(message.object_id)
        message.metadata.__dict__["_message_id"] = message_id
        tree, objects = get_object_tree(message), get_all_nested_objects(message)
        for object_id in set(self.state.object_store.preregister(self._run.run_id, tree)):
            self.state.object_store.put(object_id, objects[object_id].deflate())
        sent = Message(RecordDict(), metadata=message.metadata)
        with self.state.lock:
            if self.state.store_message_ins(sent) is None:
                raise ValueError(f"a message to node {message.metadata.dst_node_id} is not taken")
            self.state.waiting[message.metadata.dst_node_id] = message_id
        return message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Those answers to these messages that are here as a whole, one after the other.

        What cannot be read as a message is an answer without content.
        """
        state = self.state
        for message_id in list(message_ids):
            answer_id = state.message_ins_id_to_message_res_id.get(message_id)
            answer = state.message_res_store.get(answer_id)
            if answer is None or (contents := state.contents_of(answer_id)) is None:
                continue
            answer.metadata.__dict__["_message_id"] = answer_id
            try:
                whole = inflate_object_from_contents(answer_id, contents)
                content = whole.content if isinstance(whole, Message) else RecordDict()
            except Exception:  # whatever a client may send
                content = RecordDict()
            self.forget([message_id])
            yield Message(content, metadata=answer.metadata)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop messages and their answers; a client that answers one of them is refused."""
        for message_id in message_ids:
            self.state.forget(message_id)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Every answer that comes until the timeout."""
        left, end = set(self.push_messages(messages)), time.monotonic() + (timeout or _LONG)
        answers: list[Message] = []
        while left and time.monotonic() < end:
            for answer in self.pull_messages(left):
                left.discard(answer.metadata.reply_to_message_id)
                answers.append(answer)
            time.sleep(_PAUSE)
        self.forget(left)
        return answers


_PAUSE = 0.02  # seconds between looking whether anybody has answered


class FlowerClients:
    """Enrolled people as the engine asks them, over a grid.

    A client is not waited for longer than `deadline` seconds, nor if it was not heard for
    `silence` seconds: then it is gone, and if it comes back in time it still counts.
    """

    def __init__(
        self,
        grid: FleetGrid,
        keys: Mapping[str, bytes],
        *,
        deadline: float,
        silence: float = 15.0,
    ) -> None:
        self._grid, self._deadline, self._silence = grid, deadline, silence
        self._nodes = {client: grid.register(key) for client, key in keys.items()}

    @property
    def enrolled(self) -> int:
        """How many clients there can be."""
        return len(self._nodes)

    def connected(self) -> int:
        """How many clients were heard lately."""
        return sum(map(self._is_there, self._nodes.values()))

    def wait_for(self, count: int, seconds: float) -> int:
        """Wait until so many clients are connected, or for so long; how many there are then."""
        end = time.monotonic() + seconds
        while self.connected() < count and time.monotonic() < end:
            time.sleep(_PAUSE)
        return self.connected()

    def ask(
        self, contents: Iterator[tuple[str, RecordDict]], answer_bytes: int
    ) -> Iterator[tuple[str, RecordDict]]:
        """Send each client its content, and yield the answers as they come, until the deadline."""
        self._grid.state.largest = answer_bytes
        begun, asked = time.monotonic(), []

        def messages() -> Iterator[Message]:
            for client, content in contents:
                asked.append(client)
                yield Message(content, self._nodes[client], TRAIN, ttl=_LIFE)

        ids = self._grid.push_messages(messages())
        clients = dict(zip(ids, asked, strict=True))  # by the message that waits for its answer
        try:
            while clients and time.monotonic() < begun + self._deadline:
                for answer in self._grid.pull_messages(clients):
                    client = clients.pop(answer.metadata.reply_to_message_id)
                    yield client, answer.content
                if not any(self._is_waited_for(client, begun) for client in clients.values()):
                    break
                self._grid.state.retract(lambda node: not self._is_there(node))
                time.sleep(_PAUSE)
        finally:
            self._grid.forget(clients)

    def _is_waited_for(self, client: str, begun: float) -> bool:
        """Whether it may still answer: it was heard lately, or the round has just begun."""
        is_new = time.monotonic() < begun + self._silence
        return is_new or self._is_there(self._nodes[client])

    def _is_there(self, node: int) -> bool:
        heard = self._grid.state.heard.get(node)
        return heard is not None and time.monotonic() < heard + self._silence
