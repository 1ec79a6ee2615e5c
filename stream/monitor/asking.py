"""Asking for those whose tokens may: questions about tables, a bounded number at once, each published once.

The monitor sees no private data this way: questions that carry some (a trusted value, a person's own category) are for
producers, and are refused here.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from schemas import Query
from stream.asking import Result
from stream.client import AsyncClient
from stream.errors import SottoError, Timeout
from stream.monitor.problems import ProblemError, too_many
from stream.settings import Settings

ANSWER_SECONDS: Final = 30.0
"""How long a request waits for its answers; they may be waited for again, under the same ids."""

MAX_WAITING: Final = 512
"""Questions that wait for their answers at a time, of all askers together."""

_REMEMBERED: Final = 4096
_PATIENCE_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 60.0
_PRIVATE: Final = ("value", "values", "category")


class Answering(Protocol):
    """Whoever asks streams; stream.client.AsyncClient is one."""

    def ask(self, question: Query, /, *, timeout: float | None, outcomes: bool) -> Awaitable[Result]:
        """Ask and wait for the answer."""


@dataclass(frozen=True)
class _Asked:
    query: Query
    answer: asyncio.Task[Result]


class Asker:
    """Asks each question once: one that is sent again under its id gets the answer that is there, or waits for it."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._asked: OrderedDict[tuple[str, str], _Asked] = OrderedDict()

    async def ask(self, queries: Sequence[Query], timeout: float = ANSWER_SECONDS) -> list[Result]:  # noqa: ASYNC109
        """The answers in the order of the questions, rejected and halted ones among them.

        Raises:
            ProblemError: a question carries private data, its id is another's, or too many wait already.
            Timeout: not all answers have come; ask the same again, under the same ids.
            SottoError: Kafka does not let the monitor ask, or is not there.
        """
        for query in queries:
            refuse_private(query)
        new = [one for one in queries if self._known(one) is None]
        if new and sum(not one.answer.done() for one in self._asked.values()) + len(new) > MAX_WAITING:
            raise too_many(
                f"at most {MAX_WAITING} questions wait for their answers at a time; ask again in a moment",
                5,
            )
        answers = [(self._known(one) or self._begin(one)).answer for one in queries]
        _, late = await asyncio.wait(answers, timeout=timeout)
        if late:
            missing = [one for one, answer in zip(queries, answers, strict=True) if answer in late]
            raise Timeout(f"{len(missing)} questions have no answer yet", missing)
        return [answer.result() for answer in answers]

    async def close(self) -> None:
        """Wait for no more answers."""
        tasks = [one.answer for one in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, query: Query) -> _Asked | None:
        asked = self._asked.get((query.stream, query.id))
        if asked is None:
            return None
        if asked.query != query:
            raise ProblemError(409, "refused", "id: another question was asked under this id; give each its own")
        if asked.answer.done() and (asked.answer.cancelled() or asked.answer.exception() is not None):
            del self._asked[query.stream, query.id]
            return None
        return asked

    def _begin(self, query: Query) -> _Asked:
        answer = asyncio.ensure_future(self._answering.ask(query, timeout=_PATIENCE_SECONDS, outcomes=True))
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever asked may have left
        asked = self._asked[query.stream, query.id] = _Asked(query, answer)
        for key, one in list(self._asked.items())[: max(len(self._asked) - _REMEMBERED, 0)]:
            if one.answer.done():
                del self._asked[key]
        return asked


class OnDemand:
    """A client that connects with the first question and leaves a minute after the last answer.

    While it is there it reads all answers of the installation, which is work that a monitor that nobody asks does not have.
    """

    def __init__(self, settings: Settings, make: Callable[[Settings], AsyncClient] = AsyncClient) -> None:
        self._settings = settings
        self._make = make
        self._changing = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._waiting = 0
        self._last = time.monotonic()

    async def ask(self, question: Query, /, *, timeout: float | None, outcomes: bool) -> Result:  # noqa: ASYNC109
        """Ask and wait for the answer."""
        self._waiting += 1
        try:
            async with self._changing:
                client = self._client
                if client is None:
                    client = self._make(self._settings)
                    await client.connect()
                    self._client = client
            return await client.ask(question, timeout=timeout, outcomes=outcomes)
        finally:
            self._waiting -= 1
            self._last = time.monotonic()

    async def rest(self) -> None:
        """Leave whenever nobody has asked for a while, until cancelled; then leave for good."""
        try:
            while True:
                await asyncio.sleep(_IDLE_SECONDS / 4)
                if not self._waiting and time.monotonic() - self._last > _IDLE_SECONDS:
                    await self._leave()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        async with self._changing:
            client, self._client = self._client, None
            if client is not None:
                with suppress(SottoError):
                    await client.disconnect()


def refuse_private(query: Query) -> None:
    """Refuse a question that carries private data of its own."""
    carried = next((name for name in _PRIVATE if getattr(query, name) is not None), None)
    if carried is None and any(one.value is not None for one in query.candidates or ()):
        carried = "candidates"
    if carried is not None:
        raise ProblemError(
            400,
            "malformed",
            f"{carried}: the monitor takes no private data; send it to Kafka with 'sotto ask' or a client",
        )
