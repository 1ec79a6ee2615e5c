"""An event loop on a virtual clock: waiting costs nothing, and equal seeds give equal runs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVarTuple
from unittest.mock import patch

from stream.engine import batch_loop, health, partition_input, partition_task, session, supervision, writer
from stream.services import witness_guards
from stream.witnesses import anchor

Arguments = TypeVarTuple("Arguments")

EPOCH = 1_750_000_000.0
"""The wall clock at the start of every run, in seconds."""


class StuckError(AssertionError):
    """No task can continue, because all wait for each other."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs all ready callbacks, then moves its clock to the next timer. Work for threads runs in the loop too."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self.thread_seconds = 0.001
        """Virtual seconds that a piece of work in a thread takes."""
        self._ready: deque[asyncio.Handle]
        self._stopping: bool
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()

    def time(self) -> float:
        return self._virtual_now

    def get_debug(self) -> bool:
        return False

    # A schedule calls these methods tens of thousands of times; asyncio's methods check the loop and the thread each time.
    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._virtual_now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """Advance the clock if no callback is ready, then run the ready callbacks; repeat until the loop is told to stop."""
        ready, timers = self._ready, self._timers
        while not self._stopping:
            while timers and (timers[0][2].cancelled() or not ready or timers[0][0] <= self._virtual_now):
                when, _, timer = heappop(timers)
                if not timer.cancelled():
                    self._virtual_now = max(self._virtual_now, when)
                    ready.append(timer)
            if not ready:
                raise StuckError("every task waits, and no timer is set")
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when its time comes."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never waits for other threads."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        del executor
        future = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001  (handed on, as a thread's would be)
                future.set_exception(error)

        self.call_later(self.thread_seconds, work)
        return future


class _Time:
    """A replacement of the module ``time`` for the engine."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.monotonic = loop.time
        self.sleep = time.sleep

    def time(self) -> float:
        return EPOCH + self.monotonic()


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """Yield a virtual loop whose clock is also the engine's wall clock; at the end, running tasks are cancelled."""
    loop = VirtualLoop()
    clock = _Time(loop)
    with ExitStack() as patches:
        engine = (batch_loop, health, supervision, partition_input, partition_task, session, writer)
        for module in (*engine, witness_guards, anchor):
            patches.enter_context(patch.object(module, "time", clock))
        try:
            yield loop
        finally:
            _cancel_all(loop)
            loop.close()


def _cancel_all(loop: VirtualLoop) -> None:
    for _ in range(100):
        remaining = asyncio.all_tasks(loop)
        if not remaining:
            return
        for task in remaining:
            task.cancel()
        loop.run_until_complete(asyncio.wait(remaining, timeout=10.0))
    raise StuckError(f"tasks go on after they were cancelled: {remaining}")
