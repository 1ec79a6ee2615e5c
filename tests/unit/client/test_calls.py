"""The clients and the driver take the same calls."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sotto import AsyncClient, Client, Driver

CALLS = sorted(name for name in dir(AsyncClient) if not name.startswith("_"))


def parameters(kind: type[Any], name: str) -> list[tuple[str, Any, Any]]:
    """Return the parameters of a call with their defaults, without ``self``."""
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


@pytest.mark.parametrize("name", [name for name in CALLS if name != "topics"])
def test_calls_of_async_client_exist_in_client_and_driver(name: str) -> None:
    assert parameters(Client, name) == parameters(AsyncClient, name)
    own = {"register": ["table"], "refresh": ["table"]}.get(name, [])
    assert [one for one in parameters(Driver, name) if one[0] not in own] == parameters(AsyncClient, name)


def test_client_has_no_call_beyond_async_client() -> None:
    assert sorted(name for name in dir(Client) if not name.startswith("_")) == CALLS


def test_calls_under_comparison_include_main_calls() -> None:
    assert {"ask", "ask_many", "open", "close", "register", "list_sources", "list_streams", "budget"} <= set(CALLS)
