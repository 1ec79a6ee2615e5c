"""Starting while Kafka, or a part of it, is not there yet: whoever waits says so, and goes on as soon as the rest is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Final, TypeVar

from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from stream.kafka.client.security import ClosedError, advice
from stream.log import get_logger

BACKOFF: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between tries after failures in a row."""
ASKED: Final = 10
"""So many times a broker is chosen at random before it is believed that none answers."""
ASKED_AGAIN: Final = 0.2
"""Seconds in between; aiokafka brings its list of brokers up to date after each failure."""

Result = TypeVar("Result")

log = get_logger("start")


class Stopped(Exception):  # noqa: N818  (an order, not an error)
    """Told to stop before it was done: what is left is left to the successor."""


async def patiently(
    start: Callable[[], Awaitable[Result]], stopping: asyncio.Event, tell: Callable[[str], None] | None = None
) -> Result:
    """Call ``start`` until Kafka answers, with growing pauses; each goes to the log and to ``tell``.

    Raises:
        Stopped: told to stop meanwhile.
        KafkaError: an error that no waiting mends, such as a refused password.
    """
    for pause in chain(BACKOFF, repeat(BACKOFF[-1])):
        try:
            return await unless_stopped(stopping, start())
        except (KafkaError, OSError, TimeoutError) as error:
            if not is_passing(error):
                raise
            told = advice(error) if isinstance(error, KafkaError) else f"Kafka: {type(error).__name__}"
            log.warning("waiting for Kafka", reason=told, seconds=pause)
            if tell is not None:
                tell(f"waits for Kafka: {told}")
        try:
            async with asyncio.timeout(pause):
                await stopping.wait()
        except TimeoutError:
            continue
        raise Stopped
    raise AssertionError("pauses do not end")


async def unless_stopped(stopping: asyncio.Event, attempt: Awaitable[Result]) -> Result:
    """What an attempt gives. An order to stop cancels it, and it has cleared up when this raises.

    Raises:
        Stopped: told to stop before it was done.
    """
    trying = asyncio.ensure_future(attempt)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({trying, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not trying.done():
            raise Stopped
        return trying.result()
    finally:
        for waiting in (trying, stopped):
            waiting.cancel()
        await asyncio.gather(trying, stopped, return_exceptions=True)


async def from_any_broker(ask: Callable[[], Awaitable[Result]]) -> Result:
    """What a broker answers an admin client, which chooses one at random, dead or alive.

    Raises:
        NodeNotReadyError, KafkaConnectionError: none of many choices has answered.
    """
    for left in reversed(range(ASKED)):
        try:
            return await ask()
        except (NodeNotReadyError, KafkaConnectionError):
            if left == 0:
                raise
            await asyncio.sleep(ASKED_AGAIN)
    raise AssertionError("the last try returns or raises")


def is_passing(error: Exception) -> bool:
    """Whether an error may be over once a broker is up, or Kafka has chosen another one."""
    return not isinstance(error, KafkaError) or bool(error.retriable) or isinstance(error, ClosedError)
