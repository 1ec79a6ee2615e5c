"""Retries requests until Kafka is available, and reports that a service waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat
from typing import Final, TypeVar

from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from stream.kafka.client.security import ClosedError, describe_error
from stream.log import get_logger

RETRY_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts after consecutive failures."""
BROKER_ATTEMPTS: Final = 10
"""Number of attempts, each at a random broker, after which all brokers count as unavailable."""
BROKER_RETRY_SECONDS: Final = 0.2
"""Seconds between these attempts; aiokafka updates its list of brokers after each failure."""

Result = TypeVar("Result")

log = get_logger("start")


class Stopped(Exception):  # noqa: N818  (a stop is not an error)
    """A stop signal interrupted an attempt; the next process completes the work."""


async def retry_until_available(
    start: Callable[[], Awaitable[Result]], stopping: asyncio.Event, report: Callable[[str], None] | None = None
) -> Result:
    """Calls ``start`` until it succeeds, with growing pauses; reports each failure to the log and ``report``.

    Raises:
        Stopped: ``stopping`` was set.
        KafkaError: a permanent error, such as a refused password.
    """
    for pause in chain(RETRY_PAUSES, repeat(RETRY_PAUSES[-1])):
        try:
            return await unless_stopped(stopping, start())
        except (KafkaError, OSError, TimeoutError) as error:
            if not is_temporary(error):
                raise
            reason = describe_error(error) if isinstance(error, KafkaError) else f"Kafka: {type(error).__name__}"
            log.warning("waiting for Kafka", reason=reason, seconds=pause)
            if report is not None:
                report(f"waits for Kafka: {reason}")
        if await wait_for_stop(stopping, pause):
            raise Stopped
    raise AssertionError("pauses do not end")


async def wait_for_stop(stopping: asyncio.Event, seconds: float) -> bool:
    """Waits for ``stopping``, at most ``seconds``; returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return stopping.is_set()


async def unless_stopped(stopping: asyncio.Event, attempt: Awaitable[Result]) -> Result:
    """Returns the result of an attempt; a stop cancels the attempt and waits for its cleanup.

    Raises:
        Stopped: ``stopping`` was set before the attempt was done.
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
        # The attempt's error refers to this frame: a cycle would keep all that the attempt held.
        del trying


async def ask_any_broker(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Retries a request of an admin client, because the client may choose a dead broker.

    Raises:
        NodeNotReadyError, KafkaConnectionError: none of ``BROKER_ATTEMPTS`` chosen brokers has answered.
    """
    for attempts_left in reversed(range(BROKER_ATTEMPTS)):
        try:
            return await ask()
        except (NodeNotReadyError, KafkaConnectionError):
            if attempts_left == 0:
                raise
            await asyncio.sleep(BROKER_RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def is_temporary(error: Exception) -> bool:
    """Returns whether an error is temporary: it may end when a broker starts or becomes leader."""
    return not isinstance(error, KafkaError) or bool(error.retriable) or isinstance(error, ClosedError)
