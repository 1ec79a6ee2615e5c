"""A monitor that has read only the end of the trail shows nothing wrong, and later all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream.budget.receipts import entry_digest
from stream.monitor.api.budget_models import BurnDown, Forecast, TrailQuery
from stream.monitor.api.budget_views import build_burn_down, build_population_detail, list_trail
from stream.monitor.budget_history import TrailState
from stream.monitor.monitor_tables import MonitorTables
from tests.unit.monitor.installation import FEED, HIGH, LOW, Installation, get, spec
from tests.unit.monitor.test_trail import metric
from tests.unit.monitor.trail_history import DAYS

LAB = {**FEED, "source": "lab", "accountant": "zcdp", "delta": 1e-6}
QUIET = {**FEED, "source": "quiet"}
SOURCES = ("feed", "lab", "quiet")


@pytest.fixture(scope="module")
def installation() -> Installation:
    """Return an installation whose streams were opened, extended, exhausted, halted and closed in 60 days."""
    made = Installation()
    made.open()
    driver = made.driver
    driver.register_population({"population": "patients", "epsilon": 50.0})
    for definition in (LAB, QUIET):
        driver.register(definition)
    driver.open(spec("idle", source="quiet"))
    for source in ("feed", "quiet"):
        driver.join(source, "patients")
    for number in range(6):
        made.now += 10 * DAYS
        for source in ("feed", "lab"):
            driver.open(spec(f"{source}-{number}", source=source, epsilon=0.5))
            made.ask(f"{source}-{number}", LOW, HIGH, *([HIGH] if number % 2 else []))
        if number == 1:
            driver.extend("feed", "feed-1", epsilon=0.25)
        if number == 2:
            driver.halt("feed", "feed-2", "late")
        if number > 3:
            for source in ("feed", "lab"):
                driver.close(source, f"{source}-{number - 1}")
    made.now += DAYS
    made.flow()
    return made


def trail_values(installation: Installation) -> list[bytes]:
    return [record.value or b"" for record in installation.driver.records(installation.driver.topics.trail)]


@pytest.fixture
def tables(installation: Installation) -> MonitorTables:
    """Return tables that have read all topics except the trail."""
    made = MonitorTables(installation.driver.topics)
    for record in installation.records():
        if record.topic != installation.driver.topics.trail:
            made.add_record(record)
    return made


def split_at(tables: MonitorTables, start: int, values: list[bytes]) -> TrailState:
    """Read the trail from an entry into the tables; return a state of the entries before it."""
    tables.trail, earlier = TrailState(is_whole=False), TrailState()
    for value in values[start:]:
        tables.trail.add_entry(value)
    for value in values[:start]:
        earlier.add_entry(value)
    return earlier


def budget(tables: MonitorTables, installation: Installation, source: str) -> BurnDown:
    return build_burn_down(tables, tables.sources[source], installation.now)


def comparable_fields(forecast: Forecast) -> tuple[Any, ...]:
    taken = forecast.taken
    times = forecast.since, forecast.at or 0.0
    return (
        forecast.outcome,
        forecast.part,
        *(pytest.approx(one) for one in (*times, taken.epsilon, taken.delta, taken.rho or 0.0)),
    )


def test_trail_end_forecasts_as_the_whole_trail_does(installation: Installation, tables: MonitorTables) -> None:
    """Each entry has the totals after it and what it changed, so the totals before the first one are known."""
    values = trail_values(installation)
    compared = 0
    for start in range(1, len(values)):
        split_at(tables, start, values)
        assert tables.trail.unread == start
        begun = json.loads(values[start])["time"] / 1000
        wholes, ends = (all_forecasts(one, installation) for one in (installation.tables, tables))
        for wanted, found in zip(wholes, ends, strict=True):
            if begun <= installation.now - found.window_seconds:
                assert comparable_fields(found) == comparable_fields(wanted), start
                compared += 1
        assert build_population_detail(tables, "patients", installation.now).points == []
    assert compared > 4 * len(values)


def all_forecasts(tables: MonitorTables, installation: Installation) -> list[Forecast]:
    found = build_population_detail(tables, "patients", installation.now).forecasts
    return [*found, *(one for source in SOURCES for one in budget(tables, installation, source).forecasts)]


def test_trail_end_joined_with_the_rest_is_the_whole_trail(
    installation: Installation, tables: MonitorTables
) -> None:
    """List, histories, forecasts and the chain are those of a trail that was read from its beginning."""
    values = trail_values(installation)
    wanted = list_trail(installation.tables.trail, TrailQuery(limit=500))
    for start in (1, 7, len(values) // 2, len(values) - 1, len(values)):
        earlier = split_at(tables, start, values)
        tables.join_trail(earlier)
        assert list_trail(tables.trail, TrailQuery(limit=500)) == wanted
        for source in SOURCES:
            whole, joined = (budget(one, installation, source) for one in (installation.tables, tables))
            assert joined.points == whole.points
            assert [one.outcome for one in joined.forecasts] == [one.outcome for one in whole.forecasts]
        tables.trail.add_entry(next_entry(values))
        assert tables.trail.broken is None


def next_entry(values: list[bytes]) -> bytes:
    """Return an entry that follows the last one."""
    fields: dict[str, Any] = json.loads(values[-1])
    return json.dumps({**fields, "number": len(values), "previous": entry_digest(values[-1])}).encode()


@pytest.mark.parametrize("changed", [3, 9, 10, 14])
def test_trail_shows_a_break_once_its_entries_are_read(
    installation: Installation, tables: MonitorTables, changed: int
) -> None:
    """The entries before the end are checked when they are read, and so is the link from them to the end."""
    values, start = trail_values(installation), 10
    values[changed] = values[changed].replace(b'"time":', b'"more":1,"time":')
    earlier = split_at(tables, start, values)
    assert (tables.trail.broken is not None) == (changed >= start)
    tables.join_trail(earlier)
    assert tables.trail.broken == f"entry {changed + 1} does not contain the digest of the entry before it"


async def test_api_marks_figures_with_unread_entries(installation: Installation, tables: MonitorTables) -> None:
    """Figures that may lack earlier entries are marked so until these entries are read."""
    again = Installation(driver=installation.driver, now=installation.now)
    earlier = split_at(tables, 12, trail_values(installation))
    again.tables = again.monitor.tables = tables
    async with again.web() as client:
        for path in ("/api/trail", "/api/budgets/feed", "/api/populations/patients"):
            assert (await get(client, path))["unread"] == 12
        assert metric(again, "sotto_monitor_trail_unread_entries") == 12.0
        tables.join_trail(earlier)
        assert (await get(client, "/api/budgets/feed"))["unread"] == 0


def test_trail_forgets_the_history_of_a_retired_account(installation: Installation, tables: MonitorTables) -> None:
    """Accounts of periods come and go, so only accounts in the ledger keep a history."""
    earlier = split_at(tables, 10, trail_values(installation))
    del tables.sources["lab"]
    tables.join_trail(earlier)
    assert set(tables.trail._histories) == {"feed", "quiet"}
    tables.trail.forget_source("quiet")
    assert set(tables.trail._histories) == {"feed"}
