"""Models of the monitor's HTTP API; the OpenAPI document quotes their docstrings.

Times are seconds since the epoch, rates are per second, and figures are totals, never increments.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from schemas import Address, Amount, Calibration, Position, StreamSpec, StreamState, format_moment
from stream.privacy.planning.promises import Promise

AccessRole = Literal["viewer", "analyst", "operator"]
"""Each role has the rights of all earlier ones."""
ViewName = Literal[
    "overview",
    "sources",
    "budget",
    "streams",
    "stream",
    "rejected",
    "workers",
    "spending",
    "trail",
    "populations",
    "population",
    "allotments",
    "alerts",
    "refusals",
]

ProblemCode = Literal[
    "malformed",
    "unauthorized",
    "forbidden",
    "not-found",
    "method-not-allowed",
    "too-large",
    "too-many-requests",
    "refused",
    "unavailable",
    "internal",
]

MAX_PAGE = 500
"""Maximum number of items of one page."""

Time = Annotated[float, Field(description="Seconds since the epoch.")]
Name = Annotated[str, StringConstraints(max_length=128)]
"""A parameter that is a name or a part of a name."""


class ApiModel(BaseModel):
    """Base of all models of the API: immutable, without extra fields.

    A long description of a field is the docstring below it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @classmethod
    def from_record(cls, record: object, **figures: Any) -> Self:
        """Return a view with ``figures``; its other fields are copied from the record by name."""
        names = (name for name in cls.model_fields if name not in figures and hasattr(record, name))
        return cls(**{name: getattr(record, name) for name in names}, **figures)


class Parameters(ApiModel):
    """Base of the parameters of a route, which are text."""

    model_config = ConfigDict(strict=False)


class Health(ApiModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Readiness(ApiModel):
    """The state of the start: ``ready`` is true if the monitor has read all records from before its start."""

    ready: bool
    behind: Annotated[int, Field(description="Number of offsets to read before it is ready.")]
    reason: str | None = None


class Session(ApiModel):
    """The name, role and token of the user."""

    name: str
    role: AccessRole
    expires: Annotated[Time | None, Field(description="Expiry time of the token; null if it does not expire.")]
    asks: bool
    """True if this monitor accepts questions; the user's role must allow them too."""


class Rate(ApiModel):
    """Charged (``above``) and other answers (``below``) per second, over the last ``window_seconds``."""

    window_seconds: int
    above: float
    below: float


class StreamCounts(ApiModel):
    """Number of streams in each state."""

    open: int = 0
    exhausted: int = 0
    halted: int = 0
    closed: int = 0


class TrafficPoint(ApiModel):
    """Totals over all streams at a time."""

    time: Time
    answered: int
    tops: int


class StalledSource(ApiModel):
    """A live topic with open streams whose next window should have been answered by now."""

    source: str
    since: Time | None
    """End of the last answered window, or time of the last answer; null before any."""
    feed_runs: Annotated[bool, Field(description="True if a feed process runs.")]

    def describe(self) -> str:
        """Say since when no window was answered, and what may be the cause, as the page does."""
        last = (
            "not asked yet" if self.since is None else f"not asked since {format_moment(round(1000 * self.since))}"
        )
        cause = (
            "feed or workers are behind, or refuse the topic: see their logs" if self.feed_runs else "no feed runs"
        )
        return f"{self.source}: {last}, {cause}"


HiddenLag = Annotated[
    int,
    Field(
        description="Number of offsets that are not in `lag` but may be waiting questions: after a halted question, the end of a feed's transaction cannot be distinguished from a question."
    ),
]


class Overview(ApiModel):
    """A summary of the installation."""

    time: Time
    ready: bool
    sources: int
    sources_halted: int
    streams: StreamCounts
    nearly_dry: int
    """Number of open streams with at most 10 % of their charged answers left."""
    answered: int
    tops: int
    rates: list[Rate]
    history: Annotated[list[TrafficPoint], Field(description="Oldest first, since the monitor started.")]
    rejected: int
    workers: int
    budget_runs: Annotated[bool, Field(description="False if no budget service runs.")] = True
    not_ready: Annotated[
        list[str], Field(description="Processes whose /readyz is 503; 'workers' has the reasons.")
    ] = []
    lag: int | None
    """Number of unprocessed offsets: questions, and the ends of feeds' transactions between them; null while unknown."""
    hidden_lag: HiddenLag = 0
    stalled: list[StalledSource] = []
    """Live topics whose next window should have been answered by now."""


class Periods(ApiModel):
    """The periods of a source or stream: their number, and the name of the latest."""

    count: int
    latest: str


class SourceRow(ApiModel):
    """A source with its budget: ``left`` = ``total`` − ``granted`` + ``refunded``, per period if it renews.

    The budget of a source with periods is spent by accounts: each period has an account, and ``current``
    is the latest. The parameter ``of`` of the list returns all accounts of a source.
    """

    source: str
    kind: str
    version: Annotated[int | None, Field(description="Version of its data; null for sources that are not tables.")]
    neighbors: Literal["add-remove", "replace"]
    accountant: Literal["pure", "zcdp"]
    state: Literal["open", "halted"]
    reason: str | None
    total: Amount
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    left_share: Annotated[float, Field(description="Remaining share of the total: 0 to 1.")]
    population: Annotated[str | None, Field(description="The population that it belongs to, if any.")]
    population_left_share: float | None
    """Remaining share of its population's budget, which pays for its streams too."""
    renews: str | None
    """Length of the budget's period, for example 30d; null without renewal."""
    renews_at: Annotated[Time | None, Field(description="Start of the next period.")]
    meaning: Annotated[str, Field(description="The budget's guarantee as a sentence.")]
    streams: StreamCounts
    updated: Time
    period: str | None = None
    """Length of a live topic's periods, each with its own account."""
    period_of: str | None = None
    """The source, if this is the account of one of its periods."""
    starts: Annotated[str | None, Field(description="Start of that period.")] = None
    periods: Annotated[Periods | None, Field(description="Its periods' accounts.")] = None
    current: Annotated[SourceRow | None, Field(description="The account of the latest period.")] = None


class SourcePage(ApiModel):
    """A page of the matching sources; each source includes only its latest period."""

    total: int
    matching: int
    offset: int
    items: list[SourceRow]


class StreamRow(ApiModel):
    """A stream: its error bound, its use and its rates."""

    stream: str
    source: str
    mechanism: str
    state: StreamState
    ending: Literal["halted", "closed"] | None
    """The requested end; final once ``state`` has this value."""
    reason: str | None
    refused: str | None
    """Reason why the worker of this open stream does not answer; as of ``updated``."""
    at_refresh: Literal["continues", "closes"] | None
    """Effect of a refresh of its table; null if it has ended or is ending."""
    answered: int
    tops: Annotated[int, Field(description="Number of charged answers so far.")]
    cutoff: int | None
    """Number of charged answers that the grant pays for; null if unlimited."""
    added: Annotated[int, Field(description="Number of charged answers that extensions added.")]
    tops_left: int | None
    alpha: float
    beta: float
    expected_queries: int
    asked: Annotated[Amount, Field(description="Requested ε and δ of the stream.")]
    promises: Annotated[tuple[Promise, ...], Field(description="All error bounds of the stream together.")]
    cost: Amount
    spent: Amount
    refunded: Amount
    rates: list[Rate]
    dry_in: float | None
    """Seconds until no charged answer is left, at the rate of the last ten minutes (or since the opening, if this was later); if each window is charged and the clock is the broker's, at the rate of the windows. Null if no end is in sight, or if fewer than five answers were charged in ten minutes, or all within a minute."""
    opened: Time | None
    updated: Annotated[Time | None, Field(description="Time of the last answer, charge or status record.")]
    last_answered: Time | None
    """Time at which the monitor first saw its last answer; null without answers."""
    period_of: str | None = None
    """The stream as opened, if this stream belongs to one of its periods."""
    starts: Annotated[str | None, Field(description="Start of that period.")] = None
    periods: Annotated[Periods | None, Field(description="Its periods' streams.")] = None
    current: StreamRow | None = None
    """The latest period's stream; the stream as opened is not asked and spends nothing."""


class StreamPage(ApiModel):
    """A page of the matching streams; each stream includes only its latest period."""

    total: int
    matching: int
    offset: int
    items: list[StreamRow]


class TimelinePoint(ApiModel):
    """A stream's totals at a time."""

    time: Time
    answered: int
    tops: int


class StreamDetail(ApiModel):
    """One stream with its definition and the timeline of its charged answers, oldest first."""

    row: StreamRow
    source_kind: Annotated[str | None, Field(description="Kind of its source, as registered.")]
    spec: StreamSpec
    calibration: Calibration
    incarnation: str
    position: Position | None
    """Position of the last query that the stream answered, as last reported."""
    timeline: list[TimelinePoint]
    standing: str | None
    """A standing stream's question about each window, in words; null for other streams."""
    first_answer: str | None
    """When the stream's first answer is expected; null without windows, and after the first answer."""
    missed_events: str | None
    """Which windows may lack events, in words; null if all windows are complete."""
    windows: int | None
    """Number of windows for which the error bound holds; null without windows."""
    period: str | None
    """Length of the periods, each with that number of windows; null without periods."""
    extension_price: float | None
    """ε of each charged answer of an extension; null if the stream cannot be extended."""


class ProposalRequest(ApiModel):
    """A table for which attributes are proposed."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]

    @field_validator("path")
    @classmethod
    def _require_readable_path(cls, path: str) -> str:
        Address.parse_table(path)
        return path


class ProposedAttributeView(ApiModel):
    """A proposed attribute, whose ``domain`` lacks the fields ``missing``.

    If the column cannot be an attribute, ``domain`` is null, and ``reason`` says why.
    """

    name: str
    domain: dict[str, Any] | None
    missing: list[str]
    unit: str | None
    description: str | None
    reason: str | None


class Proposal(ApiModel):
    """Proposed attributes for the columns of a table.

    ``read`` describes the data that was read; ``remark`` says that types are unknown, or is null.
    """

    read: str
    remark: str | None
    attributes: list[ProposedAttributeView]


class FieldProblem(ApiModel):
    """The problem of one field."""

    field: str
    message: str


class Problem(ApiModel):
    """The reason why a request failed.

    ``fields`` never quote values; ``message`` may quote names, refused numbers and parts of a
    statement.
    """

    status: int
    code: ProblemCode
    message: str
    fields: list[FieldProblem] = []
    asked: Amount | None = None
    left: Amount | None = None
