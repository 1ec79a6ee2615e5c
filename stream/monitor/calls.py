"""What a route is, who may use it, and what a handler is told of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from stream.monitor.models import AccessRole, View
from stream.monitor.monitor import Monitor
from stream.monitor.tokens import Bearer

_RANKS: dict[AccessRole, int] = {"viewer": 0, "analyst": 1, "operator": 2}
"""Whoever may do something, those of a higher rank may do too."""


@dataclass(frozen=True)
class Call:
    """One request, read and checked."""

    bearer: Bearer | None
    names: dict[str, str]
    query: Any = None
    body: Any = None
    gone: Callable[[], bool] = lambda: False
    """Whether the asker has hung up."""

    @property
    def who(self) -> Bearer:
        """Who asks: known wherever a route takes a role."""
        if self.bearer is None:
            raise LookupError("a route that takes no role has no name")
        return self.bearer


@dataclass(frozen=True)
class Route:
    """One route: who may use it, what it takes, and what it answers."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    answer: Any
    handle: Callable[[Monitor, Call], Awaitable[BaseModel]]
    access: AccessRole | None = "viewer"
    query: type[View] | None = None
    body: Any = None

    @cached_property
    def body_adapter(self) -> TypeAdapter[Any]:
        """Reads the body."""
        return TypeAdapter(self.body)


def may(role: AccessRole, access: AccessRole) -> bool:
    """Whether a role may use what takes another."""
    return _RANKS[role] >= _RANKS[access]
