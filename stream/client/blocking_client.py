"""The synchronous client: runs an ``AsyncClient`` in the event loop of a background thread."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Self, TypeVar

from stream.client.async_client import AsyncClient
from stream.client.client_calls import SyncCalls, iterated, synchronous
from stream.errors import SottoError
from stream.processing.topic_names import Topics
from stream.questions import Question, Results
from stream.questions.question_forms import ANSWER_TIMEOUT, as_settings
from stream.settings import Settings

Done = TypeVar("Done")

_DISCONNECTED: Final = "the client was disconnected before this was done"


class Running:
    """An asynchronous client and the thread that runs its event loop."""

    def __init__(self, settings: Settings) -> None:
        self.client = AsyncClient(settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sotto-client", daemon=True)
        self._thread.start()
        self._beginning = threading.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._left = False

    def do(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run a coroutine in the thread of the event loop and return its result; Ctrl-C cancels it."""
        with self._beginning:
            if self._left:
                work.close()
                raise SottoError(_DISCONNECTED)
            future = asyncio.run_coroutine_threadsafe(self._do(work), self._loop)
        return _outcome(future)

    def end(self, each: AsyncGenerator[Any, None]) -> None:
        """Close a generator of the client unless the client is disconnected."""

        async def close() -> None:
            await each.aclose()

        if not self._left:
            self.do(close())

    def stop(self) -> None:
        """Disconnect and end the thread; waiting calls raise a SottoError. A second call does nothing."""
        with self._beginning:
            if self._left:
                return
            self._left = True
            leaving = asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        try:
            _outcome(leaving)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _do(self, work: Coroutine[Any, Any, Done]) -> Done:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await task

    async def _leave(self) -> None:
        try:
            await self.client.disconnect()
        finally:
            # No task resumes after the loop has stopped: cancel calls first, then close generators.
            await _cancel(self._under_way)
            await asyncio.get_running_loop().shutdown_asyncgens()
            await _cancel(asyncio.all_tasks())


def _outcome(future: Future[Done]) -> Done:
    try:
        return future.result()
    except CancelledError:
        raise SottoError(_DISCONNECTED) from None
    except BaseException:
        future.cancel()
        raise


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    each = [task for task in tasks if task is not asyncio.current_task()]
    for task in each:
        task.cancel()
    await asyncio.gather(*each, return_exceptions=True)


class Client(SyncCalls):
    """The synchronous form of ``AsyncClient``, with the same methods; threads may share one.

    It connects at the first call or at the start of a ``with`` block. It disconnects at the end of
    the block, when ``disconnect`` is called, or when the program ends; calls of other threads that
    still wait then raise a ``SottoError``.

    Examples:
        >>> with Client("127.0.0.1:9092") as client:  # doctest: +SKIP
        ...     result = client.ask("ward-7", value=250)
        ...     print(result.outcome, result.estimate)
    """

    def __init__(self, settings: Settings | str | None = None, /, **fields: Any) -> None:
        self._settings = as_settings(settings, fields)
        self._connecting = threading.Lock()
        self._running: Running | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Send published records for up to 10 seconds, and disconnect.

        Examples:
            >>> client.flush()
            >>> client.disconnect()
        """
        with self._connecting:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self._portal().client.topics

    def ask_many(self, questions: Iterable[Question], *, timeout: float | None = ANSWER_TIMEOUT) -> Results:
        """Ask many questions and return their results in the same order.

        Rejected or halted questions do not raise.

        Raises:
            Invalid: a question does not fit the contract; nothing was published.
            Timeout, Unreachable: answers are missing; ``results`` has the others.

        Examples:
            >>> results = client.ask_many({"stream": "counts", "where": f"age < {n}"} for n in (10, 20))
            >>> [result.outcome for result in results]
            ['answer', 'answer']
        """
        portal = self._portal()
        return portal.do(_all_of(portal.client, questions, timeout))

    publish = synchronous(AsyncClient.publish)
    advance = synchronous(AsyncClient.advance)
    flush = synchronous(AsyncClient.flush)
    answers = iterated(AsyncClient.answers)
    watch = iterated(AsyncClient.watch)

    def connect(self) -> None:
        """Find the installation's topics; ``Unreachable`` if Kafka or the topics are missing.

        Examples:
            >>> client.connect()
        """
        self._portal()

    def _portal(self) -> Running:
        with self._connecting:
            if self._running is None:
                running = Running(self._settings)
                try:
                    running.do(running.client.connect())
                except BaseException:
                    running.stop()
                    raise
                self._running = running
                weakref.finalize(self, running.stop)
            return self._running


async def _all_of(client: AsyncClient, questions: Iterable[Question], timeout: float | None) -> Results:  # noqa: ASYNC109
    return await client.ask_many(questions, timeout=timeout)
