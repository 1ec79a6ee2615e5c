"""What the API answers about budgets over time, who has spent them, and the audit trail. As ``models``, of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from schemas import Amount, StreamState
from stream.monitor.api.models import SourceRow, Time, View
from stream.monitor.api.service_models import FeedView
from stream.monitor.state.budget_history import HELD_ENTRIES

MAX_ENTRIES = 500


class BurnPoint(View):
    """A source's budget at a time."""

    time: Time
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


class Forecast(View):
    """When a budget runs out if as much is granted of it as in the last ``window_seconds``; no promise of what will be asked.

    ``taken`` is what was granted less what came back since ``since``, which is later than the window's beginning where the
    trail is younger.
    """

    window_seconds: int
    since: Time
    taken: Amount
    outcome: Annotated[
        Literal["never", "runs-out", "renews-first", "too-early", "gone"],
        Field(
            description="never: nothing was taken; renews-first: it lasts until it renews; too-early: less than an hour is "
            "known; gone: nothing is left, of ε or of δ."
        ),
    ]
    at: Annotated[Time | None, Field(description="When it runs out, or renews; null for other outcomes.")]
    part: Annotated[
        Literal["epsilon", "delta", "rho"] | None,
        Field(description="What runs out first, or is gone; null for other outcomes."),
    ]


class BurnDown(View):
    """A source's budget over time, oldest first, from the beginning of the audit trail on, and how long it lasts."""

    source: SourceRow
    points: list[BurnPoint]
    forecasts: list[Forecast]
    feed: Annotated[FeedView | None, Field(description="The feed of a live topic; null for other sources.")] = None


class SpendingQuery(View):
    """Whose spending to show."""

    model_config = ConfigDict(strict=False)

    source: Annotated[str, StringConstraints(max_length=128), Field(description="Only of this source.")] | None = (
        None
    )
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES, description="Most streams to list.")] = 20


class Share(View):
    """Amounts of one accountant, which add up: what was granted, is known to be spent, and came back."""

    granted: Amount
    spent: Amount
    refunded: Amount


class SourceShare(View):
    """Somebody's part of one source's budget."""

    source: str
    streams: int
    share: Share


class AnalystSpending(View):
    """What one analyst's streams have cost, source by source; the name is null for streams that nobody is named for."""

    analyst: str | None
    streams: int
    sources: list[SourceShare]


class StreamSpending(View):
    """What one stream has cost."""

    stream: str
    source: str
    analyst: str | None
    state: StreamState
    share: Share


class Spending(View):
    """Who has spent what: every analyst by name, and the streams that cost most."""

    source: str | None
    streams: int
    analysts: list[AnalystSpending]
    costliest: list[StreamSpending]


class TrailFilter(View):
    """Which entries of the audit trail are wanted."""

    model_config = ConfigDict(strict=False)

    search: Annotated[
        str,
        StringConstraints(max_length=128),
        Field(description="Part of a name or of a request's id, in any case."),
    ] = ""
    source: Annotated[str, StringConstraints(max_length=128)] | None = None
    stream: (
        Annotated[str, StringConstraints(max_length=128), Field(description="Of view stream: which one.")] | None
    ) = None
    population: Annotated[str, StringConstraints(max_length=128)] | None = None
    analyst: Annotated[str, StringConstraints(max_length=128)] | None = None
    by: Annotated[str, StringConstraints(max_length=128), Field(description="Whose token asked.")] | None = None
    action: Annotated[str, StringConstraints(max_length=64), Field(description="As in ``open``.")] | None = None
    outcome: Annotated[str, StringConstraints(max_length=64), Field(description="As in ``refused``.")] | None = (
        None
    )
    since: Annotated[float, Field(ge=0.0, description="Seconds since the epoch.")] | None = None
    until: Annotated[float, Field(ge=0.0, description="Seconds since the epoch.")] | None = None


class TrailQuery(TrailFilter):
    """Which of them to list, the latest first."""

    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 50


class TrailRow(View):
    """One entry: what was asked and decided, or what followed by itself."""

    number: int
    time: Time
    kind: str
    action: Annotated[str, Field(description="What was asked, or what happened.")]
    outcome: str | None
    source: str | None
    stream: str | None
    population: str | None
    analyst: str | None
    allotment: str | None
    analysts: Annotated[tuple[str, ...], Field(description="Who shares the allotment.")]
    by: Annotated[str | None, Field(description="Who asked through the monitor; null for what came over Kafka.")]
    mechanism: str | None
    request: str | None
    reason: str | None
    epsilon: Annotated[float | None, Field(description="The ε that was asked for.")]
    asked: Amount | None
    granted: Amount | None
    spent: Amount | None
    refunded: Amount | None
    answers: int | None
    left: Annotated[Amount | None, Field(description="What was left of the account behind it.")]


class TrailPage(View):
    """Some of the entries that match, the latest first."""

    entries: Annotated[
        int, Field(description="How many the trail has, those that only note what was spent among them.")
    ]
    held: Annotated[
        int, Field(description=f"How many may be listed: the latest {HELD_ENTRIES:,} of all but those.")
    ]
    broken: Annotated[
        str | None,
        Field(
            description="The first entry that does not follow the one before it; null while the chain is whole."
        ),
    ]
    matching: int
    offset: int
    items: list[TrailRow]


class PeriodView(View):
    """The period that a budget which renews is in; ``counted`` is what counts against it in this period."""

    number: int
    starts: Time
    ends: Time
    counted: Amount


class PopulationRow(View):
    """The people whom several sources are about, with the budget that all their streams count against."""

    population: str
    state: Annotated[Literal["open", "halted"], Field(description="Nothing more is granted once it is halted.")]
    reason: str | None
    accountant: Literal["pure", "zcdp"]
    total: Amount
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    left_share: Annotated[float, Field(description="What is left, as a share of the total: 0 to 1.")]
    sources: int
    streams: int
    renews: Annotated[
        str | None, Field(description="How long a period of the budget is, as in 30d; null for ever.")
    ]
    period: PeriodView | None
    meaning: Annotated[str, Field(description="What the budget promises, in plain words.")]
    updated: Time


class PopulationPage(View):
    """All populations, by name."""

    items: list[PopulationRow]


class AllotmentQuery(View):
    """Which allotments to list."""

    source: (
        Annotated[str, StringConstraints(max_length=128), Field(description="Of this source's budget.")] | None
    ) = None
    population: (
        Annotated[str, StringConstraints(max_length=128), Field(description="Of this population's budget.")] | None
    ) = None
    analyst: (
        Annotated[str, StringConstraints(max_length=128), Field(description="That this analyst has.")] | None
    ) = None


class AllotmentRow(View):
    """The part of a source's or a population's budget that some analysts share. No more may be granted than the budget has left."""

    allotment: str
    source: str | None
    population: str | None
    analysts: list[str]
    total: Amount
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    left_share: float
    streams: int
    period: PeriodView | None
    meaning: Annotated[str, Field(description="What it promises, in plain words.")]


class AllotmentPage(View):
    """Allotments, by whose budget they are of and their name."""

    items: list[AllotmentRow]


class PopulationDetail(View):
    """A population with its sources and allotments. Where a source counts otherwise, its history is not added up: it is empty."""

    row: PopulationRow
    sources: list[SourceRow]
    allotments: list[AllotmentRow]
    points: list[BurnPoint]
    forecasts: list[Forecast]
