"""The codecs of events and records, each with the largest size that it accepts."""

from __future__ import annotations

from schemas.answers import Answer, StreamStatus
from schemas.base import MAX_ANSWER_BYTES, MAX_DEFINITION_BYTES, MAX_EVENT_BYTES, MAX_RECORD_BYTES
from schemas.changelogs import Charge
from schemas.ledger import LedgerRecord, Receipt, TrailRecord
from schemas.queries import Query
from schemas.requests import Request
from schemas.streams import Control, RetiredStreams
from schemas.wire import Codec

query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
answer_codec: Codec[Answer] = Codec(Answer, limit=MAX_ANSWER_BYTES)
request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)
retired_streams_codec: Codec[RetiredStreams] = Codec(RetiredStreams, limit=MAX_RECORD_BYTES)
ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
receipt_codec: Codec[Receipt] = Codec(Receipt, limit=MAX_RECORD_BYTES)
trail_codec: Codec[TrailRecord] = Codec(TrailRecord, limit=MAX_RECORD_BYTES)
status_codec: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)
