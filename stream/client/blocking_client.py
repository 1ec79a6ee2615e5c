"""The synchronous client: an ``AsyncClient`` and its event loop in a background thread."""

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
        """Run a coroutine in that thread and return its result; Ctrl-C cancels it."""
        with self._beginning:
            if self._left:
                work.close()
                raise SottoError(_DISCONNECTED)
            future = asyncio.run_coroutine_threadsafe(self._do(work), self._loop)
        return _outcome(future)

    def end(self, each: AsyncGenerator[Item, None]) -> None:
        """Close a generator of the client unless the client is disconnected."""

        async def close() -> None:
            await each.aclose()

        if not self._left:
            self.do(close())

    def stop(self) -> None:
        """Disconnect and end the thread; calls of other threads raise a SottoError. Idempotent."""
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
            # A stopped loop resumes no task: cancel calls first, then close generators.
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
    """The synchronous form of ``AsyncClient``, with the same methods; threads may share one.

    It connects at the first call or in a ``with`` block, and disconnects at the end of the block, of
    ``disconnect`` or of the program.

    Example::

        with Client("127.0.0.1:9092") as client:
            result = client.ask("ward-7", value=250)
            print(result.outcome, result.estimate)
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
        """Find the installation's topics; ``Unreachable`` if Kafka or the topics are missing."""
        self._connected()

    def disconnect(self) -> None:
        """Send published records for up to 10 seconds, and disconnect.

        Calls of other threads that still wait raise a ``SottoError``.
        """
        with self._connecting:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self._connected().client.topics

    def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source; ``Refused`` if its name has another definition."""
        return self._do(AsyncClient.register, source)

    def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population; ``Refused`` if its name has another definition."""
        return self._do(AsyncClient.register_population, population)

    def join(self, source: str, population: str) -> Receipt:
        """Add a source to a population for good; ``Refused`` if its grants exceed that budget."""
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
        """Create or change an allotment: the analysts' part of a source's or population's budget."""
        fields = {"source": source, "population": population}
        return self._do(AsyncClient.allot, allotment, epsilon, delta, **fields, analysts=analysts)

    def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream and reserve its grant; it answers once this call returns.

        ``Refused`` carries the requested amount (``asked``) and the rest of the budget (``left``).
        """
        return self._do(AsyncClient.open, stream, analyst=analyst)

    def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Extend a stream's grant by as many charged answers as ``epsilon`` pays for."""
        return self._do(AsyncClient.extend, source, stream, epsilon, delta, analyst=analyst)

    def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; its refund follows when the worker has reported its final charge."""
        return self._do(AsyncClient.close, source, stream, reason)

    def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams; the grant stays reserved."""
        return self._do(AsyncClient.halt, source, stream, reason)

    def refresh(self, source: str, *, close: bool = False) -> Receipt:
        """Make the current data of a table its next version; the receipt has the number."""
        return self._do(AsyncClient.refresh, source, close=close)

    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request and return its receipt; sending the same request id again is safe."""
        return self._do(AsyncClient.request, request, timeout)

    def requests(self, requests: Iterable[Request], timeout: float = REQUEST_TIMEOUT) -> list[Receipt]:
        """Send many requests and return their receipts, refusals included, in the same order."""
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
        """Ask one question and wait for its answer: ``client.ask("ward-7", value=250)``.

        With ``outcomes``, a rejected or halted question returns a result instead of raising
        ``Rejected``, ``Halted`` or ``Exhausted``. With ``dry_run``, ``price`` of the result is the most
        ε that the answer may cost.
        """
        given: dict[str, Any] = {"timeout": timeout, "outcomes": outcomes, "dry_run": dry_run, "headers": headers}
        return self._do(AsyncClient.ask, question, **given, **fields)

    def ask_many(self, questions: Iterable[Question], *, timeout: float | None = ANSWER_TIMEOUT) -> Results:
        """Ask many questions and return their results in the same order.

        ``Invalid`` if a question does not fit the contract; nothing was published then.
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
        """Answer a SELECT: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``.

        FROM names a stream, or a source with one open stream of pmw or laplace. The message of
        ``Invalid`` names the supported form.
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
        """Send one question, or events to a source's topic, without waiting; see ``flush``."""
        self._do(AsyncClient.publish, question, events, headers=headers, **fields)

    def advance(self, source: str, time: str | float | datetime) -> None:
        """Advance a source's clock to ``time``: send a watermark to each partition of its topic.

        ``time`` is ISO 8601, a datetime with a zone, or Unix time in seconds. ``Invalid`` if it is not
        from 1970 to 9999 (for example milliseconds), or if the source's clock is not ``marks``.
        """
        self._do(AsyncClient.advance, source, time)

    def flush(self) -> None:
        """Wait until Kafka has all published records; raise the first delivery error."""
        self._do(AsyncClient.flush)

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """Yield the committed answers of all streams, without end."""
        return self._each(lambda client: client.answers(from_beginning=from_beginning))

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """Yield alerts and ends of streams as they are committed, without end."""
        return self._each(
            lambda client: client.watch(*streams, source=source, quiet=quiet, from_beginning=from_beginning)
        )

    def list_sources(self) -> list[SourceRecord]:
        """Return all registered sources with their budgets."""
        return self._do(AsyncClient.list_sources)

    def list_populations(self) -> list[PopulationRecord]:
        """Return all registered populations with their budgets."""
        return self._do(AsyncClient.list_populations)

    def population(self, population: str) -> PopulationRecord:
        """Return a population's budget; ``Unknown`` if it is not registered."""
        return self._do(AsyncClient.population, population)

    def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """Return the allotments of a source or population, or all allotments."""
        return self._do(AsyncClient.list_allotments, source=source, population=population)

    def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """Return the grants of all streams ever opened, of one source or of all."""
        return self._do(AsyncClient.list_streams, source)

    def budget(self, source: str) -> SourceRecord:
        """Return a source's budget: granted, spent, refunded and left; ``Unknown`` if not registered."""
        return self._do(AsyncClient.budget, source)

    def grant(self, source: str, stream: str) -> GrantRecord:
        """Return a stream's grant: calibration, cost and charge; ``Unknown`` if never opened."""
        return self._do(AsyncClient.grant, source, stream)

    def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """Return the last status of each stream that has one, with its Unix time in seconds."""
        return self._do(AsyncClient.digests, streams)

    def trail(self) -> Generator[TrailRecord, None, None]:
        """Yield the current entries of the audit trail, oldest first."""
        return self._each(AsyncClient.trail)

    def dead_letters(self, source: str | None = None) -> Generator[DeadLetter, None, None]:
        """Yield the current dead letters, of all topics or of a live source's topic."""
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
