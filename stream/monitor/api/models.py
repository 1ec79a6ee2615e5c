"""What the monitor's HTTP API answers, here and in the modules whose names end in ``_models``. The OpenAPI document is made from them.

All times are seconds since the epoch, all rates are per second, and all figures are totals, never increments.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas import Amount, Calibration, Position, StreamSpec, StreamState

AccessRole = Literal["viewer", "analyst", "operator"]
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

Time = Annotated[float, Field(description="Seconds since the epoch.")]


class View(BaseModel):
    """What the API answers: immutable, with no fields beside those declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Health(View):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Readiness(View):
    """Whether the tables hold everything that was committed when the monitor started."""

    ready: bool
    behind: Annotated[int, Field(description="Offsets still to be read before it is ready.")]
    reason: str | None = None


class Session(View):
    """Who asks."""

    name: str
    role: AccessRole
    expires: Annotated[Time | None, Field(description="When the token ends; null for never.")]
    asks: Annotated[bool, Field(description="Whether this monitor asks streams for those whose tokens may.")]


class Rate(View):
    """Charged answers (``above``) and free ones (``below``) per second, over the last ``window_seconds``."""

    window_seconds: int
    above: float
    below: float


class StreamCounts(View):
    """How many streams are in each state."""

    open: int = 0
    exhausted: int = 0
    halted: int = 0
    closed: int = 0


class TrafficPoint(View):
    """Totals over all streams at a time."""

    time: Time
    answered: int
    tops: int


class Overview(View):
    """The installation at a glance."""

    time: Time
    ready: bool
    sources: int
    sources_halted: int
    streams: StreamCounts
    nearly_dry: Annotated[int, Field(description="Open streams with at most 10 % of their charged answers left.")]
    answered: int
    tops: int
    rates: list[Rate]
    history: Annotated[list[TrafficPoint], Field(description="Oldest first, since the monitor started.")]
    rejected: int
    workers: int
    lag: Annotated[int | None, Field(description="Queries not yet answered; null before it is known.")]


class Periods(View):
    """What a source or a stream has in the periods of its live topic: how many there are by now, and the name of the latest."""

    count: int
    latest: str


class SourceRow(View):
    """A source with its budget: ``left`` = ``total`` − ``granted`` + ``refunded``; where it renews, what is left of the period's.

    A source with periods spends nothing itself: ``current`` is the account of the latest one. ``of`` lists them all.
    """

    source: str
    kind: str
    version: Annotated[int | None, Field(description="Version of its data; null for what is no table.")]
    neighbors: Literal["add-remove", "replace"]
    accountant: Literal["pure", "zcdp"]
    state: Literal["open", "halted"]
    reason: str | None
    total: Amount
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    left_share: Annotated[float, Field(description="What is left, as a share of the total: 0 to 1.")]
    population: Annotated[
        str | None, Field(description="The people whom it is about, if they have a budget of their own.")
    ]
    renews: Annotated[
        str | None, Field(description="How long a period of the budget is, as in 30d; null for ever.")
    ]
    renews_at: Annotated[Time | None, Field(description="When the next period begins.")]
    meaning: Annotated[str, Field(description="What the budget promises, in plain words.")]
    streams: StreamCounts
    updated: Time
    period: Annotated[
        str | None, Field(description="How long a period of a live topic is, each with an account of its own.")
    ] = None
    period_of: Annotated[str | None, Field(description="Whose period it is the account of.")] = None
    starts: Annotated[str | None, Field(description="When that period begins.")] = None
    periods: Annotated[Periods | None, Field(description="The accounts of its periods.")] = None
    current: Annotated[SourceRow | None, Field(description="The account of the latest of them.")] = None


class SourcePage(View):
    """Some of the sources that match, in the order asked for; of periods only the latest, under its source, unless they are asked for."""

    total: int
    matching: int
    offset: int
    items: list[SourceRow]


class PromiseParts(View):
    """One bound on a stream's error, as a sentence: ``before`` α ``after`` with ``probability`` ``over``; ``remark``; ``warning``."""

    before: str
    alpha: float
    after: str
    over: str
    probability: float
    remark: str
    warning: Annotated[str, Field(description="Empty, or that a constant answer would keep it.")]


class StreamRow(View):
    """A stream: what it promises, what it has used, and how fast."""

    stream: str
    source: str
    mechanism: str
    state: StreamState
    ending: Annotated[
        Literal["halted", "closed"] | None, Field(description="Asked for; final once ``state`` says so.")
    ]
    reason: str | None
    refused: Annotated[
        str | None,
        Field(description="Why its worker does not answer for it, though it is open; as of ``updated``."),
    ]
    at_refresh: Annotated[
        Literal["continues", "closes"] | None,
        Field(
            description="What becomes of it when its source, if that is a table, is refreshed; null where it has ended or is to."
        ),
    ]
    answered: int
    tops: Annotated[int, Field(description="Charged answers so far.")]
    cutoff: Annotated[int | None, Field(description="Charged answers that the grant pays for; null for no limit.")]
    added: Annotated[int, Field(description="How many of these were added by extensions.")]
    tops_left: int | None
    alpha: float
    beta: float
    expected_queries: int
    asked: Annotated[Amount, Field(description="ε and δ as the stream was asked for.")]
    promises: Annotated[
        list[PromiseParts], Field(description="What it promises of its accuracy, all of it together.")
    ]
    cost: Amount
    spent: Amount
    refunded: Amount
    rates: list[Rate]
    dry_in: Annotated[
        float | None,
        Field(
            description="Seconds until no charged answer is left at the last ten minutes' rate; null if there is no end in sight."
        ),
    ]
    opened: Time | None
    updated: Annotated[Time | None, Field(description="When the last answer, charge or digest was written.")]
    last_answered: Annotated[
        Time | None, Field(description="When its last answer was first heard of; null if there is none.")
    ]
    period_of: Annotated[str | None, Field(description="Which stream it stands for in one period.")] = None
    starts: Annotated[str | None, Field(description="When that period begins.")] = None
    periods: Annotated[Periods | None, Field(description="The streams that stand for it in periods.")] = None
    current: Annotated[
        StreamRow | None,
        Field(description="The one in the latest period: the stream itself is not asked and spends nothing."),
    ] = None


class StreamPage(View):
    """Some of the streams that match, in the order asked for; of periods only the latest, under its stream, unless they are asked for."""

    total: int
    matching: int
    offset: int
    items: list[StreamRow]


class TimelinePoint(View):
    """A stream's totals at a time."""

    time: Time
    answered: int
    tops: int


class StreamDetail(View):
    """One stream with its definition and the timeline of its charged answers, oldest first."""

    row: StreamRow
    source_kind: Annotated[str | None, Field(description="Of which kind its source is, as registered.")]
    spec: StreamSpec
    calibration: Calibration
    incarnation: str
    position: Annotated[Position | None, Field(description="The last query that it answered, as last shown.")]
    timeline: list[TimelinePoint]
    standing: Annotated[
        str | None, Field(description="What it asks of each window of its live topic, in words; null elsewhere.")
    ]
    windows: Annotated[
        int | None, Field(description="Over how many windows its promise holds; null where no windows ask it.")
    ]
    period: Annotated[
        str | None,
        Field(description="The length of the periods in each of which that holds anew; null without periods."),
    ]


class Plan(View):
    """What opening a stream would give and cost now. Nothing is reserved."""

    calibration: Calibration
    cost: Amount
    left: Amount
    affordable: bool
    promises: Annotated[
        list[PromiseParts], Field(description="What it would promise of its accuracy, as streams do.")
    ]
    windows: Annotated[
        int | None, Field(description="Over how many windows that would hold; null where no windows ask it.")
    ]
    period: Annotated[
        str | None,
        Field(description="The length of the periods in each of which that holds anew; null without periods."),
    ]


class FieldProblem(View):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(View):
    """Why a request was not served.

    What is said of ``fields`` quotes none of their values; ``message`` may quote names, refused figures, and what cannot be asked
    in a statement.
    """

    status: int
    code: ProblemCode
    message: str
    fields: list[FieldProblem] = []
    asked: Amount | None = None
    left: Amount | None = None
