"""Many questions at once: all answers as one, or one after the other as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
)
from contextlib import aclosing
from typing import Any, Final

from schemas import Query
from stream.asking import Question, Result, Results
from stream.asking.questions import as_query
from stream.client.budgets import new_id
from stream.client.listening import Listener, Pending
from stream.errors import Invalid, Timeout, Unreachable

IN_FLIGHT: Final = 1000
"""Questions that are published ahead of the answer that is waited for."""

Publish = Callable[[Question], Awaitable[Pending]]


class Asked:
    """Questions that are about to be asked: ``await`` it for all results, or iterate over it with ``async for``.

    Results come in the order of the questions, of which at most a thousand are under way; so with ``async for`` neither questions
    nor results need fit into memory. One that was rejected or halted does not raise: see ``Result.checked``.

    Questions that are at hand are all checked before the first is asked: those of a collection, and with ``await`` all but those of
    an asynchronous iterable. What ends the others early is raised after the answers to those before it.
    """

    def __init__(self, publish: Publish, questions: Iterable[Question] | AsyncIterable[Question]) -> None:
        self._publish = publish
        self._questions = questions

    def __await__(self) -> Generator[Any, None, Results]:
        return self._all().__await__()

    async def __aiter__(self) -> AsyncIterator[Result]:
        asked = self._questions
        async with aclosing(self._each(_checked(asked) if isinstance(asked, Collection) else asked)) as each:
            async for one in each:
                if isinstance(one, (Timeout, Unreachable)):
                    raise one
                yield one

    async def _all(self) -> Results:
        """All results; Timeout, Unreachable or Invalid, with those that came, if any did not come."""
        asked = self._questions
        results: list[Result] = []
        lost: list[Timeout | Unreachable] = []
        try:
            async with aclosing(
                self._each(asked if isinstance(asked, AsyncIterable) else _checked(asked))
            ) as each:
                async for one in each:
                    if isinstance(one, (Timeout, Unreachable)):
                        lost.append(one)
                    else:
                        results.append(one)
        except (Invalid, Unreachable) as ended:
            ended.unanswered, ended.results = _unanswered(lost), Results(results)
            raise
        if lost:
            missing = _unanswered(lost)
            message = f"{len(missing)} questions have no answer: {lost[0]}"
            raise type(lost[0])(message, missing, Results(results))
        return Results(results)

    async def _each(
        self, questions: Iterable[Question] | AsyncIterable[Question]
    ) -> AsyncGenerator[Result | Timeout | Unreachable, None]:
        waiting: deque[Pending] = deque()
        ended: Exception | None = None
        try:
            try:
                async for question in _asynchronously(questions):
                    waiting.append(await self._publish(question))
                    if len(waiting) == IN_FLIGHT:
                        yield await _outcome(waiting.popleft())
            except Exception as error:  # noqa: BLE001  (raised below, after the answers to what was asked before it)
                ended = error
            while waiting:
                yield await _outcome(waiting.popleft())
        finally:
            for pending in waiting:
                pending.value.cancel()
        if ended is not None:
            raise ended


def _checked(questions: Iterable[Question]) -> list[Query]:
    """The queries that are meant; Invalid if one of them is none, before any is asked."""
    return [as_query(one, {}, new_id) for one in questions]


def _unanswered(lost: Iterable[Timeout | Unreachable]) -> tuple[Query, ...]:
    return tuple(query for one in lost for query in one.unanswered)


async def _outcome(pending: Pending) -> Result | Timeout | Unreachable:
    try:
        return await Listener.answer(pending)
    except (Timeout, Unreachable) as lost:
        return lost


async def _asynchronously(questions: Iterable[Question] | AsyncIterable[Question]) -> AsyncIterator[Question]:
    if isinstance(questions, AsyncIterable):
        async for question in questions:
            yield question
    else:
        for question in questions:
            yield question
