"""Lengthens the default timeouts of clients in tests, because the machine may be very busy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from sotto import AsyncClient, Client, Driver

__all__ = ["SECONDS", "lengthen_timeouts"]

SECONDS: Final = 120.0

_WAITING: Final[tuple[Callable[..., Any], ...]] = tuple(
    getattr(kind, name)
    for kind in (AsyncClient, Client, Driver)
    for name in ("ask", "ask_many", "sql", "request", "requests")
)


def lengthen_timeouts() -> None:
    """Set the default timeout of all methods that wait for services to ``SECONDS``; a call may pass another."""
    for method in map(inspect.unwrap, _WAITING):
        if method.__kwdefaults__ is not None and "timeout" in method.__kwdefaults__:
            method.__kwdefaults__["timeout"] = SECONDS
        else:
            # ``timeout`` is the only parameter with a default.
            assert len(method.__defaults__ or ()) == 1
            method.__defaults__ = (SECONDS,)
