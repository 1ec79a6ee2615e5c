"""The contract: every event on every topic, as immutable pydantic models."""

from schemas.answers import Answer, Outcome
from schemas.base import MAX_DEFINITION_BYTES, MAX_EVENT_BYTES, MAX_RECORD_BYTES, Amount, Event, Position
from schemas.charges import Charge, StreamState
from schemas.checkpoints import Checkpoint, Progress
from schemas.control import Control, StreamClosed, StreamHalted, StreamOpened
from schemas.ledger import GrantRecord, LedgerRecord, Receipt, SourceRecord
from schemas.queries import MAX_PREDICATE_LENGTH, Query
from schemas.rejected import RejectedHeaders
from schemas.requests import CloseStream, HaltSource, HaltStream, OpenStream, RegisterSource, Request, subject_of
from schemas.sources import Bins, Categories, Domain, Integers, Source, TableSource, ValuesSource
from schemas.status import StreamStatus
from schemas.streams import AboveThreshold, Calibration, Mechanism, Method, StreamIdentity, StreamSpec

__all__ = [
    "MAX_DEFINITION_BYTES",
    "MAX_EVENT_BYTES",
    "MAX_PREDICATE_LENGTH",
    "MAX_RECORD_BYTES",
    "AboveThreshold",
    "Amount",
    "Answer",
    "Bins",
    "Calibration",
    "Categories",
    "Charge",
    "Checkpoint",
    "CloseStream",
    "Control",
    "Domain",
    "Event",
    "GrantRecord",
    "HaltSource",
    "HaltStream",
    "Integers",
    "LedgerRecord",
    "Mechanism",
    "Method",
    "OpenStream",
    "Outcome",
    "Position",
    "Progress",
    "Query",
    "Receipt",
    "RegisterSource",
    "RejectedHeaders",
    "Request",
    "Source",
    "SourceRecord",
    "StreamClosed",
    "StreamHalted",
    "StreamIdentity",
    "StreamOpened",
    "StreamSpec",
    "StreamState",
    "StreamStatus",
    "TableSource",
    "ValuesSource",
    "subject_of",
]
