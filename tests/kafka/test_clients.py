"""Both clients on a real installation: the same calls, results with labels, and errors of one family."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sotto import AsyncClient, Client, Halted, Invalid, Refused, Rejected, Settings, Timeout, Unreachable
from stream.data import adult
from tests.conftest import StartService

pytestmark = pytest.mark.kafka

FEED: dict[str, Any] = {
    "source": "feed",
    "kind": "values",
    "neighbors": "replace",
    "epsilon": 5.0,
    "sensitivity": 1.0,
}
WARD: dict[str, Any] = {
    "stream": "ward",
    "source": "feed",
    "epsilon": 1.0,
    "mechanism": {"kind": "above_threshold", "threshold": 0.0, "cutoff": 100},
}
COUNTS: dict[str, Any] = {
    "stream": "counts",
    "source": "adult",
    "epsilon": 1.0,
    "mechanism": {"kind": "laplace", "answers": 4, "dimensions": 2},
}


def use(settings: Settings) -> None:
    """Everything that the client does, as a program that knows nothing of asyncio does it."""
    with Client(settings) as client:
        client.register(FEED)
        client.register(adult.source(epsilon=4.0).model_copy(update={"source": "adult"}))
        client.open(WARD)
        client.open(COUNTS)
        assert client.ask("ward", value=1e9, timeout=120).outcome == "above"
        results = client.ask_many([{"stream": "ward", "value": -1e9}] * 50)
        assert {one.outcome for one in results} == {"below"}
        counts = client.ask("counts", group_by=["sex"], timeout=120)
        assert [group["sex"] for group in counts.groups or ()] == ["F", "M"]
        assert counts.to_polars()["estimate"].sum() == pytest.approx(48_842, abs=1000)
        with pytest.raises(Rejected):
            client.ask("nobody", value=1.0)
        with pytest.raises(Refused, match="cannot pay"):
            client.open({**WARD, "stream": "dear", "epsilon": 100.0})
        with pytest.raises(Invalid, match="give exactly one question"):
            client.ask("ward")
        assert sorted(one.source.source for one in client.list_sources()) == ["adult", "feed"]
        assert [one.spec.stream for one in client.list_streams("feed")] == ["ward"]
        assert client.budget("feed").granted.epsilon == 1.0
        client.publish("ward", value=-1e9, id="published")
        client.flush()
        each = client.answers(from_beginning=True)
        assert next(one for one in each if one.id == "published").outcome == "below"
        each.close()
        client.halt("feed", "ward", reason="enough")
        while client.ask("ward", value=-1e9, outcomes=True).outcome != "halted":
            continue  # the worker has not heard of it
        with pytest.raises(Halted, match="enough"):
            client.ask("ward", value=-1e9)


async def test_the_client_does_everything_without_asyncio(settings: Settings, start: StartService) -> None:
    start("budget")
    start("worker")
    await asyncio.to_thread(use, settings)


async def test_many_questions_are_iterated_over_as_their_answers_come(
    client: AsyncClient, start: StartService
) -> None:
    start("budget")
    await client.register(FEED)
    await client.open(WARD)
    with pytest.raises(Timeout, match=r"no answer from stream 'ward' within 0\.5 s") as late:
        await client.ask("ward", value=1.0, id="early", timeout=0.5)
    assert [query.id for query in late.value.unanswered] == ["early"]
    start("worker")

    async def questions() -> AsyncIterator[dict[str, Any]]:
        for number in range(3000):
            yield {"id": str(number), "stream": "ward", "value": -1e9}

    seen = [result.id async for result in client.ask_many(questions(), timeout=120)]
    assert seen == [str(number) for number in range(3000)]


async def test_where_nothing_is_the_error_says_so() -> None:
    with pytest.raises(Unreachable, match="SOTTO_BOOTSTRAP"):
        await AsyncClient(bootstrap="127.0.0.1:1").connect()
    with pytest.raises(Invalid, match="partitions"):
        Client(partitions=-1)
