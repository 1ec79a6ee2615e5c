"""The synchronous client: runs an ``AsyncClient`` in the event loop of a background thread.

``SyncCalls`` has the synchronous form of each call of ``AsyncCalls``, which a portal runs to its end.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from stream.client.async_client import AsyncClient
from stream.client.client_calls import AsyncCalls
from stream.errors import SottoError
from stream.processing.topic_names import Topics
from stream.questions import Question, Results
from stream.questions.question_forms import ANSWER_TIMEOUT, as_settings
from stream.settings import Settings

Returned = TypeVar("Returned")
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")


class Portal(Protocol):
    """Runs an asynchronous client's calls to their end; ``ClientThread`` runs them in a thread."""

    @property
    def client(self) -> Any: ...  # noqa: D102
    def run(self, call: Coroutine[Any, Any, Returned]) -> Returned: ...  # noqa: D102
    def close_generator(self, generator: AsyncGenerator[Any, None]) -> None: ...  # noqa: D102


def make_synchronous(
    call: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Returned]],
) -> Callable[Concatenate[SyncCalls, Arguments], Returned]:
    """Return a method that runs an asynchronous call through the portal and returns its result."""

    @wraps(call)
    def run(self: SyncCalls, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        portal = self._get_portal()
        return portal.run(_call_public(self, call, portal.client, *args, **kwargs))

    return run


def _call_public(public: SyncCalls, call: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
    """Call an asynchronous function; an error about its arguments names the public method."""
    try:
        return call(*args, **kwargs)
    except TypeError as error:
        name = f"{type(public).__name__}.{call.__name__}"
        raise TypeError(str(error).replace(call.__qualname__, name)) from None


def make_generator_method(
    call: Callable[Concatenate[Any, Arguments], AsyncGenerator[Item, None]],
) -> Callable[Concatenate[SyncCalls, Arguments], Generator[Item, None, None]]:
    """Return a generator method that runs an asynchronous generator through the portal."""

    @wraps(call)
    def run(self: SyncCalls, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Generator[Item, None, None]:
        portal = self._get_portal()
        generator = _call_public(self, call, portal.client, *args, **kwargs)
        try:
            while (item := portal.run(next_item(generator))) is not None:
                yield item
        finally:
            portal.close_generator(generator)

    signature = inspect.signature(call)
    sync_annotation = signature.return_annotation.replace("AsyncGenerator", "Generator").replace(
        ", None]", ", None, None]"
    )
    run.__signature__ = signature.replace(return_annotation=sync_annotation)  # type: ignore[attr-defined]
    run.__annotations__ = {**call.__annotations__, "return": sync_annotation}
    return run


async def next_item(generator: AsyncGenerator[Item, None]) -> Item | None:
    """Return the next item of a generator; None at its end."""
    return await anext(generator, None)


class SyncCalls(ABC):
    """The synchronous form of ``AsyncCalls``."""

    @abstractmethod
    def _get_portal(self) -> Portal:
        """Return the object that runs the asynchronous client's calls; connect it first if needed."""

    register = make_synchronous(AsyncCalls.register)
    register_population = make_synchronous(AsyncCalls.register_population)
    join = make_synchronous(AsyncCalls.join)
    allot = make_synchronous(AsyncCalls.allot)
    open = make_synchronous(AsyncCalls.open)
    extend = make_synchronous(AsyncCalls.extend)
    close = make_synchronous(AsyncCalls.close)
    halt = make_synchronous(AsyncCalls.halt)
    refresh = make_synchronous(AsyncCalls.refresh)
    request = make_synchronous(AsyncCalls.request)
    requests = make_synchronous(AsyncCalls.requests)
    ask = make_synchronous(AsyncCalls.ask)
    sql = make_synchronous(AsyncCalls.sql)
    list_sources = make_synchronous(AsyncCalls.list_sources)
    list_populations = make_synchronous(AsyncCalls.list_populations)
    population = make_synchronous(AsyncCalls.population)
    list_allotments = make_synchronous(AsyncCalls.list_allotments)
    list_streams = make_synchronous(AsyncCalls.list_streams)
    budget = make_synchronous(AsyncCalls.budget)
    grant = make_synchronous(AsyncCalls.grant)
    missed_events = make_synchronous(AsyncCalls.missed_events)
    source_of = make_synchronous(AsyncCalls.source_of)
    statuses = make_synchronous(AsyncCalls.statuses)
    trail = make_generator_method(AsyncCalls.trail)
    dead_letters = make_generator_method(AsyncCalls.dead_letters)


_DISCONNECTED: Final = "the client was disconnected before the call ended; connect again and repeat it"


class ClientThread:
    """An asynchronous client and the thread that runs its event loop."""

    def __init__(self, settings: Settings) -> None:
        self.client = AsyncClient(settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sotto-client", daemon=True)
        self._thread.start()
        self._state_lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopped = False

    def run(self, call: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine in the thread of the event loop and return its result; Ctrl-C cancels it."""
        with self._state_lock:
            if self._is_stopped:
                call.close()
                raise SottoError(_DISCONNECTED)
            future = asyncio.run_coroutine_threadsafe(self._run_as_task(call), self._loop)
        return _wait_for_result(future)

    def close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        """Close a generator of the client unless the client is disconnected."""
        if not self._is_stopped:
            self.run(generator.aclose())

    def stop(self) -> None:
        """Disconnect and end the thread; waiting calls raise a SottoError. A repeated call has no effect."""
        with self._state_lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            disconnecting = asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop)
        try:
            _wait_for_result(disconnecting)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _run_as_task(self, call: Coroutine[Any, Any, Returned]) -> Returned:
        task = asyncio.ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task

    async def _disconnect(self) -> None:
        try:
            await self.client.disconnect()
        finally:
            # A remaining task would never end, so cancel calls first, then close generators.
            await _cancel_tasks(self._tasks)
            await asyncio.get_running_loop().shutdown_asyncgens()
            await _cancel_tasks(asyncio.all_tasks())


def _wait_for_result(future: Future[Returned]) -> Returned:
    try:
        return future.result()
    except CancelledError:
        raise SottoError(_DISCONNECTED) from None
    except BaseException:
        future.cancel()
        raise


async def _cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Client(SyncCalls):
    """The synchronous form of ``AsyncClient``, with the same methods; threads may share a client.

    It connects at the first call or at the start of a ``with`` block. It disconnects at the end of
    the block, when ``disconnect`` is called, or when the program ends. Calls of other threads that
    wait at that moment raise a ``SottoError``.

    Examples:
        >>> with Client("127.0.0.1:9092") as client:  # doctest: +SKIP
        ...     result = client.ask("ward-7", value=250)
        ...     print(result.outcome, result.estimate)
    """

    def __init__(self, settings: Settings | str | None = None, /, **fields: Any) -> None:
        self._settings = as_settings(settings, fields)
        self._connect_lock = threading.Lock()
        self._client_thread: ClientThread | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Wait up to 10 seconds until published records are sent, and disconnect.

        Examples:
            >>> client.flush()
            >>> client.disconnect()
        """
        with self._connect_lock:
            client_thread, self._client_thread = self._client_thread, None
        if client_thread is not None:
            client_thread.stop()

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self._get_portal().client.topics

    def ask_many(self, questions: Iterable[Question], *, timeout: float | None = ANSWER_TIMEOUT) -> Results:
        """Ask many questions and return their results in the same order.

        Rejected or halted questions do not raise.

        Raises:
            Invalid: a question does not fit the contract; nothing was published.
            Timeout, Unreachable: answers are missing; ``results`` has the answers that arrived.

        Examples:
            >>> results = client.ask_many({"stream": "counts", "where": f"age < {n}"} for n in (10, 20))
            >>> [result.outcome for result in results]
            ['answer', 'answer']
        """
        portal = self._get_portal()
        return portal.run(_ask_many(portal.client, questions, timeout))

    publish = make_synchronous(AsyncClient.publish)
    advance = make_synchronous(AsyncClient.advance)
    flush = make_synchronous(AsyncClient.flush)
    answers = make_generator_method(AsyncClient.answers)
    watch = make_generator_method(AsyncClient.watch)

    def connect(self) -> None:
        """Connect to Kafka and find the installation's topics; raise ``Unreachable`` if this fails.

        Examples:
            >>> client.connect()
        """
        self._get_portal()

    def _get_portal(self) -> ClientThread:
        with self._connect_lock:
            if self._client_thread is None:
                client_thread = ClientThread(self._settings)
                try:
                    client_thread.run(client_thread.client.connect())
                except BaseException:
                    client_thread.stop()
                    raise
                self._client_thread = client_thread
                weakref.finalize(self, client_thread.stop)
            return self._client_thread


async def _ask_many(client: AsyncClient, questions: Iterable[Question], timeout: float | None) -> Results:  # noqa: ASYNC109
    return await client.ask_many(questions, timeout=timeout)
