"""The first windows of standing streams: when they are answered, and warnings of events that they lack."""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas import EventsSource
from schemas.windows import format_moment, moment_ms
from sotto import Result
from stream.client.client_calls import AsyncCalls
from stream.client.ledger_reader import FollowedLedger
from stream.client.ledger_view import LedgerView
from stream.processing.protocol import Record
from stream.questions.first_windows import (
    describe_first_answer,
    describe_missed_events,
    warn_about_opening,
    warn_about_past_windows,
)
from stream.questions.question_forms import as_opening
from tests.builders import installation, parse_source, parse_stream
from tests.unit.feeds.live import WINDOW, flights, standing

READ = "the events that feeds have already read for earlier streams of 'flights'"
UNLESS = "unless this stream was opened before they began"
UNTIL = "2013-01-01T05:14:59Z"
FIRST_MARK = "at most 5m after a partition's first mark that is written 5s or more after the opening"
SO_FAR = {"kind": "running_count", "steps": 200}
BY_BROKER = "by the broker's timestamps, at most 5s later if a partition is silent"


@pytest.mark.parametrize(
    ("changed", "due", "start", "end"),
    [
        ({}, f"2013-01-01T06:25:00Z {BY_BROKER}", "05:15", "06:15"),
        ({"clock": "marks"}, "once each partition has a mark of 2013-01-01T06:25:00Z or later", "05:15", "06:15"),
        ({"unit": "person-period", "period": "6h"}, f"2013-01-01T07:10:00Z {BY_BROKER}", "06:00", "07:00"),
    ],
)
def test_first_answer_follows_the_first_window_by_the_clock(
    changed: dict[str, Any], due: str, start: str, end: str
) -> None:
    """The text names the time, the first window within a period, lateness, and what moves the clock."""
    spec = parse_stream(standing(begins="2013-01-01T05:01:00Z"))
    assert spec.standing is not None
    about = parse_source(flights(**changed))
    assert isinstance(about, EventsSource)
    assert describe_first_answer(spec.standing, about, 0.0) == (
        f"first answer: {due}; the first window, from 2013-01-01T{start}:00Z, ends 2013-01-01T{end}:00Z plus the "
        "lateness 10m"
    )


@pytest.mark.parametrize(
    ("begins", "clock", "mechanism", "warned"),
    [
        ("2013-01-01T05:00:00Z", "broker", None, f"windows that begin before {UNTIL} lack {READ}"),
        ("2013-01-01T05:00:00Z", "broker", SO_FAR, f"all totals of this running count, which begins before {UNTIL}, lack {READ}"),
        ("2013-01-01T05:15:00Z", "broker", None, None),
        ("2013-01-01T05:15:00Z", "broker", SO_FAR, None),
        (None, "broker", None, None),
        ("2013-01-01T05:15:00Z", "marks", None, f"windows that begin {FIRST_MARK} may lack {READ}"),
        (None, "marks", SO_FAR, f"all totals of this running count, if it begins {FIRST_MARK}, may lack {READ}"),
    ],
)  # fmt: skip
def test_later_stream_opens_with_a_warning_of_missed_events(
    begins: str | None, clock: str, mechanism: dict[str, Any] | None, warned: str | None
) -> None:
    """Feeds may have read the events of windows that begin up to ``idle`` after the opening, here at 05:14:54."""
    spec, about = parse_stream(standing("late", mechanism, begins=begins)), parse_source(flights(clock=clock))
    assert isinstance(about, EventsSource)
    now = moment_ms("2013-01-01T05:14:54Z") / 1000
    remedy = "unless this is its first stream, leave begins out"
    if clock == "marks":
        remedy = "open streams before the first mark, or let them begin later"
    assert warn_about_past_windows(spec, about, now) == (
        None if warned is None else f"standing.begins: {warned}, and their answers are charged; {remedy}"
    )
    if begins is not None and clock == "broker":
        assert warn_about_opening(spec, about, begins, now, 1.0) == warn_about_past_windows(spec, about, now)


@pytest.mark.parametrize(("seconds", "warned"), [(2.0, False), (60.0, True)])
def test_slow_opening_warns_of_its_first_windows(seconds: float, warned: bool) -> None:
    """The ledger lets windows begin 10 s, twice ``idle``, after its clock, here at 05:14:54."""
    spec, about = parse_stream(standing(begins=None)), parse_source(flights())
    assert isinstance(about, EventsSource)
    now = moment_ms("2013-01-01T05:15:54Z") / 1000
    warning = warn_about_opening(spec, about, "2013-01-01T05:15:04Z", now, seconds)
    text = (
        "standing: windows that begin before 2013-01-01T05:15:59Z lack the events that feeds have already read for earlier streams of "
        "'flights', because the opening took 60 s and idle is 5s; for complete windows open another stream, or register the topic with a "
        "longer idle"
    )
    assert warning is None  # the first window begins at 05:30
    every_second = standing(begins=None, window={"size": "1s"})
    spec = parse_stream(every_second)
    warning = warn_about_opening(spec, about, "2013-01-01T05:15:04Z", now, seconds)
    assert warning == (text if warned else None)


def view_of(opening: dict[str, Any], source: dict[str, Any], others: int) -> tuple[LedgerView, list[Record]]:
    """Return an empty view, and the ledger's records after the stream and others of its source have opened."""
    with installation(sources=[source], partitions=2) as driver:
        for number in range(others):
            driver.open(as_opening(standing(f"other-{number}")), acknowledge=True)
        driver.open(as_opening(opening), acknowledge=True)
        return LedgerView(), driver.records(driver.topics.ledger)


async def warnings_of(view: LedgerView, start: str) -> str:
    """Return the warnings of an answer of the stream ``late`` whose window begins at ``start``."""
    known = FollowedLedger(cast("Any", None))
    known._view = view
    window = {"start": start, "end": format_moment(moment_ms(start) + 3_600_000)}
    given = {"id": "x", "stream": "late", "outcome": "below", "window": window, "group": {"origin": "EWR"}}
    return "; ".join((await known.add_stream(Result.model_validate_json(json.dumps(given)))).warnings)


@pytest.mark.parametrize(
    ("recorded", "begins", "before"),
    [
        ("2013-01-01T05:14:54Z", "2013-01-01T05:00:00Z", "2013-01-01T05:14:59Z"),
        ("2013-01-01T05:14:54Z", "2013-01-01T05:15:00Z", None),
        ("2013-06-01T05:00:00Z", "2013-01-01T05:00:00Z", "2013-01-02T05:00:05Z"),
    ],
)
async def test_answers_of_windows_before_the_opening_say_what_they_lack(
    recorded: str, begins: str, before: str | None
) -> None:
    """The grant's earliest record bounds the opening, and so does the limit of a day for past windows."""
    view, records = view_of(standing(begins=begins), flights(), others=1)
    # The records of an earlier stream come first.
    view.add([one._replace(timestamp=moment_ms("2014-01-01T00:00:00Z")) for one in records])
    deleted = [one._replace(value=None) for one in records if (one.key or b"").startswith(b"grant|")]
    first = [one._replace(timestamp=moment_ms(recorded)) for one in records]
    view.add([*deleted, *first])
    view.add([one._replace(timestamp=moment_ms("2013-01-01T09:00:00Z")) for one in records])
    text = (
        f"windows that begin before {before} lack the events that feeds have already read for earlier streams of 'flights', unless this "
        "stream was opened before they began"
    )
    assert (text in await warnings_of(view, WINDOW["start"])) is (before is not None)
    assert "already read" not in await warnings_of(view, "2013-01-02T05:15:00Z")


@pytest.mark.parametrize(
    ("clock", "mechanism", "text"),
    [
        ("broker", SO_FAR, f"all totals of this running count, which begins before {UNTIL}, lack {READ}, {UNLESS} or by 2013-01-01T04:59:55Z"),
        ("marks", SO_FAR, f"all totals of this running count, if it begins {FIRST_MARK}, may lack {READ}, {UNLESS} or before the first mark"),
        ("marks", None, f"windows that begin {FIRST_MARK} may lack {READ}, {UNLESS} or before the first mark"),
    ],
)  # fmt: skip
async def test_all_answers_of_a_later_stream_say_what_they_may_lack(
    clock: str, mechanism: dict[str, Any] | None, text: str
) -> None:
    """Later totals of a running count lack the events, too; with marks, a client cannot know the first counted mark."""
    opening, declared = (
        standing("late", mechanism, begins=WINDOW["start"], window={"size": "1h"}),
        flights(clock=clock, total=5),
    )
    for others in (0, 1):
        view, records = view_of(opening, declared, others)
        view.add([one._replace(timestamp=moment_ms("2013-01-01T05:14:54Z")) for one in records])
        for start in (WINDOW["start"], "2013-01-01T09:00:00Z", "2024-01-01T00:00:00Z"):
            warned = await warnings_of(view, start)
            assert (text in warned) is (others > 0)
            assert ("already read" in warned) is (others > 0)


async def test_running_count_that_begins_after_the_opening_lacks_nothing() -> None:
    view, records = view_of(
        standing("late", SO_FAR, begins="2013-01-01T05:15:00Z", window={"size": "1h"}), flights(total=5), others=1
    )
    view.add([one._replace(timestamp=moment_ms("2013-01-01T05:14:54Z")) for one in records])
    assert "already read" not in await warnings_of(view, "2013-01-01T06:00:00Z")


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_client_warns_of_past_windows_of_a_later_stream(clock: str) -> None:
    """The first stream of a source counts all events of its topic. With marks, streams may open before the first mark."""
    with installation(sources=[flights(clock=clock)], partitions=2) as driver:
        past = format_moment(int(time.time() * 1000) - 3_600_000)
        for name, warned in (("first", False), ("second", True)):
            opening = as_opening(standing(name, begins=past))
            driver._budget.ledger.advance_clock(int(time.time() * 1000))
            receipt = driver.open(opening, acknowledge=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                asyncio.run(AsyncCalls._warn_about_opening(driver._calls, opening, receipt, 0.1))
            assert [str(one.message)[:15] for one in caught] == (
                ["standing.begins"] if warned and clock == "broker" else []
            )


@pytest.mark.parametrize(
    ("begins", "opened", "until"),
    [
        ("2013-01-01T05:00:00Z", "2013-01-01T07:00:00Z", "2013-01-01T07:00:05Z"),
        ("2013-01-01T05:00:00Z", None, "2013-01-02T05:00:05Z"),
        ("2013-01-01T05:00:00Z", "2014-01-01T05:00:00Z", "2013-01-02T05:00:05Z"),
    ],
)
def test_unknown_opening_is_at_most_a_day_after_the_first_window(
    begins: str, opened: str | None, until: str
) -> None:
    """A reader that starts after an extension or a compaction knows a later time or none."""
    spec = parse_stream(standing("late", begins=begins))
    owner: Any = SimpleNamespace(source=parse_source(flights()), streams=2)
    missed = describe_missed_events(spec, owner, None if opened is None else moment_ms(opened) / 1000)
    assert missed is not None
    assert missed.text.startswith(f"windows that begin before {until} lack")
