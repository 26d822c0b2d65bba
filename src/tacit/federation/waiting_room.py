"""Requests that wait here until they can be answered, so that clients do not ask again and again.

A thousand clients that each ask once a second for an order, or to hand in an answer, keep a server
busy with refusals.  A request that waits costs a few kilobytes and no work.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tacit.federation.fleet import FleetState

_LOOK = 0.02  # seconds between looking who can go on


class WaitingRoom:
    """Who waits for an order, and who waits to hand in an answer, for `patience` seconds each."""

    def __init__(self, state: FleetState, patience: float) -> None:
        self._state, self._patience = state, patience
        self._for_orders: dict[asyncio.Future[None], int] = {}
        self._for_room: deque[asyncio.Future[None]] = deque()
        self._usher: asyncio.Task[None] | None = None

    async def for_order(self, node: int) -> None:
        """Until a message waits for the node."""
        turn = asyncio.get_running_loop().create_future()
        self._for_orders[turn] = node
        await self._wait(turn)
        self._for_orders.pop(turn, None)

    async def for_room(self) -> None:
        """Until there is room for an answer; who came first goes first."""
        turn = asyncio.get_running_loop().create_future()
        self._for_room.append(turn)
        await self._wait(turn)

    async def _wait(self, turn: asyncio.Future[None]) -> None:
        if self._usher is None or self._usher.done():
            self._usher = asyncio.create_task(self._let_in())
        await asyncio.wait([turn], timeout=self._patience)
        turn.cancel()

    async def _let_in(self) -> None:
        """Let those go on who can, until nobody waits."""
        while self._for_orders or self._for_room:
            for turn, node in list(self._for_orders.items()):
                if self._state.asks(node) and not turn.done():
                    turn.set_result(None)
            room = self._state.room
            while self._for_room and (room > 0 or self._for_room[0].done()):
                turn = self._for_room.popleft()
                if not turn.done():
                    turn.set_result(None)
                    room -= 1
            await asyncio.sleep(_LOOK)
