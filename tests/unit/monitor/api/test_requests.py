"""Changes go through the ledger: a response comes after the ledger's commit, and each request id is decided once."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from aiokafka.errors import KafkaConnectionError

from schemas import Receipt, Request
from stream.monitor.api.budget_models import Plan
from stream.monitor.api.models import Readiness
from tests.builders import source, stream
from tests.unit.monitor.installation import (
    FEED,
    HIGH,
    LOW,
    VIEWER,
    Installation,
    WebClient,
    bearer,
    get,
    post,
    spec,
)

PEOPLE = source("people", "table", neighbors="replace", epsilon=1.0, attributes={"age": 100})


async def test_api_opens_halts_and_closes_stream() -> None:
    installation = Installation()
    async with installation.web() as client:
        registered = await post(client, "/api/sources", {"request": "1", "source": FEED})
        assert registered["outcome"] == "registered"
        opened = await post(client, "/api/streams", {"request": "2", "stream": spec("a/b:c@d+e", cutoff=3)})
        assert opened["outcome"] == "opened"
        installation.ask("a/b:c@d+e", LOW, HIGH)
        detail = await get(client, "/api/streams/a%2Fb:c@d%2Be")
        assert (detail["row"]["state"], detail["row"]["answered"], detail["row"]["tops"]) == ("open", 2, 1)
        assert detail["spec"]["mechanism"]["cutoff"] == 3
        halt = {"kind": "halt", "request": "3", "source": "feed", "stream": "a/b:c@d+e", "reason": "audit"}
        assert (await post(client, "/api/halts", halt))["outcome"] == "halted"
        row = (await get(client, "/api/streams/a%2Fb:c@d%2Be"))["row"]
        assert (row["state"], row["reason"]) == ("halted", "audit")
        close = {"request": "4", "source": "feed", "stream": "a/b:c@d+e"}
        assert (await post(client, "/api/closes", close))["outcome"] == "closing"
        row = (await get(client, "/api/streams/a%2Fb:c@d%2Be"))["row"]
        assert row["state"] == "closed"
        assert row["refunded"]["epsilon"] > 0
    assert (
        installation.driver.ask_many([{"id": "late", "stream": "a/b:c@d+e", "value": 1.0}])[0].outcome == "halted"
    )


async def test_api_extends_exhausted_stream() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=2))
    installation.ask("ward", HIGH, HIGH)
    async with installation.web() as client:
        row = (await get(client, "/api/streams/ward"))["row"]
        assert (row["state"], row["cutoff"], row["added"], row["tops_left"]) == ("exhausted", 2, 0, 0)
        receipt = await post(
            client, "/api/extensions", {"request": "1", "source": "feed", "stream": "ward", "epsilon": 1.0}
        )
        assert (receipt["outcome"], receipt["answers"]) == ("opened", 2)
        assert receipt["granted"]["epsilon"] <= 1.0
        row = (await get(client, "/api/streams/ward"))["row"]
        assert (row["state"], row["ending"], row["reason"]) == ("open", None, None)
        assert (row["cutoff"], row["added"], row["tops_left"]) == (4, 2, 2)
        assert row["cost"]["epsilon"] == pytest.approx(1.0 + receipt["granted"]["epsilon"])
        assert "for its first 2 charged answers, with probability 0.9 for all 4" in row["promises"][0]["remark"]
        installation.ask("ward", HIGH)
        overview = await get(client, "/api/overview")
        assert overview["streams"]["open"] == 1
        row = (await get(client, "/api/streams/ward"))["row"]
        assert (row["tops"], row["tops_left"]) == (3, 1)


async def test_api_refreshes_table() -> None:
    installation = Installation()
    table = source("people", "table", epsilon=9.0, path="-", attributes={"sex": ["F", "M"]})
    installation.driver.register(table, {"sex": ["F", "M"]})
    for kind, fields in (("histogram", {"attributes": ["sex"]}), ("laplace", {})):
        installation.driver.open(stream(kind, "people", kind, mechanism=fields))
    installation.open()
    async with installation.web() as client:
        assert await shown_versions(client) == {"feed": None, "people": 1}
        assert await at_refresh(client) == {"histogram": "closes", "laplace": "continues"}
        receipt = await post(client, "/api/refreshes", {"request": "1", "source": "people"})
        assert (receipt["outcome"], receipt["version"]) == ("registered", 2)
        assert await post(client, "/api/refreshes", {"request": "1", "source": "people"}) == receipt
        assert await shown_versions(client) == {"feed": None, "people": 2}
        assert await at_refresh(client) == {"histogram": None, "laplace": "continues"}
        rows = {name: (await get(client, f"/api/streams/{name}"))["row"] for name in ("histogram", "laplace")}
    assert (rows["histogram"]["state"], rows["laplace"]["state"]) == ("closed", "open")
    assert "closed by the refresh to version 2" in rows["histogram"]["reason"]


async def test_refresh_changes_neither_the_opening_nor_the_answers_of_a_stream() -> None:
    installation = Installation()
    table = source("people", "table", epsilon=9.0, path="-", attributes={"sex": ["F", "M"]})
    installation.driver.register(table, {"sex": ["F", "M"]})
    installation.driver.open(stream("counts", "people", "laplace", mechanism={}))
    installation.driver.ask("counts", where="sex = 'F'")
    installation.flow()
    opened, installation.now = installation.now, installation.now + 7200
    async with installation.web() as client:
        await post(client, "/api/refreshes", {"request": "1", "source": "people"})
        assert (await get(client, "/api/streams/counts"))["row"]["opened"] == opened
        assert len((await get(client, "/api/streams/counts/answers"))["items"]) == 1
    late = Installation(driver=installation.driver, now=installation.now)
    _, *repeated = [one for one in installation.records() if one.topic == installation.driver.topics.control]
    for record in [one for one in installation.records() if one.topic == installation.driver.topics.ledger]:
        late.tables.add_record(record)
    for record in repeated:  # compaction has deleted the opening's record
        late.tables.add_record(record)
    async with late.web() as client:
        assert (await get(client, "/api/streams/counts"))["row"]["opened"] is None
        assert len((await get(client, "/api/streams/counts/answers"))["items"]) == 1


async def shown_versions(client: WebClient) -> dict[str, int | None]:
    return {row["source"]: row["version"] for row in (await get(client, "/api/sources"))["items"]}


async def at_refresh(client: WebClient) -> dict[str, str | None]:
    return {row["stream"]: row["at_refresh"] for row in (await get(client, "/api/streams"))["items"]}


async def test_api_halts_source_with_its_streams() -> None:
    installation = Installation()
    installation.open(spec("one"), spec("two"))
    async with installation.web() as client:
        await post(client, "/api/halts", {"kind": "halt_source", "request": "1", "source": "feed"})
        overview = await get(client, "/api/overview")
    assert overview["sources_halted"] == 1
    assert overview["streams"] == {"open": 0, "exhausted": 0, "halted": 2, "closed": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/sources", {"request": "again", "source": {**FEED, "source": "new"}}),
        ("/api/streams", {"request": "again", "stream": spec("new")}),
        ("/api/extensions", {"request": "again", "source": "feed", "stream": "ward", "epsilon": 1.0}),
        ("/api/halts", {"kind": "halt", "request": "again", "source": "feed", "stream": "ward"}),
        ("/api/halts", {"kind": "halt_source", "request": "again", "source": "feed"}),
        ("/api/closes", {"request": "again", "source": "feed", "stream": "ward"}),
    ],
)
async def test_repeated_request_gets_same_receipt_without_change(path: str, body: dict[str, Any]) -> None:
    installation = Installation()
    installation.open(spec("ward"))
    async with installation.web() as client:
        first = await post(client, path, body)
        before = (installation.driver.budget("feed"), installation.driver.snapshot_streams())
        assert await post(client, path, body) == first
        assert (installation.driver.budget("feed"), installation.driver.snapshot_streams()) == before


async def test_reused_request_id_is_refused_without_change() -> None:
    installation = Installation()
    installation.open(spec("one"), spec("two"))
    async with installation.web() as client:
        body = {"request": "again", "source": "feed", "stream": "one"}
        await post(client, "/api/closes", body)
        before = installation.driver.budget("feed")
        problem = await post(client, "/api/closes", {**body, "stream": "two"}, status=409)
    assert "an earlier request with other content" in problem["message"]
    assert installation.driver.budget("feed") == before


async def test_refused_request_has_asked_and_remaining_amounts() -> None:
    installation = Installation()
    installation.open(spec("first", epsilon=8.0))
    async with installation.web() as client:
        body = {"request": "1", "stream": spec("second", epsilon=3.0)}
        problem = await post(client, "/api/streams", body, status=409)
    assert problem["code"] == "refused"
    assert (problem["asked"]["epsilon"], problem["left"]["epsilon"]) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("error", "status"), [(TimeoutError("no receipt"), 504), (KafkaConnectionError("down"), 503)]
)
async def test_request_without_receipt_says_to_repeat_it(error: Exception, status: int) -> None:
    async def unheard(_: Request) -> Receipt:
        raise error

    installation = Installation()
    installation.open(spec("ward"))
    installation.monitor.send_request = unheard
    async with installation.web() as client:
        body = {"request": "1", "source": "feed", "stream": "ward"}
        problem = await post(client, "/api/closes", body, status=status)
    assert problem["code"] == "unavailable"
    assert "same id" in problem["message"]


async def test_plan_equals_opening_and_reserves_nothing() -> None:
    installation = Installation()
    installation.open(spec("first", epsilon=8.0))
    installation.driver.register(PEOPLE, table={"age": [1, 2, 3]})
    installation.flow()
    async with installation.web() as client:
        plan = Plan.model_validate(await post(client, "/api/plan", spec("what-if", epsilon=2.0)))
        assert plan.affordable
        assert (plan.cost.epsilon, plan.left.epsilon) == (2.0, 2.0)
        dear = Plan.model_validate(await post(client, "/api/plan", spec("what-if", epsilon=2.5)))
        assert not dear.affordable
        await post(client, "/api/streams", {"request": "1", "stream": spec("what-if", epsilon=2.0)})
        detail = await get(client, "/api/streams/what-if")
        assert detail["calibration"] == plan.calibration.model_dump(mode="json")
        unknown = await post(client, "/api/plan", spec("what-if", source="nobody"), status=404)
        assert unknown["code"] == "not-found"
        hopeless = spec("what-if", source="people", epsilon=1.0)
        hopeless["mechanism"]["monotone"] = True
        refused = await post(client, "/api/plan", hopeless, status=409)
        assert refused["code"] == "refused"
    assert [request.kind for request in installation.requested] == ["open"]


async def test_unknown_name_is_unavailable_until_the_monitor_has_read_the_topics() -> None:
    """After a restart, clients would otherwise believe that their stream is gone."""
    installation = Installation()
    found = []
    async with installation.web() as client:
        installation.readiness = Readiness(ready=False, behind=0, reason="it may not describe groups")
        for has_read in (False, True):
            installation.monitor.has_read_topics = Mock(return_value=has_read)
            for path in ("/api/streams/ward", "/api/streams/ward/answers.csv", "/api/sources", "/api/overview"):
                async with client.get(path, headers=bearer(VIEWER)) as response:
                    found.append(response.status)
    assert found == [503, 503, 503, 200, 404, 404, 200, 200]
