"""The examples in the docstrings of the public package."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import sotto
import sotto.dbapi
from sotto import AsyncClient, Client, Driver


def installation() -> Driver:
    """A driver with the examples' table and an open stream over it."""
    client = Driver("00" * 32)
    people = {"source": "people", "kind": "table", "neighbors": "add-remove", "epsilon": 4.0}
    client.register(
        {**people, "path": "people.csv", "attributes": {"sex": ["F", "M"], "age": 100}},
        table={"sex": ["F", "M"] * 500, "age": list(range(100)) * 10},
    )
    mechanism = {"kind": "laplace", "answers": 5, "dimensions": 2}
    client.open({"stream": "counts", "source": "people", "epsilon": 2.0, "mechanism": mechanism})
    visits = {"source": "visits", "kind": "events", "neighbors": "add-remove", "epsilon": 4.0, "topic": "visits"}
    client.register(
        {**visits, "person": "who", "time": "ts", "clock": "marks", "attributes": {"ward": ["a", "b"]}}
    )
    return client


def documented_names() -> dict[str, Any]:
    """Return all public classes, and all public methods of the clients and the driver, by name."""
    found = {name: getattr(sotto, name) for name in sotto.__all__}
    for kind in (Client, AsyncClient, Driver):
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                found[f"{kind.__name__}.{name}"] = member
    return {**found, "dbapi.connect": sotto.dbapi.connect}


@pytest.mark.parametrize("name", documented_names())
def test_public_class_and_method_have_example(name: str) -> None:
    """A docstring without an example, or without a statement in it, fails."""
    assert "Examples:\n" in (inspect.getdoc(documented_names()[name]) or "")
    assert doctest.DocTestParser().get_examples(documented_names()[name].__doc__)


# A method that only a client has needs a broker.
OF_DRIVER = [name for name in documented_names() if not name.startswith(("Client.", "AsyncClient."))]


@pytest.mark.filterwarnings("ignore:rows with a missing or invalid cell are left out")
@pytest.mark.parametrize("name", OF_DRIVER)
def test_examples_without_a_broker_are_correct(name: str) -> None:
    """Each example runs in a new installation in memory and prints what it says."""
    names = {"client": installation(), **{one: getattr(sotto, one) for one in sotto.__all__}}
    test = doctest.DocTestParser().get_doctest(documented_names()[name].__doc__, names, name, None, 0)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)
