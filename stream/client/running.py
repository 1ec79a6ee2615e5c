"""The thread in which a client runs for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from stream.client.asynchronous import AsyncClient
from stream.errors import SottoError
from stream.settings import Settings

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
