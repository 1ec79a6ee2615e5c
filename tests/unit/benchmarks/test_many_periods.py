"""Even after many periods, the work at the beginning of a period does not grow, and little is kept of past periods."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.periods import TOPICS, Year, heard, hosting, restored
from schemas import EventsSource
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from tests.unit.periods import calls

FEW, MANY = 5, 60
_INCARNATION = re.compile(rb'"incarnation":"[0-9a-f]{32}"')


@pytest.fixture(scope="module")
def years() -> tuple[Year, Year]:
    """Return an installation with few periods, and one with many."""
    found = []
    for periods in (FEW, MANY):
        year = Year(streams=2, categories=3)
        year.pass_by(periods)
        found.append(year)
    return found[0], found[1]


WORK: list[Callable[[FeedDefinitions], Any]] = [
    lambda definitions: definitions.sources(),
    lambda definitions: definitions.open_streams_in_periods("live", "busy-0"),
    lambda definitions: definitions.has_stream("live@2026-01-01T00:00:00Z", "busy-0@2026-01-01T00:00:00Z"),
]


@pytest.mark.parametrize("work", WORK)
def test_work_of_feeds_at_an_edge_does_not_grow(
    years: tuple[Year, Year], work: Callable[[FeedDefinitions], Any]
) -> None:
    few, many = (heard(year.records(TOPICS.control)) for year in years)
    assert calls(lambda: work(few)) == calls(lambda: work(many))


def test_feeds_find_their_sources_and_open_streams(years: tuple[Year, Year]) -> None:
    definitions = heard(years[1].records(TOPICS.control))
    assert list(definitions.sources()) == ["live"]
    asking = [one.spec.stream for one in definitions.open_streams_in_periods("live", "busy-1")]
    assert asking == ["busy-1@2026-01-03T10:00:00Z", "busy-1@2026-01-03T11:00:00Z"]


def test_work_of_the_budget_service_at_an_edge_does_not_grow() -> None:
    few, many = Year(streams=2, categories=3), Year(streams=2, categories=3)
    few.pass_by(FEW)
    many.pass_by(4 * MANY)
    # If each of eight requests looked at all accounts or all names, there would be hundreds of further calls.
    assert calls(lambda: many.pass_by(2)) < 1.02 * calls(lambda: few.pass_by(2))


def test_feeds_keep_no_definition_of_a_closed_period(years: tuple[Year, Year]) -> None:
    def kept(year: Year) -> int:
        definitions = heard(year.records(TOPICS.control))
        gc.collect()
        found = sum(isinstance(one, StandingDefinition) for one in gc.get_objects())
        assert definitions.has_stream("live@2026-01-01T00:00:00Z", "busy-0@2026-01-01T00:00:00Z")
        assert definitions.find_stream("live@2026-01-01T00:00:00Z", "busy-0@2026-01-01T00:00:00Z") is None
        return found

    assert kept(years[0]) == kept(years[1])


def test_late_opening_does_not_begin_a_closed_period_again(years: tuple[Year, Year]) -> None:
    year = Year(streams=1, categories=3)
    year.pass_by(1)
    [*_, opened] = year.records(TOPICS.control)
    assert opened.key == b"busy-0@2026-01-01T00:00:00Z"
    definitions = heard(years[1].records(TOPICS.control))
    [closed] = [one for one in years[1].records(TOPICS.control) if one.key == opened.key]
    first, second = (_INCARNATION.findall(one.value or b"")[0] for one in (opened, closed))
    before = definitions.version
    definitions.apply_control([opened._replace(value=(opened.value or b"").replace(first, second))])
    assert definitions.version == before
    assert definitions.find_stream("live@2026-01-01T00:00:00Z", "busy-0@2026-01-01T00:00:00Z") is None
    # Another opening with the same name is a new event.
    definitions.apply_control([opened])
    assert definitions.find_stream("live@2026-01-01T00:00:00Z", "busy-0@2026-01-01T00:00:00Z") is not None


def test_restored_periods_share_their_attributes(years: tuple[Year, Year]) -> None:
    ledger = restored(years[1].records(TOPICS.ledger)).ledger
    hosted = hosting(years[1].records(TOPICS.control)).streams.terms
    for sources in ([one.source for one in ledger.periods["live"]], [one.source for one in hosted]):
        found = [one for one in sources if isinstance(one, EventsSource) and one.period_of is not None]
        assert len(found) >= MANY
        assert len({id(one.attributes) for one in found}) == 1
