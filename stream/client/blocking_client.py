"""The client for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from schemas import (
    AllotmentRecord,
    GrantRecord,
    Population,
    PopulationRecord,
    Receipt,
    Request,
    Source,
    SourceRecord,
    StreamSpec,
    StreamStatus,
    TrailRecord,
)
from stream.client.async_client import AsyncClient
from stream.errors import SottoError
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics
from stream.questions import Question, Result, Results
from stream.questions.alert_states import Notice
from stream.questions.dead_letter_records import DeadLetter
from stream.questions.live_events import LiveEvent
from stream.questions.question_forms import ANSWER_TIMEOUT, REQUEST_TIMEOUT, made_settings
from stream.settings import Settings

if TYPE_CHECKING:
    from stream.sql import Table


Done = TypeVar("Done")
Item = TypeVar("Item")

_DISCONNECTED: Final = "the client was disconnected before this was done"


class Running:
    """An asynchronous client, and the thread in which its event loop runs."""

    def __init__(self, settings: Settings) -> None:
        self.client = AsyncClient(settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sotto-client", daemon=True)
        self._thread.start()
        self._beginning = threading.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._left = False

    def do(self, work: Coroutine[Any, Any, Done]) -> Done:
        """The outcome of what is done in that thread; Ctrl-C ends it. SottoError if the client is disconnected meanwhile."""
        with self._beginning:
            if self._left:
                work.close()
                raise SottoError(_DISCONNECTED)
            future = asyncio.run_coroutine_threadsafe(self._do(work), self._loop)
        return _outcome(future)

    def end(self, each: AsyncGenerator[Item, None]) -> None:
        """Read no more of what comes one by one; whoever has left reads none."""

        async def close() -> None:
            await each.aclose()

        if not self._left:
            self.do(close())

    def stop(self) -> None:
        """Leave, and end the thread; once is enough. Threads that wait for something are told."""
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
            # A loop that stops resumes nobody: who waits is told first, then readers that rest between two answers end.
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


Arguments = ParamSpec("Arguments")


class Client:
    """As AsyncClient, call for call, for programs that are not asynchronous; threads may share one.

    It connects with its first call, or in a ``with`` block, and leaves with the block, ``disconnect``, or the program.
    """

    def __init__(self, settings: Settings | str | None = None, /, **fields: Any) -> None:
        self._settings = made_settings(settings, fields)
        self._connecting = threading.Lock()
        self._running: Running | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def connect(self) -> None:
        """Find the installation. Unreachable if there is none."""
        self._connected()

    def disconnect(self) -> None:
        """Send what was published, and leave; what Kafka does not take within ten seconds is given up.

        Threads that wait for something raise a SottoError.
        """
        with self._connecting:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    @property
    def topics(self) -> Topics:
        """The installation's topics."""
        return self._connected().client.topics

    def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source. Refused if the name stands for something else already."""
        return self._do(AsyncClient.register, source)

    def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population. Refused if the name stands for something else already."""
        return self._do(AsyncClient.register_population, population)

    def join(self, source: str, population: str) -> Receipt:
        """Let a source belong to a population, for good. Refused unless what it has granted fits there."""
        return self._do(AsyncClient.join, source, population)

    def allot(
        self,
        allotment: str,
        epsilon: float,
        delta: float | None = None,
        *,
        source: str | None = None,
        population: str | None = None,
        analysts: Sequence[str] = (),
    ) -> Receipt:
        """Let analysts have a part of a source's or a population's budget, or change the part that they have."""
        fields = {"source": source, "population": population}
        return self._do(AsyncClient.allot, allotment, epsilon, delta, **fields, analysts=analysts)

    def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream; once this returns it answers. Refused says what was asked and what is left."""
        return self._do(AsyncClient.open, stream, analyst=analyst)

    def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Grant a stream as many further charged answers as ``epsilon`` pays for; all that it has measured stays."""
        return self._do(AsyncClient.extend, source, stream, epsilon, delta, analyst=analyst)

    def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; the refund follows once its worker has reported its last totals."""
        return self._do(AsyncClient.close, source, stream, reason)

    def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        return self._do(AsyncClient.halt, source, stream, reason)

    def refresh(self, source: str, *, close: bool = False) -> Receipt:
        """Take the data that a table source has now for its next version; the receipt has the version's number."""
        return self._do(AsyncClient.refresh, source, close=close)

    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request and wait for its receipt. Sending the same id again is safe and gives the same receipt."""
        return self._do(AsyncClient.request, request, timeout)

    def requests(self, requests: Iterable[Request], timeout: float = REQUEST_TIMEOUT) -> list[Receipt]:
        """Send many requests at once and give their receipts in the same order, refusals among them."""
        return self._do(AsyncClient.requests, requests, timeout)

    def ask(
        self,
        question: Question,
        /,
        *,
        timeout: float | None = ANSWER_TIMEOUT,
        outcomes: bool = False,
        dry_run: bool = False,
        headers: Headers = (),
        **fields: Any,
    ) -> Result:
        """Ask one question and wait for its answer: ``ask("ward-7", value=250)``, or a whole query.

        Raises Rejected, Halted, Exhausted or Timeout; with ``outcomes`` what is rejected or halted is a result like others.
        With ``dry_run`` the result has the most ε that the answer may cost as ``price``.
        """
        given: dict[str, Any] = {"timeout": timeout, "outcomes": outcomes, "dry_run": dry_run, "headers": headers}
        return self._do(AsyncClient.ask, question, **given, **fields)

    def ask_many(self, questions: Iterable[Question], *, timeout: float | None = ANSWER_TIMEOUT) -> Results:
        """Ask many questions at once and give their results in the same order; rejected and halted ones among them.

        Invalid if a question is none; nothing was asked then.
        """
        return self._do(_all_of, questions, timeout)

    def sql(
        self,
        statement: str,
        *,
        timeout: float | None = ANSWER_TIMEOUT,
        outcomes: bool = False,
        max_price: float | str | None = None,
    ) -> Table:
        """Ask what a SELECT asks: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``.

        FROM names a stream, or a source with one open stream of pmw or laplace. Invalid says what can be asked instead.
        """
        return self._do(AsyncClient.sql, statement, timeout=timeout, outcomes=outcomes, max_price=max_price)

    def publish(
        self,
        question: Question,
        events: Iterable[LiveEvent] | None = None,
        /,
        *,
        headers: Headers = (),
        **fields: Any,
    ) -> None:
        """Hand one question, or people's events for the topic of a source, to the producer; ``flush`` waits until Kafka has them."""
        self._do(AsyncClient.publish, question, events, headers=headers, **fields)

    def advance(self, source: str, time: str | float | datetime) -> None:
        """Let the clock of a source reach a moment, by a mark for each partition of its topic.

        ``time`` is in ISO 8601, a datetime with a zone, or seconds since 1970. Invalid if it is no moment from 1970 to 9999, such as
        milliseconds, or if the source has no marks.
        """
        self._do(AsyncClient.advance, source, time)

    def flush(self) -> None:
        """Wait until Kafka has everything published; raises what it did not take."""
        self._do(AsyncClient.flush)

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """Committed answers of all streams, as they come; without end."""
        return self._each(lambda client: client.answers(from_beginning=from_beginning))

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """The alerts of these streams as they are committed, and that one has ended; without end."""
        return self._each(
            lambda client: client.watch(*streams, source=source, quiet=quiet, from_beginning=from_beginning)
        )

    def list_sources(self) -> list[SourceRecord]:
        """All sources that are registered as of now, with their budgets."""
        return self._do(AsyncClient.list_sources)

    def list_populations(self) -> list[PopulationRecord]:
        """All populations that are registered as of now, with their budgets."""
        return self._do(AsyncClient.list_populations)

    def population(self, population: str) -> PopulationRecord:
        """A population's budget as of now. Unknown if it is not registered."""
        return self._do(AsyncClient.population, population)

    def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """The allotments of a source or population as of now, or all that there are."""
        return self._do(AsyncClient.list_allotments, source=source, population=population)

    def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """The grants of all streams ever opened, or of a source's; Unknown if there is no such source."""
        return self._do(AsyncClient.list_streams, source)

    def budget(self, source: str) -> SourceRecord:
        """A source's budget as of now: what is granted, spent, refunded and left. Unknown if it is not registered."""
        return self._do(AsyncClient.budget, source)

    def grant(self, source: str, stream: str) -> GrantRecord:
        """A stream's grant as of now: its plan, its cost, and what is spent of it. Unknown if it was never opened."""
        return self._do(AsyncClient.grant, source, stream)

    def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """What workers last showed of these streams, with the time in seconds since the epoch; not all have a digest."""
        return self._do(AsyncClient.digests, streams)

    def trail(self) -> Generator[TrailRecord, None, None]:
        """The audit trail as of now, oldest first: requests, decisions, what followed, and what was spent meanwhile."""
        return self._each(AsyncClient.trail)

    def dead_letters(self, source: str | None = None) -> Generator[DeadLetter, None, None]:
        """Refused events as of now, as they came, each with the reason; of all topics, or of the topic of a live source."""
        return self._each(lambda client: client.dead_letters(source))

    def _each(self, begin: Callable[[AsyncClient], AsyncGenerator[Item, None]]) -> Generator[Item, None, None]:
        running = self._connected()
        each = begin(running.client)
        try:
            while (item := running.do(_next_of(each))) is not None:
                yield item
        finally:
            running.end(each)

    def _connected(self) -> Running:
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

    def _do(
        self,
        call: Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Done]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Done:
        running = self._connected()
        return running.do(call(running.client, *args, **kwargs))


async def _all_of(client: AsyncClient, questions: Iterable[Question], timeout: float | None) -> Results:  # noqa: ASYNC109
    return await client.ask_many(questions, timeout=timeout)


async def _next_of(each: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(each, None)
