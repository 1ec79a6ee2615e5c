"""The picture of ``sotto top`` in a terminal of 80 columns, and in a wide one: every name, state and figure is whole."""

from __future__ import annotations

import io
from typing import Any, TypeVar

import pytest
from rich.console import Console

from schemas import Amount
from stream.cli.output import CommandError
from stream.cli.top import Frame, picture, top
from stream.monitor.models import Overview, Rate, SourcePage, SourceRow, StreamCounts, StreamPage, StreamRow, View
from stream.monitor.rejected_models import RejectedReason, RejectedView
from stream.monitor.worker_models import MemberRow, WorkersView

Made = TypeVar("Made", bound=View)

SOURCE = "patients-of-2026-of-all-hospitals"
STREAMS = ("fever-watch-2026-11-22-ward-seven", "a")
MEMBERS = ("worker-host-17-4711-a9", "budget-host-17-4712-b3")
AMOUNT = Amount(epsilon=1.23457, delta=0.0, rho=0.0098765)


def made(view: type[Made], **fields: Any) -> Made:
    """A view with the fields that the picture shows, and no others."""
    construct: Any = view.model_construct
    shown: Made = construct(**fields)
    return shown


def frame() -> Frame:
    """Long names, large figures, every state that is long."""
    rate = Rate(window_seconds=60, above=12.5, below=123_456.0)
    counts = StreamCounts(open=1_234, exhausted=20, halted=3, closed=11_111)
    source = made(
        SourceRow,
        source=SOURCE,
        state="halted",
        total=AMOUNT,
        granted=AMOUNT,
        spent=AMOUNT,
        refunded=AMOUNT,
        left=AMOUNT,
        left_share=0.0123,
    )
    streams = [
        made(
            StreamRow,
            stream=name,
            state="open",
            ending=None,
            refused="table: differs",
            mechanism="randomized_response",
            answered=123_456_789,
            tops=12_345,
            cutoff=100_000,
            tops_left=87_655,
            rates=[rate],
            alpha=1234.5,
            promises=[],
            dry_in=86_400.0,
        )
        for name in STREAMS
    ]
    members = [
        made(
            MemberRow,
            member=name,
            role="worker",
            host="host-17",
            partitions=list(range(12)),
            lag=1_234_567,
            events_per_second=98_765.0,
        )
        for name in MEMBERS
    ]
    return Frame(
        made(Overview, time=1e9, ready=True, streams=counts, rates=[rate], rejected=99, lag=1_234_567),
        made(SourcePage, total=1, items=[source]),
        made(StreamPage, total=2, items=streams),
        made(WorkersView, time=1e9, members=members, partitions=[]),
        made(RejectedView, total=99, reasons=[made(RejectedReason, code="malformed", count=99, last=1e9)]),
    )


@pytest.mark.parametrize("width", [80, 90, 100, 120, 140, 200])
def test_no_word_of_the_picture_is_cut(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(frame(), width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    for word in (SOURCE, *STREAMS, *MEMBERS, "not answering", "12,345/100,000", "123,456", "98,765", "1,234,567"):
        assert word in text, text
    for heading in (
        "source",
        "state",
        "budget",
        "left",
        "charged",
        "process",
        "service",
        "partitions",
        "restoring",
    ):
        assert heading in text, text


def test_into_a_pipe_it_says_what_prints_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.cli.top.monitor_of", lambda *_: pytest.fail("the monitor is asked"))
    with pytest.raises(CommandError, match=r"no terminal.*--once"):
        top(url=None, once=False, rows=10)


def test_a_name_that_fits_no_line_is_broken_and_nothing_else_is_cut() -> None:
    long = frame()
    long.streams.items[0] = long.streams.items[0].model_copy(update={"stream": "Q" * 64})
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(long, 80))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("Q") == 64
    assert "123,456" in text
    assert "12,345/100,000" in text
