"""Calls of tests wait longer than a user would: the machine may be four times as busy as one that serves people."""

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
    """Give every method that waits for the services this default; a test that wants another says so in its call."""
    for method in map(inspect.unwrap, _WAITING):
        if method.__kwdefaults__ is not None and "timeout" in method.__kwdefaults__:
            method.__kwdefaults__["timeout"] = SECONDS
        else:
            # It is the last of these; other parameters have no default.
            assert len(method.__defaults__ or ()) == 1
            method.__defaults__ = (SECONDS,)
