"""The API's models of budget histories, spending and the audit trail, and of plans that would spend a budget."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from schemas import Amount, Calibration, ComparedMechanism, StreamState
from schemas.base import EventId
from schemas.domains import AttributeName
from stream.monitor.api.models import MAX_PAGE, ApiModel, Name, Parameters, SourceRow, Time
from stream.monitor.api.service_models import FeedView
from stream.privacy.planning.form_accuracy import Form
from stream.privacy.planning.promises import Promise

MAX_HELD_ENTRIES: Final = 50_000
"""Number of latest trail entries that the monitor keeps for the list and the export."""

BudgetPart = Literal["epsilon", "delta", "rho"]
ForecastOutcome = Literal["never", "runs-out", "renews-first", "too-early", "gone"]

Unread = Annotated[
    int,
    Field(
        description="Number of earlier entries of the trail that are still being read, after a start of the monitor."
    ),
]


class BurnPoint(ApiModel):
    """A source's budget at a time."""

    time: Time
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


class Forecast(ApiModel):
    """The time at which a budget runs out at the pace of the last ``window_seconds``; an extrapolation.

    ``taken`` is the amount granted minus the amount refunded since ``since``. If the trail is younger
    than the window, ``since`` is later than the window's start.
    """

    window_seconds: int
    since: Time
    taken: Amount
    outcome: ForecastOutcome
    """never: nothing was taken; renews-first: it lasts until it renews; too-early: less than an hour is known; gone: nothing is left, of ε or of δ."""
    at: Annotated[Time | None, Field(description="Time at which it runs out or renews; null for other outcomes.")]
    part: BudgetPart | None
    """The part that runs out first or is gone; null for other outcomes."""


class BurnDown(ApiModel):
    """A source's budget since the start of the audit trail, or since its first read entry, with forecasts."""

    source: SourceRow
    unread: Unread
    points: list[BurnPoint]
    forecasts: list[Forecast]
    feed: Annotated[FeedView | None, Field(description="The feed of a live topic; null for other sources.")] = None


class SpendingQuery(Parameters):
    """Selects the spending to show."""

    source: Annotated[Name | None, Field(description="Only of this source.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of streams to list.")] = 20


class Share(ApiModel):
    """Granted, spent and refunded amounts, which can be added because they have one accountant."""

    granted: Amount
    spent: Amount
    refunded: Amount


class SourceShare(ApiModel):
    """An analyst's part of one source's budget."""

    source: str
    streams: int
    share: Share


class AnalystSpending(ApiModel):
    """The costs of one analyst's streams, by source; the name is null for streams without an analyst."""

    analyst: str | None
    streams: int
    sources: list[SourceShare]


class StreamSpending(ApiModel):
    """The costs of one stream."""

    stream: str
    source: str
    analyst: str | None
    state: StreamState
    share: Share


class Spending(ApiModel):
    """Spending by analyst, and the streams with the largest grants after refunds."""

    source: str | None
    streams: int
    analysts: list[AnalystSpending]
    costliest: list[StreamSpending]


class TrailFilter(Parameters):
    """Filters entries of the audit trail."""

    search: Annotated[Name, Field(description="Part of a name or of a request's id, in any case.")] = ""
    source: Name | None = None
    stream: Annotated[Name | None, Field(description="The stream's name.")] = None
    population: Name | None = None
    analyst: Name | None = None
    by: Annotated[Name | None, Field(description="Name of the token that requested it.")] = None
    action: Annotated[Name | None, Field(description="An action, for example ``open``.")] = None
    outcome: Annotated[Name | None, Field(description="An outcome, for example ``refused``.")] = None
    since: Annotated[float, Field(ge=0.0, description="Seconds since the epoch.")] | None = None
    until: Annotated[float, Field(ge=0.0, description="Seconds since the epoch.")] | None = None


class TrailQuery(TrailFilter):
    """Filters and pages entries of the audit trail, latest first."""

    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50


class TrailRow(ApiModel):
    """One entry: a request with its decision, or an event."""

    number: int
    time: Time
    kind: str
    action: Annotated[str, Field(description="The requested action, or the event.")]
    outcome: str | None
    source: str | None
    stream: str | None
    population: str | None
    analyst: str | None
    allotment: str | None
    analysts: Annotated[tuple[str, ...], Field(description="The analysts who share the allotment.")]
    by: Annotated[str | None, Field(description="The name of the monitor's user; null for requests over Kafka.")]
    mechanism: str | None
    request: str | None
    reason: str | None
    epsilon: Annotated[float | None, Field(description="The requested ε.")]
    delta: Annotated[float | None, Field(description="The requested δ; null for an allotment of the budget's δ.")]
    asked: Amount | None
    granted: Amount | None
    spent: Amount | None
    refunded: Amount | None
    answers: int | None
    loss: Annotated[
        str | None, Field(description="The loss by a restored backup or an accepted rollback, in words.")
    ]
    left: Annotated[Amount | None, Field(description="The account's remaining budget after it.")]


class TrailPage(ApiModel):
    """A page of the matching entries, latest first."""

    entries: Annotated[int, Field(description="Number of entries of the trail, notes of spending included.")]
    held: Annotated[
        int,
        Field(
            description=f"Number of entries that can be listed: the latest {MAX_HELD_ENTRIES:,} without notes of spending."
        ),
    ]
    unread: Unread
    broken: str | None
    """The first break of the chain; null if the read entries are intact."""
    matching: int
    offset: int
    items: list[TrailRow]


class PeriodView(ApiModel):
    """The current period of a renewing budget; ``counted`` is the amount charged to this period."""

    number: int
    starts: Time
    ends: Time
    counted: Amount


class PopulationRow(ApiModel):
    """The people of several sources, with the budget that their streams share."""

    population: str
    state: Annotated[Literal["open", "halted"], Field(description="A halted population grants nothing more.")]
    reason: str | None
    accountant: Literal["pure", "zcdp"]
    total: Amount
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    left_share: Annotated[float, Field(description="Remaining share of the total: 0 to 1.")]
    sources: int
    streams: int
    renews: str | None
    """Length of the budget's period, for example 30d; null without renewal."""
    period: PeriodView | None
    meaning: Annotated[str, Field(description="The budget's guarantee as a sentence.")]
    updated: Time


class PopulationPage(ApiModel):
    """All populations, by name."""

    items: list[PopulationRow]


class AllotmentQuery(Parameters):
    """Filters allotments."""

    source: Annotated[Name | None, Field(description="Of this source's budget.")] = None
    population: Annotated[Name | None, Field(description="Of this population's budget.")] = None
    analyst: Annotated[Name | None, Field(description="Allotments of this analyst.")] = None


class AllotmentRow(ApiModel):
    """A part of a source's or population's budget for some analysts; its rest is at most the budget's rest."""

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
    limited_by: Annotated[
        list[str],
        Field(
            description="The budgets that have less left than the allotment itself, and of what, as 'population patients (ε, δ)'."
        ),
    ]
    streams: int
    period: PeriodView | None
    meaning: Annotated[str, Field(description="Its guarantee as a sentence.")]


class AllotmentPage(ApiModel):
    """Allotments, sorted by owner and name."""

    items: list[AllotmentRow]


class PopulationDetail(ApiModel):
    """A population with sources and allotments; without history if the sources' accountants differ.

    A point of the history is a sum over all sources, so there are no points while entries of the trail are
    unread.
    """

    unread: Unread
    row: PopulationRow
    sources: list[SourceRow]
    allotments: list[AllotmentRow]
    points: list[BurnPoint]
    forecasts: list[Forecast]


class Plan(ApiModel):
    """The error bound and cost of a stream that is not opened yet. Nothing is reserved."""

    calibration: Calibration
    cost: Amount
    left: Amount
    left_of: str | None
    """The population whose budget is ``left``; null if it is the source's."""
    affordable: bool
    halted: Literal["source", "population"] | None
    """The halted account, which pays for no stream even if some of its budget is left; null without one."""
    promises: Annotated[tuple[Promise, ...], Field(description="Its error bounds, as for streams.")]
    windows: int | None
    """Number of windows for which the error bounds would hold; null without windows."""
    period: str | None
    """Length of the periods, each with that number of windows; null without periods."""
    compared: list[ComparedMechanism]
    """The mechanisms that 'auto' compares, the best first; empty for a named mechanism."""
    uninformative: str | None
    """A warning with its remedy if the promise is not informative, else null."""
    past_windows: str | None
    """A warning with its remedy if the first windows may lack events, else null."""


class PlanQuery(Parameters):
    """Public guesses, used only to warn of a promise that is not informative."""

    rows: Annotated[int | None, Field(ge=1, le=2**53, description="About how many rows the table has.")] = None
    answer: Annotated[float | None, Field(allow_inf_nan=False)] = None
    """About how large an answer is expected to be."""


class ComparisonRequest(ApiModel):
    """Questions for which all mechanisms are compared, with the options of ``sotto plan``."""

    source: EventId
    form: Form | None = None
    queries: Annotated[int, Field(ge=1, le=2**40)] = 1000
    epsilon: Annotated[float | None, Field(ge=1e-6, le=1e6)] = None
    alpha: Annotated[float | None, Field(gt=0.0, allow_inf_nan=False)] = None
    delta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    beta: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    rows: Annotated[int | None, Field(ge=1, le=2**53, description="A public number of rows.")] = None
    cutoff: Annotated[int, Field(ge=1, le=2**40)] = 1
    group_by: Annotated[tuple[AttributeName, ...], Field(max_length=64, strict=False)] = ()
    attribute: AttributeName | None = None
    attributes: Annotated[tuple[AttributeName, ...], Field(max_length=1024, strict=False)] = ()
    """Attributes that questions may be about; all if empty."""
    q: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5


class MechanismRow(ApiModel):
    """A mechanism in a comparison. If it does not apply, ``alpha`` and ``epsilon`` are null, and ``why`` is the reason."""

    mechanism: str
    over: tuple[str, ...] | None
    """The grouped attributes, if the mechanism answers about these alone."""
    applies: bool
    alpha: float | None
    epsilon: Annotated[float | None, Field(description="The ε that the mechanism needs for the requested error.")]
    vacuous: Annotated[bool, Field(description="True if the mechanism's promise is not informative.")]
    calibration: str | None
    why: str
    value_error: float | None = None
    """A quantile's error in value, for evenly spread rows."""


class PlanComparison(ApiModel):
    """All mechanisms for one form of questions, best first, as ``sotto plan`` prints them."""

    form: Form
    forms: Annotated[list[Form], Field(description="The forms that the source's questions may have.")]
    choice: Annotated[str | None, Field(description="The best mechanism; null if none applies.")]
    keeps: Annotated[bool, Field(description="False if the best mechanism does not keep the requested error.")]
    least_alpha: str
    """The quantity whose error α bounds; empty if α bounds the error of each answer."""
    counted: str
    """The number of rows of one person that count, in words; empty without a bound."""
    warning: str | None
    attributes: list[str] | None
    """The compared attributes; null if the source is no table."""
    mechanisms: list[MechanismRow]
