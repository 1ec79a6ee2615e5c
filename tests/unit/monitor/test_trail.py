"""The audit trail in the monitor: its list, its completeness, budgets over time, and their forecasts."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas import trail_codec
from schemas.ledger import TrailRestored
from stream.monitor.api.budget_models import Forecast, TrailQuery
from stream.monitor.api.budget_views import list_trail, trail_row
from stream.monitor.api.monitor_state import metrics_text
from stream.monitor.budget_history import DAY_SECONDS, PACE_WINDOWS, to_held_entry
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.record_shapes import TrailEntryShape, decode_record
from stream.processing.protocol import Record
from tests.builders import stream
from tests.unit.monitor.installation import FEED, VIEWER, Installation, bearer, get, spec
from tests.unit.monitor.survey import PEOPLE, ROWS
from tests.unit.monitor.trail_history import DAYS, installation_with_history

DIGEST = "0" * 64


def restart_monitor(installation: Installation) -> Installation:
    """Return the same services with a newly started monitor; compaction has left only the last records of the ledger."""
    again = Installation(driver=installation.driver, now=installation.now)
    again.tables = MonitorTables(installation.driver.topics)
    latest = {
        (record.topic, record.key if record.topic == installation.driver.topics.ledger else record.offset): record
        for topic in installation.tables.inputs
        for record in installation.driver.records(topic)
    }
    for record in latest.values():
        again.tables.add_record(record._replace(timestamp=int(installation.now * 1000)))
    again.monitor.tables = again.tables
    return again


async def test_budget_history_is_complete_after_restart() -> None:
    installation = installation_with_history()
    async with installation.web() as client:
        before = await get(client, "/api/budgets/feed")
    async with restart_monitor(installation).web() as client:
        after = await get(client, "/api/budgets/feed")
    assert after["points"] == before["points"]
    assert after["forecasts"] == before["forecasts"]
    lefts = [point["left"]["epsilon"] for point in after["points"]]
    assert lefts[:5] == [10.0, 9.0, 8.0, 7.0, 6.0]
    assert lefts[-1] == 7.0
    times = [point["time"] for point in after["points"]]
    assert times[1] - times[0] == DAYS
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("reason", "loss"), [(None, "a backup was restored"), ("disk of broker 2", "a rollback was accepted")]
)
def test_trail_row_of_a_restore_says_what_is_lost(reason: str | None, loss: str) -> None:
    entry = TrailRestored(number=1, previous=DIGEST, time=0, since="nothing", lost=2, backup=DIGEST, reason=reason)
    raw = trail_codec.encode(entry)
    row = trail_row(to_held_entry(decode_record(TrailEntryShape, raw), raw))
    assert row.loss == (
        f"{loss}: later entries are lost; nothing was granted later; 2 streams that were not closed have ended"
    )
    assert row.reason == reason


async def forecasts_of(installation: Installation) -> dict[int, Forecast]:
    async with installation.web() as client:
        answer = await get(client, "/api/budgets/feed")
    found = [Forecast.model_validate(one) for one in answer["forecasts"]]
    return {one.window_seconds // DAY_SECONDS: one for one in found}


async def test_forecast_uses_pace_of_window() -> None:
    installation = Installation()
    installation.open()
    for number in range(4):
        installation.now += DAYS
        installation.driver.open(spec(f"s{number}"))
    installation.flow()
    found = await forecasts_of(installation)
    # ε 1 is spent per day, and ε 6 is left.
    for days, since in ((1, DAYS), (7, 4 * DAYS), (30, 4 * DAYS)):
        one = found[days]
        assert (one.outcome, one.part) == ("runs-out", "epsilon")
        assert one.since == installation.now - since
        assert one.taken.epsilon == pytest.approx(since / DAYS)
        assert one.at == pytest.approx(installation.now + 6 * DAYS)
    assert seconds(installation) == pytest.approx(6 * DAYS)


async def test_forecast_without_spending_is_never() -> None:
    installation = installation_with_history()
    installation.now += 3 * DAYS
    found = await forecasts_of(installation)
    assert found[1].outcome == "never"
    assert found[1].at is None
    assert found[1].taken.epsilon == 0.0
    assert found[7].outcome == "runs-out"
    installation.now += 8 * DAYS
    assert (await forecasts_of(installation))[7].outcome == "never"
    assert seconds(installation) == math.inf


async def test_forecast_subtracts_refunds() -> None:
    installation = Installation()
    installation.open(spec("a", epsilon=4.0))
    installation.now += 10 * DAYS
    installation.driver.close("feed", "a")
    installation.driver.open(spec("b"))
    installation.flow()
    found = await forecasts_of(installation)
    assert found[7].taken.epsilon == pytest.approx(-3.0)
    assert found[7].outcome == "never"
    assert found[30].outcome == "runs-out"


async def test_forecast_needs_an_hour_and_a_remaining_budget() -> None:
    installation = Installation()
    installation.open(spec("a"))
    installation.now += 600.0
    assert {one.outcome for one in (await forecasts_of(installation)).values()} == {"too-early"}
    installation.driver.open(spec("b", epsilon=9.0))
    installation.flow()
    assert {one.outcome for one in (await forecasts_of(installation)).values()} == {"gone"}
    assert seconds(installation) == 0.0


async def test_forecast_under_zcdp_uses_longer_of_rho_and_epsilon() -> None:
    installation = Installation()
    installation.driver.register({**FEED, "accountant": "zcdp", "delta": 1e-6})
    installation.now += DAYS
    installation.driver.open(spec("ward", epsilon=0.1))
    installation.flow()
    one = (await forecasts_of(installation))[7]
    record = installation.tables.sources["feed"].record
    assert one.taken.rho is not None
    assert record.left.rho is not None
    by_rho = record.left.rho / one.taken.rho * DAYS
    by_epsilon = record.left.epsilon / one.taken.epsilon * DAYS
    assert one.at == pytest.approx(installation.now + max(by_rho, by_epsilon))
    assert one.part == ("rho" if by_rho > by_epsilon else "epsilon")


def test_trail_lists_requests_and_results_latest_first() -> None:
    page = list_trail(installation_with_history().tables.trail, TrailQuery())
    listed = [(row.action, row.stream, row.outcome) for row in page.items]
    assert listed[-1] == ("beginning", None, None)
    assert ("register", None, "registered") in listed
    assert ("open", "ward-3", "opened") in listed
    assert ("close", "ward-1", "closing") in listed
    assert ("closed", "ward-1", None) in listed
    assert ("exhausted", "ward-0", None) in listed
    assert [row.number for row in page.items] == sorted((row.number for row in page.items), reverse=True)
    opened = next(row for row in page.items if row.stream == "ward-3")
    assert opened.granted is not None
    assert (opened.granted.epsilon, opened.mechanism) == (1.0, "above_threshold")
    assert page.broken is None
    assert page.entries >= len(page.items)


async def test_trail_lists_and_exports_analysts_of_allotments() -> None:
    installation = installation_with_history()
    installation.driver.allot("study", 0.5, 1e-9, source="feed", analysts=["ada", "bob"])
    installation.flow()
    async with installation.web() as client:
        page = await get(client, "/api/trail", action="allot")
        async with client.get("/api/trail.csv?action=allot", headers=bearer(VIEWER)) as response:
            [cells] = csv.DictReader(io.StringIO(await response.text()))
    [row] = page["items"]
    assert (row["allotment"], row["analysts"], row["epsilon"], row["delta"]) == (
        "study",
        ["ada", "bob"],
        0.5,
        1e-9,
    )
    assert (cells["allotment"], cells["analysts"], cells["epsilon"], cells["delta"]) == (
        "study",
        "ada bob",
        "0.5",
        "1e-09",
    )


@pytest.mark.parametrize(
    ("query", "streams"),
    [
        ({"stream": "ward-2"}, {"ward-2"}),
        ({"action": "closed"}, {"ward-1"}),
        ({"outcome": "refused"}, set()),
        ({"search": "WARD-3"}, {"ward-3"}),
        ({"source": "elsewhere"}, set()),
        ({"analyst": "nobody"}, set()),
        ({"since": 1_000_000.0 + 3 * DAYS, "until": 1_000_000.0 + 4 * DAYS}, {"ward-2"}),
    ],
)
async def test_trail_is_filtered(query: dict[str, Any], streams: set[str]) -> None:
    async with installation_with_history().web() as client:
        page = await get(client, "/api/trail", **{name: str(value) for name, value in query.items()})
        assert {row["stream"] for row in page["items"]} == streams
        pages = [await get(client, "/api/trail", limit="2", offset=str(start)) for start in (0, 2)]
    assert [len(one["items"]) for one in pages] == [2, 2]
    assert pages[0]["items"][-1]["number"] > pages[1]["items"][0]["number"]


@pytest.mark.parametrize("how", ["changed", "missing", "unreadable", "swapped", "repeated"])
def test_trail_reports_tampered_chain_permanently(how: str) -> None:
    installation = installation_with_history()
    records = installation.driver.records(installation.driver.topics.trail)
    at = next(place for place, record in enumerate(records) if b"ward-2" in (record.value or b""))
    forged = list(records)
    if how == "changed":
        forged[at] = forged[at]._replace(value=(forged[at].value or b"").replace(b"ward-2", b"ward-9"))
    elif how == "missing":
        del forged[at]
    elif how == "unreadable":
        forged[at] = forged[at]._replace(value=b"{")
    elif how == "repeated":
        forged.insert(at + 1, forged[0])
    else:
        forged[at], forged[at + 1] = forged[at + 1], forged[at]
    tables = MonitorTables(installation.driver.topics)
    for offset, record in enumerate(forged):
        tables.add_record(record._replace(offset=offset))
    assert tables.trail.broken is not None
    wrong = {"unreadable": at, "repeated": 0}.get(how, at + 1)
    assert tables.trail.broken.startswith(f"entry {wrong} ")
    assert tables.trail.entries == len(forged)
    assert list_trail(tables.trail, TrailQuery()).broken == tables.trail.broken
    installation.tables.trail = tables.trail
    assert metric(installation, "sotto_monitor_trail_broken") == 1.0


def test_trail_reads_entry_of_later_version() -> None:
    installation = installation_with_history()
    value = json.loads(installation.driver.records(installation.driver.topics.trail)[-1].value or b"")
    tables = MonitorTables(installation.driver.topics)
    later = {**value, "number": 0, "kind": "later", "more": [1]}
    tables.add_record(Record(installation.driver.topics.trail, 0, 0, 0, b"", json.dumps(later).encode()))
    assert [row.kind for row in list_trail(tables.trail, TrailQuery()).items] == ["later"]


async def test_spending_by_analyst_adds_up_to_source() -> None:
    installation = installation_with_history()
    async with installation.web() as client:
        answer = await get(client, "/api/spending", source="feed", limit="2")
        assert (await get(client, "/api/spending", source="elsewhere"))["streams"] == 0
    record = installation.tables.sources["feed"].record
    (nobody,) = answer["analysts"]
    (part,) = nobody["sources"]
    assert (nobody["analyst"], nobody["streams"], part["source"]) == (None, 4, "feed")
    for name in ("granted", "spent", "refunded"):
        assert part["share"][name]["epsilon"] == pytest.approx(getattr(record, name).epsilon)
    assert [one["stream"] for one in answer["costliest"]] == ["ward-3", "ward-2"]


async def test_spending_lists_costliest_streams_by_what_refunds_left() -> None:
    installation = installation_with_history()
    installation.driver.close("feed", "ward-3")
    installation.flow()
    assert installation.driver.grant("feed", "ward-3").refunded.epsilon > 0
    async with installation.web() as client:
        answer = await get(client, "/api/spending", source="feed", limit="4")
    assert [one["stream"] for one in answer["costliest"]] == ["ward-2", "ward-0", "ward-3", "ward-1"]


async def test_trail_and_spending_need_token_and_name_wrong_parameter() -> None:
    async with installation_with_history().web() as client:
        for path in ("/api/trail?limit=0", "/api/trail?since=soon", "/api/spending?limit=501"):
            async with client.get(path, headers=bearer(VIEWER)) as response:
                assert response.status == 400


def metric(installation: Installation, name: str) -> float:
    families = text_string_to_metric_families(metrics_text(installation.monitor).decode())
    return float(next(sample.value for family in families for sample in family.samples if sample.name == name))


def seconds(installation: Installation) -> float:
    return metric(installation, "sotto_monitor_source_runs_out_seconds")


def test_pace_windows_match_documentation() -> None:
    assert PACE_WINDOWS == (DAY_SECONDS, 7 * DAY_SECONDS, 30 * DAY_SECONDS)


async def test_forecast_of_granted_delta_is_gone_at_any_time() -> None:
    installation = Installation()
    budget = {"source": "feed", "epsilon": 50.0, "delta": 1e-6}
    installation.driver.register({**PEOPLE, **budget}, pl.DataFrame(ROWS))
    installation.now += DAYS
    for name in ("a", "b"):
        installation.driver.open(stream(name, kind="laplace", mechanism={"answers": 100}, delta=5e-7))
    installation.flow()
    for _ in range(2):
        outcomes = {(one.outcome, one.part) for one in (await forecasts_of(installation)).values()}
        assert outcomes == {("gone", "delta")}
        assert seconds(installation) == 0.0
        installation.now += 40 * DAYS
