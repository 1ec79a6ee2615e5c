"""The synchronous form of ``AsyncCalls``: each call runs through a portal to its end."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from stream.client.client_calls import AsyncCalls

Returned = TypeVar("Returned")
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")


class Portal(Protocol):
    """Runs an asynchronous client's calls to their end; ``ClientThread`` does so in a thread."""

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
        return portal.run(call(portal.client, *args, **kwargs))

    return run


def make_generator_method(
    call: Callable[Concatenate[Any, Arguments], AsyncGenerator[Item, None]],
) -> Callable[Concatenate[SyncCalls, Arguments], Generator[Item, None, None]]:
    """Return a generator method that runs an asynchronous generator through the portal."""

    @wraps(call)
    def run(self: SyncCalls, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Generator[Item, None, None]:
        portal = self._get_portal()
        generator = call(portal.client, *args, **kwargs)
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
    source_of = make_synchronous(AsyncCalls.source_of)
    digests = make_synchronous(AsyncCalls.digests)
    trail = make_generator_method(AsyncCalls.trail)
    dead_letters = make_generator_method(AsyncCalls.dead_letters)
