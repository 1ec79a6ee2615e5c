"""Watching reports alerts and ends of the watched streams, each once, and of no other stream."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import Mock

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

from schemas import EventsSource
from sotto import Driver, Notice, Result, Unknown
from stream.cli.manage import answer_commands, watch_warnings
from stream.cli.manage.answer_commands import format_notice, format_refusal, notice_document
from stream.cli.manage.watch_warnings import RefusalWarnings, describe_idle_patterns, watched_sources
from stream.client import answer_history, kafka_connection
from stream.client.ledger_reader import FollowedLedger
from stream.client.ledger_view import LedgerView
from stream.kafka.topic_creation import LiveTopicReport
from stream.monitor.api.service_models import AlertQuery
from stream.monitor.monitor_alerts import Alerts
from stream.monitor.monitor_tables import MonitorTables
from stream.privacy.composition.costs import last_promised_answer
from stream.processing.dead_letters import Rejection, dead_letter
from stream.processing.protocol import Record
from stream.questions.alert_states import AlertTerms, alert_key_of, window_end, window_text
from stream.questions.question_forms import as_opening
from stream.questions.stream_watch import (
    StreamOpening,
    Watch,
    add_if_changed,
    describe_overdue,
)
from stream.settings import Settings
from tests.builders import KEY, installation, parse_source, parse_stream, source, stream
from tests.commands import Connected, set_live_topic_report
from tests.unit.feeds.live import flights, standing
from tests.unit.installation import HIGH, LOW

WINDOW = {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"}
MARKED = {"person": "tailnum", "time": "scheduled", "clock": "marks"}
OPENING = StreamOpening("late", "flights", "0" * 32, "open", None, 1_600_000_000.0)


def answer(outcome: str, **fields: Any) -> Result:
    given = {"id": "x", "stream": "late", "outcome": outcome, "window": WINDOW, "group": {"origin": "EWR"}}
    return Result.model_validate_json(json.dumps({**given, **fields}))


def record(outcome: str, **fields: Any) -> Record:
    value = answer(outcome, **fields).model_dump_json(exclude_none=True).encode()
    return Record("answers", 0, 0, 1_700_000_000_000, b"late", value)


def driver() -> Driver:
    placed = (("late-1", "feed"), ("late-2", "feed"), ("else", "other"))
    return installation(*(stream(*names, mechanism={"cutoff": 2}) for names in placed), partitions=4)


def outcomes_of(notices: Any) -> list[tuple[str, str]]:
    return [(one.stream, one.ended.partition(":")[0] if one.ended else one.answer.outcome) for one in notices]


def test_watch_reports_alerts_and_optionally_quiet_answers() -> None:
    with driver() as client:
        client.ask_many([{"stream": "late-1", "value": value} for value in (LOW, HIGH, LOW)])
        assert outcomes_of(client.watch(from_beginning=True)) == [("late-1", "above")]
        assert outcomes_of(client.watch(from_beginning=True, quiet=True)) == [
            ("late-1", "below"),
            ("late-1", "above"),
            ("late-1", "below"),
        ]
        assert outcomes_of(client.watch()) == []


def test_watch_selects_streams_by_name_pattern_and_source() -> None:
    with driver() as client:
        client.ask_many([{"stream": stream, "value": HIGH} for stream in ("late-1", "late-2", "else")])
        assert outcomes_of(client.watch("late-2", from_beginning=True)) == [("late-2", "above")]
        assert sorted(outcomes_of(client.watch("late-*", from_beginning=True))) == [
            ("late-1", "above"),
            ("late-2", "above"),
        ]
        assert outcomes_of(client.watch(source="other", from_beginning=True)) == [("else", "above")]
        assert [one.source for one in client.watch(source="other", from_beginning=True)] == ["other"]
        with pytest.raises(Unknown, match="stream 'nobody' does not exist"):
            list(client.watch("nobody"))
        with pytest.raises(Unknown, match="source 'nowhere' is not registered"):
            list(client.watch(source="nowhere"))


def test_watch_names_patterns_that_no_open_stream_matches() -> None:
    with driver() as client:
        grants = client.list_streams()
        assert list(describe_idle_patterns(("late-*", "else", "nobody"), None, grants)) == []
        assert list(describe_idle_patterns(("zzz*", "lat3-1*"), None, grants)) == [
            "no open stream matches 'zzz*' yet; waiting for one",
            "no open stream matches 'lat3-1*' yet; waiting for one; did you mean 'late-1'?",
        ]
        client.close("other", "else")
        [closed] = describe_idle_patterns(("els*",), "other", client.list_streams("other"))
        assert closed == "no stream of source other is open yet; waiting for one"


def test_watch_names_patterns_whose_streams_raise_no_alerts() -> None:
    placed = installation(
        stream("sums", "feed", "laplace", mechanism={"answers": 2}), stream("late", "feed"), partitions=4
    )
    with placed as client:
        grants = client.list_streams()
        assert list(describe_idle_patterns(("*", "late"), None, grants)) == []
        assert list(describe_idle_patterns((), None, grants)) == []
        [quiet] = describe_idle_patterns(("sums",), "feed", grants)
        assert quiet.startswith(
            "the open streams of source feed that match 'sums' raise no alerts, because their mechanism is laplace;"
        )
        assert list(describe_idle_patterns(("sums",), None, grants, show_all=True)) == []


def test_watch_reports_end_of_stream_once() -> None:
    with driver() as client:
        client.ask_many([{"stream": "late-1", "value": HIGH} for _ in range(4)])
        client.close("other", "else", "no longer needed")
        found = outcomes_of(client.watch(from_beginning=True))
        assert found.count(("late-1", "above")) == 2
        assert found.count(("late-1", "exhausted")) + found.count(("late-1", "halted")) == 1
        assert found.count(("else", "closed")) == 1
        [closed] = client.watch("else")
        assert closed.ended == "closed: no longer needed"


def test_watch_reports_halted_stream_again_after_new_answer() -> None:
    watch = Watch((), None, all_answers=False)
    halted = record("halted", reason="the table is not the one that was registered")
    ends = [len(watch.notices_of(halted, OPENING)) for _ in range(3)]
    assert ends == [1, 0, 0]
    assert watch.notices_of(record("below", index=1), OPENING) == []
    [again] = watch.notices_of(halted, OPENING)
    assert again.ended == "halted: the table is not the one that was registered"


def test_opening_end_does_not_repeat_state_of_reason() -> None:
    told_why = OPENING._replace(state="exhausted", reason="exhausted: all 2 'above' answers are out")
    assert told_why.end == "exhausted: all 2 'above' answers are out"
    assert OPENING._replace(state="closed").end == "closed"
    assert OPENING._replace(state="halted", reason="audit").end == "halted: audit"


def test_watch_reports_end_again_after_extension() -> None:
    watch = Watch((), None, all_answers=False)
    dry = OPENING._replace(state="exhausted", reason="its grant is used up")
    assert [len(watch.end_notices([one])) for one in (dry, dry, OPENING, dry)] == [1, 0, 0, 1]


def test_watch_from_beginning_reports_each_end_of_an_extended_stream() -> None:
    """The ledger has only the last end; each refusal has the reason of its own, and the next answer follows an extension."""
    watch = Watch((), None, all_answers=False)
    dry = OPENING._replace(state="exhausted", reason="exhausted: all 5 answers are out", time=1.8e9)
    refusals = [record("halted", reason=f"exhausted: all {count} answers are out") for count in (3, 5)]
    found = [
        [one.ended or "alert" for one in watch.notices_of(read, dry)]
        for read in (refusals[0], refusals[0], record("above", index=3), refusals[1], refusals[1])
    ]
    assert found == [["exhausted: all 3 answers are out"], [], ["alert"], ["exhausted: all 5 answers are out"], []]


def test_end_notice_has_time_of_first_record_of_end() -> None:
    dry = OPENING._replace(state="exhausted", reason="its grant is used up")
    halted = record("halted", reason="exhausted: its grant is used up")
    by_ledger = Watch((), None, all_answers=False).end_notices([dry])
    by_answer = Watch((), None, all_answers=False).notices_of(halted, dry)
    by_answer_alone = Watch((), None, all_answers=False).notices_of(halted, OPENING)
    assert [one.time for one in (*by_ledger, *by_answer, *by_answer_alone)] == [1.6e9, 1.6e9, 1.7e9]
    known = {dry.stream: dry}
    assert not add_if_changed(known, dry._replace(time=1.65e9))  # the ledger writes records for other reasons, too
    assert known == {dry.stream: dry}
    assert add_if_changed(known, OPENING)


def test_watch_from_beginning_reports_ends_after_answers() -> None:
    with driver() as client:
        client.ask_many([{"stream": stream, "value": HIGH} for stream in ("late-1", "else", "late-1")])
        client.close("other", "else", "no longer needed")
        alerts, ends = ["above"] * 3, [("late-1", "exhausted"), ("else", "closed")]
        for quiet in (False, True):
            runs = [list(client.watch(from_beginning=True, quiet=quiet)) for _ in range(2)]
            assert runs[0] == runs[1]
            assert [outcome for _, outcome in outcomes_of(runs[0])[:3]] == alerts
            assert outcomes_of(runs[0])[3:] == ends
            assert runs[0][2].time <= runs[0][3].time <= runs[0][4].time
        named = outcomes_of(client.watch("else", from_beginning=True))
        assert named == [("else", "above"), ("else", "closed")]


def test_format_notice_has_all_parts_within_terminal_width() -> None:
    long = "the-departures-that-are-late-by-an-hour"
    notice = Notice(0.0, long, "flights", answer("above", stream=long, estimate=31.23, alpha=4.1, tops_left=46))
    notice = replace(notice, terms=AlertTerms(900.0, "delay >= 60"))
    for width in (80, 60):
        text = [line.plain for line in format_notice(notice, width)]
        assert all(len(line) <= width for line in text)
        whole = re.sub(r"\s+", " ", " ".join(text))
        assert (
            f"▲ ALERT {long} 2013-01-01 05:00–06:00 UTC origin=EWR 31.23 ± 4.1 threshold 900, delay >= 60 46 left"
            in whole
        )
    asked = replace(notice, terms=AlertTerms(900.0, counted=None))
    assert "threshold 900 or the question's own" in format_notice(asked, 300)[0].plain
    ended = format_notice(Notice(0.0, "late", ended="exhausted: all 2 'above' answers of the cutoff are out"), 60)
    assert [line.plain.strip() for line in ended[1:]] == [
        "exhausted: all 2 'above' answers of the",
        "cutoff are out",
        "extend it with 'sotto stream extend late",
        "--epsilon E', or open another stream if",
        "it cannot be extended",
    ]
    # Text from a topic cannot control the terminal.
    [line] = format_notice(Notice(0.0, "late", ended="halted: \x1b[2J"), 80)
    assert "\x1b" not in line.plain


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (
            {"estimates": (31.0, -2.0), "intervals": ((29, 33), (0, 1)), "alpha": 7},
            "[31 (95 %: 29 to 33), 0 (95 %: 0 to 1)]  not informative: 1 of 2 numbers; the error may exceed the number itself",
        ),
        ({"estimates": (31.0,), "keys": ("hat",), "alpha": 7}, "['hat' 31] ± 7"),
        ({"estimate": 12.0, "interval": (10, 14), "alpha": 40}, "12 (95 %: 10 to 14)"),
        ({"keys": ("coat", "hat")}, "['coat', 'hat']"),
        (
            {"choice": "mild", "choice_intervals": (("mild", "severe"),), "alpha": 40},
            "'mild' (95 %: mild to severe)",
        ),
    ],
)
def test_notice_has_all_numbers_of_an_answer(fields: dict[str, Any], shown: str) -> None:
    """Answers of histograms, unknown groups and quantiles have their numbers, and ± only in the numbers' unit."""
    [line] = format_notice(Notice(0.0, "late", "flights", answer("answer", group=None, **fields)), 200)
    assert line.plain.endswith(f"01-01 05:00–06:00 UTC  {shown}")


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ({"count": "events"}, r"\['EWR' (\d+) \(95 %: \d+ to \d+\), 'JFK' \d+ \(95 %: \d+ to \d+\)\]"),
        ({"quantile": "delay"}, r"\['EWR' (\d+) \(95 %: \d+ to \d+\), 'JFK' \d+ \(95 %: \d+ to \d+\)\]"),
        ({"quantile": "day"}, r"\['EWR' '(.+)' \(95 %: .+ to .+\), 'JFK' '.+' \(95 %: .+ to .+\)\]"),
    ],
)
def test_notice_of_a_histogram_names_groups_and_intervals(number: dict[str, str], shown: str) -> None:
    """Each number or text of the window has its group and its 95 % interval."""
    attributes = {
        "origin": ["EWR", "JFK"],
        "delay": {"kind": "integers", "minimum": 0, "maximum": 9},
        "day": {"kind": "date", "minimum": "2013-03-01", "maximum": "2013-03-09"},
    }
    with Driver(KEY) as client:
        client.register(source("flights", "events", **MARKED, contribution=1, attributes=attributes))
        standing = {"by": ["origin"], "window": {"size": "1h"}, "begins": "2013-03-08T05:00:00Z", **number}
        histogram = {"kind": "histogram", "attributes": ["origin"], "answers": 1}
        client.open(stream("busy", "flights", mechanism=histogram, standing=standing, expected_queries=1))
        event = {"scheduled": "2013-03-08T05:15:00Z", "delay": 5, "day": "2013-03-05"}
        events = [{"tailnum": f"N{at}", "origin": ("EWR", "JFK")[at % 2], **event} for at in range(2_000)]
        client.publish("flights", events)
        client.advance("flights", "2013-03-08T06:00:00Z")
        [notice, _] = client.watch(from_beginning=True, quiet=True)
        [line] = format_notice(notice, 300)
        assert re.search(shown, line.plain), line.plain


def test_window_of_a_histogram_names_its_groups() -> None:
    """In the JSON of ``sotto watch``, and if a client's result is printed."""
    mechanism = {"kind": "histogram", "attributes": ["origin"], "answers": 9}
    spec, about = parse_stream(standing("all", mechanism, by=["origin"])), parse_source(flights())
    value = answer("answer", group=None, estimates=[1.0, 2.0, 3.0]).model_dump_json(exclude_none=True)
    result = Result.read(value.encode()).with_stream(spec, about)
    document = notice_document(Notice(0.0, "all", "flights", result))
    assert document.get("warnings", []) == list(Notice(0.0, "all", "flights", result).warnings)
    assert document["groups"] == [{"origin": "EWR"}, {"origin": "JFK"}, {"origin": "LGA"}]
    assert "['EWR' 1, 'JFK' 2, 'LGA' 3]" in str(result)


def test_notice_document_has_fields_of_answer() -> None:
    told_as = notice_document(Notice(1_700_000_000.5, "late", "flights", answer("above", tops_left=3)))
    assert told_as == {
        "time": "2023-11-14T22:13:20.500Z",
        "source": "flights",
        "stream": "late",
        "id": "x",
        "outcome": "above",
        "window": WINDOW,
        "group": {"origin": "EWR"},
        "tops_left": 3,
    }
    assert notice_document(Notice(0.0, "late", "flights", ended="closed"))["ended"] == "closed"
    document = notice_document(Notice(0.0, "late", "flights", answer("above"), terms=AlertTerms(900.0)))
    assert (document["threshold"], "condition" in document) == (900.0, False)


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("2013-01-01T05:00:00Z", "2013-01-01T06:00:00Z", "2013-01-01 05:00–06:00"),
        ("2013-01-01T23:00:00Z", "2013-01-02T00:00:00Z", "2013-01-01 23:00–2013-01-02 00:00"),
        ("2013-01-01T05:00:00Z", "2013-01-01T05:00:30Z", "2013-01-01 05:00:00–05:00:30"),
        ("2013-01-01T05:00:00Z", "2013-01-01T05:00:00.250Z", "2013-01-01 05:00:00.000–05:00:00.250"),
        ("long ago", "now", "long ago–now"),
    ],
)
def test_window_text_describes_windows_in_words(start: str, end: str, text: str) -> None:
    assert window_text(answer("above", window={"start": start, "end": end})) == text


def test_window_end_is_at_most_time_of_answer() -> None:
    assert window_end(answer("above"), 2e9) == 1357020000.0
    assert window_end(answer("above"), 1e9) == 1e9
    assert window_end(answer("above", window=None), 7.0) == 7.0
    assert alert_key_of(answer("above")) != alert_key_of(answer("above", group={"origin": "JFK"}))


def test_watch_reports_windows_and_groups_of_standing_stream() -> None:
    with Driver(KEY) as client:
        origin = {"origin": ["EWR", "JFK", "LGA"]}
        client.register(source("flights", "events", **MARKED, contribution=1, attributes=origin))
        where = "origin = 'EWR'"
        standing = {
            "by": ["origin"],
            "where": where,
            "window": {"size": "1h"},
            "begins": "2013-03-08T04:00:00Z",
        }
        busy = {"threshold": 900, "cutoff": 10, "monotone": True}
        client.open(stream("late-departures", "flights", mechanism=busy, standing=standing))
        late = {"scheduled": "2013-03-08T05:15:00Z", "origin": "EWR"}
        client.publish("flights", [{"tailnum": f"N{number}", **late} for number in range(2_000)])
        client.advance("flights", "2013-03-08T06:00:00Z")
        [notice] = client.watch("late-*", source="flights", from_beginning=True)
        assert notice.answer is not None
        assert notice.answer.group == {"origin": "EWR"}
        assert window_text(notice.answer) == "2013-03-08 05:00–06:00"
        assert notice.answer.tops_left == 9
        assert notice.terms == AlertTerms(900.0, where)
        quiet = list(client.watch(source="flights", from_beginning=True, quiet=True))
        assert len(quiet) == 2 * 3
        # The monitor's view of the same answers.
        alerts = Alerts(MonitorTables(client.topics))
        for one in client.records(client.topics.answers):
            alerts.add_answer(one._replace(timestamp=2_000_000_000_000))  # the driver begins in 1970
        [firing] = alerts.view(AlertQuery()).firing
        assert (firing.latest.group, firing.since) == ({"origin": "EWR"}, 1362722400.0)


def test_notice_marks_a_number_that_is_not_informative() -> None:
    known = record("answer", estimate=1.0, interval=[0.0, 9.0])
    [notice] = Watch((), None, all_answers=True).notices_of(known, OPENING)
    mark = "not informative: the error may exceed the number itself"
    assert f"1 (95 %: 0 to 9)  {mark}" in format_notice(notice, 300)[0].plain
    found = notice_document(notice)
    assert (found["uninformative"], found["warnings"]) == ([0], [mark])


def test_notice_has_the_bound_over_all_windows_of_running_counts_only() -> None:
    with Driver(KEY) as client:
        client.register(source("flights", "events", **MARKED, contribution=2, attributes={"row": 3}, total=5))
        for name, mechanism in (
            ("plain", {"kind": "laplace", "answers": 9}),
            ("so-far", {"kind": "running_count", "steps": 9}),
        ):
            window = {"window": {"size": "1h"}, "begins": "2013-03-08T05:00:00Z"}
            client.open(stream(name, "flights", mechanism=mechanism, standing=window))
        client.advance("flights", "2013-03-08T06:00:00Z")
        notices = {one.stream: one for one in client.watch(from_beginning=True, quiet=True)}
    bound = "of each 'tailnum' at most 2 events count in a window"
    bounds = {name: one.bound_text for name, one in notices.items()}
    assert bounds == {"plain": bound, "so-far": f"{bound}; in all windows together, at most 5"}
    assert notices["so-far"].warnings == notices["plain"].warnings


@pytest.mark.parametrize(
    ("count", "bound"),
    [
        ("people", "each person counts once in a window, with groups in the group of the person's first event"),
        ("events", "of each 'tailnum' at most 5 events count in a window"),
    ],
)
def test_answers_of_windows_name_their_bound_and_clamped_values(count: str, bound: str) -> None:
    """A count of people has no bound on events; notices and answers say so, and answers warn of clamped values."""
    with Driver(KEY) as client:
        delay = {"delay": {"kind": "integers", "minimum": 0, "maximum": 60}}
        client.register(source("flights", "events", **MARKED, contribution=5, attributes=delay))
        standing = {
            "count": count,
            "where": "delay = 60",
            "window": {"size": "1h"},
            "begins": "2013-03-08T05:00:00Z",
        }
        client.open(stream("late", "flights", mechanism={"threshold": 900, "cutoff": 10}, standing=standing))
        late = {"scheduled": "2013-03-08T05:15:00Z", "delay": 99}
        client.publish("flights", [{"tailnum": f"N{number}", **late} for number in range(2_000)])
        client.advance("flights", "2013-03-08T06:00:00Z")
        [notice] = client.watch(from_beginning=True)
        assert notice.bound_text == bound
        assert notice.warnings == ("'delay': 60 also counts all higher values",)
        assert "not informative" not in format_notice(notice, 300)[0].plain
        [answer] = client.answers(from_beginning=True)
        assert answer.warnings == (bound, "'delay': 60 also counts all higher values")


def alert_on_three_days(client: Driver) -> None:
    """Open a stream with periods of a day, and let it alert on each of three days, of which two are over."""
    periods = {"ahead": "30d", "unit": "person-period", "period": "1d", "attributes": {}}
    client.register(source("flights", "events", **MARKED, **periods))
    standing = {"window": {"size": "12h"}, "begins": "2013-03-08T00:00:00Z"}
    busy = {"threshold": 900, "cutoff": 1, "monotone": True}
    client.open(stream("late", "flights", mechanism=busy, standing=standing))
    for day in ("08", "09", "10"):
        at = {"scheduled": f"2013-03-{day}T05:15:00Z"}
        client.publish("flights", [{"tailnum": f"N{number}", **at} for number in range(2_000)])
    for day in ("09", "10", "11"):
        client.advance("flights", f"2013-03-{day}T00:00:00Z")


def test_watch_follows_all_periods_of_stream_name() -> None:
    with Driver(KEY) as client:
        alert_on_three_days(client)
        for streams, source in ((("late",), None), (("la*",), None), ((), "flights"), (("late",), "flights")):
            found = outcomes_of(client.watch(*streams, source=source, from_beginning=True))
            assert sorted(one for one in found if one[1] == "above") == [
                (f"late@2013-03-{day}T00:00:00Z", "above") for day in ("08", "09", "10")
            ]
            # The end of a period is not reported, but the exhaustion of its alerts is.
            assert not any(outcome == "closed" for _, outcome in found)
            assert ("late@2013-03-10T00:00:00Z", "exhausted") in found
        one = outcomes_of(client.watch("late@2013-03-09T00:00:00Z", from_beginning=True))
        assert [name for name, outcome in one if outcome == "above"] == ["late@2013-03-09T00:00:00Z"]
        client.close("flights", "late", "no longer needed")
        [ended] = client.watch("late")
        assert (ended.stream, ended.ended) == ("late", "closed: no longer needed")


def test_format_notice_has_stream_name_and_json_its_period() -> None:
    stream = "late@2013-01-01T00:00:00Z"
    notice = Notice(0.0, stream, "flights@2013-01-01T00:00:00Z", answer("above", stream=stream))
    [line] = format_notice(notice, 120)
    assert " late  2013-01-01 05:00–06:00 UTC" in line.plain
    assert "@" not in line.plain
    assert notice_document(notice)["stream"] == stream
    [ended] = format_notice(Notice(0.0, stream, ended="exhausted"), 120)
    assert stream in ended.plain


def dead_letter_of(topic: str, offset: int, code: str = "partition") -> Record:
    original = Record(topic, 0, offset, 0, b"ann", b"{}", ())
    key, value, headers = dead_letter(original, Rejection(code, "person: wrong; set partitioner"))
    return Record("rejected", 0, offset, 1_000_000, key, value, headers)


def test_watch_warns_of_refused_events_once_a_minute() -> None:
    """A warning names all sources of a watched topic, one of which may have refused none; other topics have no warning."""
    warnings = RefusalWarnings()
    warnings.add(
        [Record("rejected", 0, 0, 0, None, b"{}"), *(dead_letter_of("ops.departures", at) for at in (1, 2))]
    )
    warnings.add([dead_letter_of("unwatched", 1)])
    sources = [parse_source(flights()), parse_source(flights(source="again"))]
    assert warnings.is_due(1000.0)
    [(named, share)] = warnings.take_due(sources, 1000.0)
    assert (named, share.events, share.share) == (["flights", "again"], 3, "50 to 90 %")
    warnings.add([dead_letter_of("ops.departures", 3)])
    assert not warnings.is_due(1059.0)
    assert [one for one, _ in warnings.take_due(sources[:1], 1060.0)] == [["flights"]]
    for names, by in ((["flights"], ""), (named, " by at least one of these sources (feeds' logs name it)")):
        text = [line.plain for line in format_refusal(names, share, 0.0, 60)]
        assert all(len(line) <= 60 for line in text)
        last = time.strftime("%H:%M:%S", time.localtime(1000.0))
        told = f"{', '.join(names)} 50 to 90 % of the 3 records in partitions with refused events, up to the latest refused one at {last}, were refused{by}; most often: partition: person"
        assert f"! refused {told}" in re.sub(r"\s+", " ", " ".join(text))


async def test_watch_of_one_source_names_the_others_of_its_topic() -> None:
    """Dead letters do not name the source, so that refusals of another source are not taken for those of the watched one."""
    driver = Driver(KEY)
    for name, topic in (("flights", "t"), ("strict", "t"), ("other", "elsewhere")):
        driver.register(flights(source=name, topic=topic))
    client: Any = Connected(driver)
    watched = [await watched_sources(client, (), "flights", whole_topics=whole) for whole in (False, True)]
    assert [[one.source for one in found] for found in watched] == [["flights"], ["flights", "strict"]]


async def test_answers_of_windows_beyond_the_promise_say_so() -> None:
    with installation(sources=[flights()], partitions=2) as driver:
        driver.open(as_opening(standing()), acknowledge=True)
        known = FollowedLedger(cast("Any", None))
        view = known._view = LedgerView()
        view.add(driver.records(driver.topics.ledger))
        promised = last_promised_answer(driver.grant("flights", "late").calibration)
    assert promised is not None
    for index, is_beyond in ((promised - 1, False), (promised, True)):
        warned = (await known.add_stream(answer("below", index=index))).warnings
        assert (f"more than the {promised:,} answers for which α is promised" in str(warned)) is is_beyond


@pytest.mark.parametrize(
    ("mechanism", "question", "bound"),
    [
        ({"kind": "above_threshold", "cutoff": 2}, {}, "of each 'who' at most 2 rows count"),
        ({"kind": "above_threshold", "cutoff": 2, "people": True}, {"people": True}, ""),
        (
            {"kind": "laplace", "answers": 2},
            {"people": True},
            "of each 'who' at most 2 rows count, unless the question counts people",
        ),
    ],
)
def test_notices_of_tables_name_the_bound_only_for_rows(
    mechanism: dict[str, Any], question: dict[str, Any], bound: str
) -> None:
    """A producer's question about people has no bound on rows; of laplace answers the question is unknown."""
    with Driver(KEY) as client:
        attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 99}}
        people = source(
            "visits", "table", path="-", person="who", contribution=2, attributes=attributes, epsilon=200
        )
        rows = {"who": [f"p{number // 2}" for number in range(400)], "age": [50] * 400}
        client.register(people, rows)
        threshold = {"threshold": 10.0} if mechanism["kind"] == "above_threshold" else {}
        client.open(stream("s", "visits", mechanism={**mechanism, **threshold}, epsilon=100))
        client.ask("s", where="age > 20", **question)
        [notice] = client.watch(from_beginning=True, quiet=True)
        assert notice.bound_text == bound


def test_watch_prints_the_warnings_of_a_stream_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the warning of a condition that the domains decide."""
    with Driver(KEY) as driver:
        delay = {"delay": {"kind": "integers", "minimum": 0, "maximum": 60}}
        driver.register(source("flights", "events", **MARKED, contribution=2, attributes=delay))
        asked = {"where": "delay > 90", "window": {"size": "1h"}, "begins": "2013-03-08T05:00:00Z"}
        driver.open(stream("late", "flights", mechanism={"kind": "laplace", "answers": 9}, standing=asked))
        driver.advance("flights", "2013-03-08T07:00:00Z")

        class Client(Connected):
            async def watch(self, *streams: str, **fields: Any) -> AsyncIterator[Notice]:
                for notice in driver.watch(*streams, **fields):
                    yield notice

        async def nothing(*_: object, **__: object) -> None:
            return

        monkeypatch.setattr(answer_commands, "AsyncClient", lambda: Client(driver))
        for name in ("follow_refusals", "follow_topics", "report_idle_patterns", "report_silence"):
            monkeypatch.setattr(answer_commands, name, nothing)
        answer_commands.watch(show_all=True, from_beginning=True, limit=2)
    shown = capsys.readouterr().out
    assert (shown.count("· answer"), shown.count("late: where: delay > 90 holds for no event")) == (2, 1)


async def test_watch_names_a_topic_that_feeds_refuse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source without open streams is asked no window, so its topic does not matter."""
    driver, shown = Driver(KEY), list[tuple[str, str]]()
    for name in ("flights", "unused"):
        driver.register(flights(source=name, topic=name))
    driver.open(standing("late"), acknowledge=True)
    set_live_topic_report(monkeypatch, LiveTopicReport(problem="topic t was created again"))
    rounds = count()

    async def find_sources() -> list[EventsSource]:
        if next(rounds) == 2:
            raise asyncio.CancelledError
        return [one.source for one in driver.list_sources() if isinstance(one.source, EventsSource)]

    monkeypatch.setattr(watch_warnings, "WARNING_SECONDS", 0.0)
    client: Any = Connected(driver)
    with pytest.raises(asyncio.CancelledError):
        await watch_warnings.follow_topics(client, find_sources, lambda *one: shown.append((one[0], one[1])))
    assert shown == [("flights", "topic t was created again")]


@pytest.mark.parametrize(
    ("clock", "found", "told"),
    [
        # windows of 1 h every 15 min, lateness 10 min, idle 5 s, and a minute more
        ("broker", ("open", 7_200, None), "stream late has no answer since 20"),
        ("broker", ("open", 3_600, None), None),
        ("broker", ("open", 3_600, "the key is missing"), "stream late is not answered: the key is missing"),
        ("broker", ("exhausted", 7_200, None), None),
        ("broker", None, None),
        ("broker", Unknown("statuses"), None),
        ("marks", AssertionError("is not read"), None),
    ],
)
async def test_watch_says_that_answers_are_overdue(
    clock: str, found: Any, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no feed or worker runs, no alert arrives either, which would look like quiet windows."""
    driver, shown = Driver(KEY), list[str]()
    driver.register(flights(clock=clock))
    driver.open(standing(begins=WINDOW["start"]), acknowledge=True)
    set_live_topic_report(monkeypatch, LiveTopicReport())

    class Client(Connected):
        async def statuses(self, streams: list[str]) -> dict[str, Any]:
            if isinstance(found, Exception):
                raise found
            if found is None:
                return {}
            state, age, refused = found
            return dict.fromkeys(streams, (Mock(state=state, refused=refused), time.time() - age))

    client: Any = Client(driver)
    for patterns in ((), ("la*",), ("other",)):
        rounds = count()

        async def find_sources(rounds: Iterator[int] = rounds) -> list[Any]:
            if next(rounds):
                raise asyncio.CancelledError
            return [one.source for one in driver.list_sources()]

        monkeypatch.setattr(watch_warnings, "WARNING_SECONDS", 0.0)
        with pytest.raises(asyncio.CancelledError):
            await watch_warnings.follow_topics(client, find_sources, lambda *one: shown.append(one[1]), patterns)
    assert len(shown) == (0 if told is None else 2)
    assert all(one.startswith(told or "") for one in shown)


@pytest.mark.parametrize(("seconds", "is_overdue"), [(3_600, False), (7_200, True)])
def test_stream_without_a_status_is_overdue_since_the_watch_has_seen_it(seconds: int, is_overdue: bool) -> None:
    """It may have been opened just now, although its first window began long ago."""
    spec, about, now = parse_stream(standing(begins=WINDOW["start"])), parse_source(flights()), time.time()
    problem = describe_overdue([spec], about, {}, now + seconds, {spec.stream: now})
    assert (problem is not None) is is_overdue


async def test_stream_opened_during_a_watch_is_overdue_only_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch began three hours before the opening, and the stream's first window long before that."""
    driver, shown, rounds, began = Driver(KEY), list[tuple[int, str]](), count(), time.time()
    driver.register(flights(clock="broker"))
    set_live_topic_report(monkeypatch, LiveTopicReport())
    hours = 0

    class Client(Connected):
        async def statuses(self, _: list[str]) -> dict[str, Any]:
            return {}

    async def find_sources() -> list[Any]:
        nonlocal hours
        hours = 3 * next(rounds)
        if hours == 3:
            driver.open(standing(begins=WINDOW["start"]), acknowledge=True)
        if hours == 9:
            raise asyncio.CancelledError
        return [one.source for one in driver.list_sources()]

    client: Any = Client(driver)
    monkeypatch.setattr(watch_warnings, "WARNING_SECONDS", 0.0)
    monkeypatch.setattr(watch_warnings, "time", SimpleNamespace(time=lambda: began + 3600 * hours))
    with pytest.raises(asyncio.CancelledError):
        await watch_warnings.follow_topics(client, find_sources, lambda *one: shown.append((hours, one[1])))
    ((when, said),) = shown
    assert when == 6
    assert said.startswith("stream late has no answer since 20")


async def test_silent_brokers_are_reported_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each silence is told once, although the brokers are asked again and again."""
    silent: list[BaseException | None] = [KafkaConnectionError("x"), OSError("x")]
    outcomes = iter([None, *silent, None, None, TimeoutError(), asyncio.CancelledError()])

    class Admin:
        async def describe_cluster(self) -> None:
            if (outcome := next(outcomes)) is not None:
                raise outcome

    @asynccontextmanager
    async def admin_client(_: Settings) -> AsyncIterator[Admin]:
        yield Admin()

    shown: list[str] = []
    monkeypatch.setattr(kafka_connection, "SILENCE_SECONDS", 1e-6)
    monkeypatch.setattr(kafka_connection, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(kafka_connection, "admin_client", admin_client)
    with pytest.raises(asyncio.CancelledError):
        await kafka_connection.report_silence(Settings(), shown.append)
    silence = "the brokers do not answer; still trying, stop with Ctrl-C"
    assert shown == [silence, "the brokers answer again", silence]


async def test_watch_outlasts_silent_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reads of the ledger time out while the brokers restart; the next one has the ends meanwhile."""
    dry = OPENING._replace(state="exhausted", reason="its grant is used up")
    reads: Iterator[list[StreamOpening] | KafkaTimeoutError] = iter(
        [[OPENING], KafkaTimeoutError(), KafkaTimeoutError(), [dry]]
    )

    class Openings:
        sources: ClassVar[dict[str, str]] = {"flights": ""}

        async def read(self) -> list[StreamOpening]:
            if isinstance(found := next(reads), KafkaTimeoutError):
                raise found
            return found

        async def stop(self) -> None: ...

    class Connection:
        settings = Settings()

        async def open_answers_consumer(self, **_: Any) -> Any:
            return self

        async def getmany(self, **_: Any) -> dict[Any, Any]:
            return {}

        stop = Openings.stop

    monkeypatch.setattr(answer_history, "LEDGER_READ_SECONDS", 0.0)
    monkeypatch.setattr(answer_history, "OpeningReader", lambda *_: Openings())
    connection: Any = Connection()
    watch = Watch((), None, all_answers=False)
    async with aclosing(answer_history.watch_notices(connection, watch, from_beginning=False)) as notices:
        assert (await anext(notices)).ended == "exhausted: its grant is used up"


async def test_fault_beside_a_watch_is_not_silent() -> None:
    async def fail() -> None:
        raise ValueError("fault")

    with pytest.raises(ValueError, match="fault"):
        async with answer_commands._run_beside(fail(), asyncio.sleep(60)):
            await asyncio.sleep(0)
