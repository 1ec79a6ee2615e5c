"""The contract: every event on every topic, as immutable pydantic models."""

from schemas.answers import (
    INDEPENDENCE,
    TOO_MANY_TEXTS,
    Answer,
    Interval,
    MemberStatus,
    Outcome,
    PartitionStatus,
    RejectedHeaders,
    StreamStatus,
    TextInterval,
    answer_codec,
    status_codec,
)
from schemas.base import (
    FIRST_VERSION,
    MAX_ANSWER_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    Amount,
    Event,
    Position,
)
from schemas.calibrations import (
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    Method,
    ReleaseCalibration,
    RunningCountCalibration,
    SparseVectorCalibration,
    UnknownGroupsCalibration,
)
from schemas.changelogs import (
    Charge,
    Checkpoint,
    FeedProgress,
    FeedStream,
    FirstWindow,
    HypothesisUpdate,
    Measurement,
    MergedStream,
    NodeSums,
    Partial,
    Progress,
    ReleasedTexts,
    StreamState,
    TextTotals,
    charge_codec,
)
from schemas.domains import Bins, Categories, Dates, Decimals, Domain, Integers, Numeric
from schemas.ledger import (
    AllotmentRecord,
    ComparedMechanism,
    ExactCost,
    GrantRecord,
    LedgerProgress,
    LedgerRecord,
    PopulationRecord,
    Receipt,
    RetiredClaim,
    RetiredNames,
    RetiredTotals,
    SourceRecord,
    Totals,
    TrailBeginning,
    TrailEvent,
    TrailHead,
    TrailPoint,
    TrailRecord,
    TrailRequest,
    TrailRestored,
    TrailStanding,
    WaitingRequest,
    ledger_codec,
    receipt_codec,
    trail_codec,
)
from schemas.mechanisms import (
    MAX_CATEGORIES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_UNIVERSE,
    AboveThreshold,
    Auto,
    Exponential,
    Histogram,
    Laplace,
    LazyHistogram,
    Mechanism,
    NoisyMax,
    NumericSparse,
    Pmw,
    RandomizedResponse,
    RequestedMechanism,
    RunningCount,
    SparsePmw,
    SparseProject,
    UnknownGroups,
)
from schemas.queries import MAX_PREDICATE_LENGTH, Candidate, Cell, Form, Group, Query, Term, form_of, query_codec
from schemas.requests import (
    Allot,
    BeginPeriod,
    CloseStream,
    ExtendStream,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpenStream,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    Request,
    request_codec,
    subject_of,
)
from schemas.sources import (
    MAX_TEXTS,
    EdgeTotals,
    EventsSource,
    Period,
    Population,
    RecordsSource,
    Source,
    Standing,
    TableSource,
    Text,
    ValuesSource,
    period_name,
    registered_name,
    split_period_name,
)
from schemas.streams import (
    MAX_GROUPS,
    Control,
    Extension,
    Extensions,
    OpeningSpec,
    RetiredAnswer,
    RetiredStreams,
    StandingQuery,
    StreamClosed,
    StreamHalted,
    StreamIdentity,
    StreamOpened,
    StreamSpec,
    SumOf,
    control_codec,
    retired_streams_codec,
)
from schemas.table_places import Address, ColumnKind, View, ViewTable
from schemas.windows import Window, Windows, format_moment, moment_ms, span_ms

__all__ = [
    "FIRST_VERSION",
    "MAX_ANSWER_BYTES",
    "MAX_CATEGORIES",
    "MAX_DEFINITION_BYTES",
    "MAX_EVENT_BYTES",
    "answer_codec",
    "charge_codec",
    "control_codec",
    "ledger_codec",
    "query_codec",
    "receipt_codec",
    "request_codec",
    "retired_streams_codec",
    "status_codec",
    "trail_codec",
]
__all__ += ["MAX_GROUPS", "MAX_PREDICATE_LENGTH", "MAX_RECORD_BYTES", "MAX_UNIVERSE", "AboveThreshold"]
__all__ += ["INDEPENDENCE", "TOO_MANY_TEXTS"]
__all__ += ["Address", "Allot", "AllotmentRecord", "Amount", "Answer", "AnswersCalibration", "BeginPeriod"]
__all__ += ["Bins", "Calibration", "Candidate", "Categories", "Cell", "Charge", "Checkpoint", "CloseStream"]
__all__ += ["Dates", "Decimals", "Numeric"]
__all__ += ["Control", "Domain", "EdgeTotals", "EstimateCalibration", "Event", "EventsSource", "Exponential"]
__all__ += ["ExtendStream", "Extension", "Extensions", "FeedProgress", "FeedStream", "FirstWindow", "Form"]
__all__ += ["GrantRecord", "Group", "HaltSource", "HaltStream", "Histogram", "HypothesisCalibration"]
__all__ += [
    "HypothesisUpdate",
    "Integers",
    "Interval",
    "JoinPopulation",
    "Laplace",
    "LazyHistogram",
    "LedgerProgress",
]
__all__ += ["LedgerRecord", "Measurement", "Mechanism", "MemberStatus", "MergedStream", "Method", "NodeSums"]
__all__ += ["NoisyMax", "NumericSparse", "OpenStream", "Outcome", "Partial", "PartitionStatus", "Period"]
__all__ += ["Pmw", "Population", "PopulationRecord", "Position", "Progress", "Query", "RandomizedResponse"]
__all__ += ["Receipt", "RecordsSource", "RefreshSource", "RegisterPopulation", "RegisterSource"]
__all__ += [
    "RejectedHeaders",
    "ReleaseCalibration",
    "ReleasedTexts",
    "Request",
    "RunningCount",
    "RunningCountCalibration",
]
__all__ += ["Source", "SourceRecord", "SparsePmw", "SparseProject", "SparseVectorCalibration", "Standing"]
__all__ += ["StandingQuery", "StreamClosed", "StreamHalted", "StreamIdentity", "StreamOpened", "StreamSpec"]
__all__ += ["StreamState", "StreamStatus", "SumOf", "TableSource", "Term", "Totals", "TrailBeginning"]
__all__ += ["TrailEvent", "TrailHead", "TrailPoint", "TrailRecord", "TrailRequest", "TrailRestored"]
__all__ += [
    "TrailStanding",
    "ValuesSource",
    "WaitingRequest",
    "Window",
    "Windows",
    "form_of",
    "moment_ms",
    "period_name",
]
__all__ += ["ExactCost", "RetiredAnswer", "RetiredClaim", "RetiredNames", "RetiredStreams", "RetiredTotals"]
__all__ += ["format_moment", "registered_name", "span_ms", "split_period_name", "subject_of"]
__all__ += [
    "MAX_KEYS",
    "MAX_KEY_BYTES",
    "MAX_TEXTS",
    "Text",
    "TextInterval",
    "TextTotals",
    "UnknownGroups",
    "UnknownGroupsCalibration",
]
__all__ += ["Auto", "ComparedMechanism", "OpeningSpec", "RequestedMechanism"]
__all__ += ["ColumnKind", "View", "ViewTable"]
