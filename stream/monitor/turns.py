"""Taking turns at work that holds up everybody else: one at a time, and the names that wait one after the other."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from stream.monitor.problems import too_many


class GoneError(ConnectionError):
    """Whoever asked had gone before their turn came, or before all that they sent was there."""


class _Waiter(NamedTuple):
    gone: Callable[[], bool]
    turn: asyncio.Future[None]


class Turns:
    """Whose turn it is. At most ``most`` wait, ``each`` of one name; after a turn nobody has one for ``rest`` times its length."""

    def __init__(
        self,
        *,
        most: float = math.inf,
        each: float = math.inf,
        rest: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._each = each
        self._rest = rest
        self._clock = clock
        self._taken = False
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, name: str, gone: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn and have it; GoneError if one is ``gone`` by then, ProblemError where too many wait."""
        await self._wait(name, gone)
        began = self._clock()
        try:
            yield
        finally:
            pause = (self._clock() - began) * self._rest
            if pause > 0.0:
                asyncio.get_running_loop().call_later(pause, self._pass_on)
            else:
                self._pass_on()

    async def _wait(self, name: str, gone: Callable[[], bool]) -> None:
        if not self._taken:
            self._taken = True
            return
        if self._is_full(name):
            self._let_go()
        if self._is_full(name):
            raise too_many(
                f"one is worked on at a time; at most {self._each} of a name wait, and {self._most} of all: ask again later",
                10,
            )
        waiter = _Waiter(gone, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(name, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._pass_on()  # the turn had come
            raise

    def _pass_on(self) -> None:
        self._let_go()
        if not self._waiting:
            self._taken = False
            return
        name, own = self._waiting.popitem(last=False)
        own.popleft().turn.set_result(None)
        if own:
            self._waiting[name] = own

    def _let_go(self) -> None:
        """Let go of those that wait no more."""
        for name, own in list(self._waiting.items()):
            for waiter in own:
                if not waiter.turn.done() and waiter.gone():
                    waiter.turn.set_exception(GoneError())
            if left := deque(waiter for waiter in own if not waiter.turn.done()):
                self._waiting[name] = left
            else:
                del self._waiting[name]

    def _is_full(self, name: str) -> bool:
        own = len(self._waiting.get(name, ()))
        return own >= self._each or sum(map(len, self._waiting.values())) >= self._most
