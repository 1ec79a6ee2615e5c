"""Makes mutations: contexts in which one function is replaced by a mistaken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

Mutation = Callable[[], AbstractContextManager[Any]]


def replacing(owner: Any, name: str) -> Callable[[Callable[..., Any]], Mutation]:
    """Make a mutation of a function that replaces ``owner.name``; its first argument is the original."""

    def decorate(mistaken: Callable[..., Any]) -> Mutation:
        @wraps(mistaken)
        def mutation() -> AbstractContextManager[Any]:
            return _replaced(owner, name, mistaken)

        return mutation

    return decorate


@contextmanager
def _replaced(owner: Any, name: str, mistaken: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        return mistaken(original, *arguments, **named)

    with patch.object(owner, name, call):
        yield
