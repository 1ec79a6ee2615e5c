"""An executor for tests that decide when work is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class HeldFuture(Future[Any]):
    """Work that is done when a caller waits for it, at the latest."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        """Do the work, unless it is done."""
        if self.done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:  # noqa: BLE001  (handed on, as a thread's would be)
            self.set_exception(error)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class HeldThreads(Executor):
    """Begins nothing before ``run`` is called; then all work ends at once."""

    def __init__(self) -> None:
        self.held: list[HeldFuture] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> HeldFuture:
        future = HeldFuture(lambda: fn(*args, **kwargs))
        self.held.append(future)
        return future

    def run(self) -> None:
        """Do all work."""
        held, self.held = self.held, []
        for future in held:
            future.run()
