"""The data of a screen of ``sotto top``, for tests."""

from __future__ import annotations

from typing import Any, TypeVar

from schemas import Amount
from stream.cli.top_command import ScreenData
from stream.monitor.api.models import (
    ApiModel,
    Overview,
    Rate,
    SourcePage,
    SourceRow,
    StreamCounts,
    StreamPage,
    StreamRow,
)
from stream.monitor.api.service_models import MemberRow, RejectedReason, RejectedView, WorkersView

Made = TypeVar("Made", bound=ApiModel)
SOURCE = "patients-of-2026-of-all-hospitals"
POPULATION = "patients"
STREAMS = ("fever-watch-2026-11-22-ward-seven", "a")
MEMBERS = ("worker-host-17-4711-a9", "budget-host-17-4712-b3")
AMOUNT = Amount(epsilon=1.23457, delta=0.0, rho=0.0098765)


def partial_view(view: type[Made], **fields: Any) -> Made:
    """Return a view with only the fields that the picture shows."""
    construct: Any = view.model_construct
    shown: Made = construct(**fields)
    return shown


def screen_data() -> ScreenData:
    """Return the data of a screen with long names, large figures and all long states."""
    rate = Rate(window_seconds=60, above=12.5, below=123_456.0)
    counts = StreamCounts(open=1_234, exhausted=20, halted=3, closed=11_111)
    source = partial_view(
        SourceRow,
        source=SOURCE,
        kind="events",
        state="halted",
        total=AMOUNT,
        granted=AMOUNT,
        spent=AMOUNT,
        refunded=AMOUNT,
        left=AMOUNT,
        left_share=0.5,
        population=POPULATION,
        population_left_share=0.0123,
    )
    streams = [
        partial_view(
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
        partial_view(
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
    return ScreenData(
        partial_view(Overview, time=1e9, ready=True, streams=counts, rates=[rate], rejected=99, lag=1_234_567),
        partial_view(SourcePage, total=1, items=[source]),
        partial_view(StreamPage, total=2, items=streams),
        partial_view(WorkersView, time=1e9, members=members, partitions=[]),
        partial_view(
            RejectedView, total=99, reasons=[partial_view(RejectedReason, code="malformed", count=99, last=1e9)]
        ),
    )
