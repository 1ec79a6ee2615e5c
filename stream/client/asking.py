"""Many questions at once: all answers as one, or one after the other as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing
from typing import Any, Final

from stream.asking import Question, Result, Results
from stream.client.listening import Listener, Pending
from stream.errors import Timeout, Unreachable

IN_FLIGHT: Final = 1000
"""Questions that are published ahead of the answer that is waited for."""

Publish = Callable[[Question], Awaitable[Pending]]


class Asked:
    """Questions that are about to be asked: ``await`` it for all results, or iterate over it with ``async for``.

    Results come in the order of the questions, of which at most a thousand are under way; so neither questions nor results
    need fit into memory. One that was rejected or halted does not raise: see ``Result.checked``.
    """

    def __init__(self, publish: Publish, questions: Iterable[Question] | AsyncIterable[Question]) -> None:
        self._publish = publish
        self._questions = questions

    def __await__(self) -> Generator[Any, None, Results]:
        return self._all().__await__()

    async def __aiter__(self) -> AsyncIterator[Result]:
        async with aclosing(self._each()) as each:
            async for one in each:
                if isinstance(one, (Timeout, Unreachable)):
                    raise one
                yield one

    async def _all(self) -> Results:
        """All results; Timeout or Unreachable, with those that came, if any did not come."""
        results: list[Result] = []
        lost: list[Timeout | Unreachable] = []
        async with aclosing(self._each()) as each:
            async for one in each:
                if isinstance(one, (Timeout, Unreachable)):
                    lost.append(one)
                else:
                    results.append(one)
        if lost:
            missing = [query for one in lost for query in one.unanswered]
            message = f"{len(missing)} questions have no answer: {lost[0]}"
            raise type(lost[0])(message, missing, Results(results))
        return Results(results)

    async def _each(self) -> AsyncGenerator[Result | Timeout | Unreachable, None]:
        waiting: deque[Pending] = deque()
        try:
            async for question in _asynchronously(self._questions):
                waiting.append(await self._publish(question))
                if len(waiting) == IN_FLIGHT:
                    yield await _outcome(waiting.popleft())
            while waiting:
                yield await _outcome(waiting.popleft())
        finally:
            for pending in waiting:
                pending.value.cancel()


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
