"""A process, its connection to the broker, and the faults of single calls."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from aiokafka.errors import KafkaConnectionError, RequestTimedOutError

from tests.simulation.clock import VirtualLoop

T = TypeVar("T")

STRIKES = (
    "request lost",
    "response lost",
    "killed before a call took effect",
    "killed after a call took effect",
    "suspended before a call",
    "suspended after a call",
    "network cut",
)
"""The faults that may happen to any call of a process. A suspended process misses its heartbeats and continues as a zombie."""


class Faults:
    """Injects faults into calls as the seed decides, up to the number that a schedule allows."""

    def __init__(self, chance: random.Random, *, strikes: int, rate: float) -> None:
        self._chance = chance
        self._left = strikes
        self._rate = rate
        self.injected: Counter[str] = Counter()

    def strike(self) -> str | None:
        """Return the fault that happens to the current call, or None."""
        if self._left == 0 or self._chance.random() >= self._rate:
            return None
        self._left -= 1
        name = self._chance.choice(STRIKES)
        self.injected[name] += 1
        return name

    def cease(self) -> None:
        """Inject no further faults."""
        self._left = 0


class Process:
    """One process, which makes all its calls to the broker through ``call``."""

    def __init__(self, name: str, loop: VirtualLoop, chance: random.Random, faults: Faults) -> None:
        self.name = name
        self.alive = True
        self.on_death: Callable[[], None] = lambda: None
        self._loop = loop
        self._chance = chance
        self._faults = faults
        self._awake: asyncio.Future[None] | None = None
        self._cut_until = 0.0

    @property
    def connected(self) -> bool:
        """Whether the network lets the process reach the broker."""
        return self._loop.time() >= self._cut_until

    def kill(self) -> None:
        """End it like a power cut: none of its later calls has an effect."""
        if self.alive:
            self.alive = False
            self.on_death()

    def suspend(self, seconds: float) -> None:
        """Suspend it for some seconds."""
        if self._awake is None:
            awake = self._awake = self._loop.create_future()

            def wake() -> None:
                self._awake = None
                awake.set_result(None)

            self._loop.call_later(seconds, wake)

    def cut(self, seconds: float) -> None:
        """Cut its network for some seconds."""
        self._cut_until = max(self._cut_until, self._loop.time() + seconds)

    async def step(self) -> None:
        """Wait for a moment, or until it is not suspended any more; cancel the caller if the process is dead."""
        pace = self._chance.random()
        if pace < 0.5:
            await asyncio.sleep(self._chance.uniform(0.1, 1.0) if pace < 0.01 else pace / 50)
        while self._awake is not None:
            await asyncio.shield(self._awake)
        if not self.alive:
            raise asyncio.CancelledError

    async def call(self, effect: Callable[[], T]) -> T:
        """Make one call to the broker; a fault may happen before or after the call takes effect."""
        strike = self._faults.strike()
        await self._struck(strike, "before")
        await self.step()
        if not self.connected:
            await asyncio.sleep(0.2)
            raise KafkaConnectionError
        if strike == "request lost":
            raise RequestTimedOutError
        result = effect()
        await self._struck(strike, "after")
        await self.step()
        if strike == "response lost":
            raise RequestTimedOutError
        return result

    async def _struck(self, strike: str | None, moment: str) -> None:
        if strike is None:
            return
        if strike.startswith(f"killed {moment}"):
            self.kill()
            raise asyncio.CancelledError
        if strike.startswith(f"suspended {moment}"):
            self.suspend(self._chance.uniform(0.5, 12.0))
        elif strike == "network cut" and moment == "before":
            self.cut(self._chance.uniform(0.5, 8.0))
