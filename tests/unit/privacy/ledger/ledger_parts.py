"""Builds sources, streams and ledgers for the tests of the ledger; encodes and restores its changelog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas import MAX_DEFINITION_BYTES, LedgerRecord, Source, StreamIdentity, StreamSpec, ValuesSource
from schemas.wire import Codec
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.ledger_records import restore_ledger
from stream.privacy.ledger.state_machine import Ledger
from tests import builders

codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_DEFINITION_BYTES)


def source(name: str = "feed", *, epsilon: float = 1.0, **changes: Any) -> ValuesSource:
    found: ValuesSource = builders.parse_source(builders.source(name, epsilon=epsilon, **changes))
    return found


def spec(name: str, source_name: str = "feed", *, epsilon: float = 0.1, **fields: Any) -> StreamSpec:
    return builders.parse_spec(stream=name, source=source_name, epsilon=epsilon, **fields)


def identity(number: int) -> StreamIdentity:
    return StreamIdentity(incarnation=f"{number:032x}", digest="0" * 64, key_id="0" * 16)


def reserve(ledger: Ledger, asked: StreamSpec, number: int = 0) -> Grant:
    return ledger.reserve(asked, builders.calibration(asked), identity(number))


def ledger_with(*sources: Source) -> Ledger:
    ledger = Ledger()
    for one in sources:
        ledger.register(one, None)
    return ledger


def records_of(ledger: Ledger) -> list[bytes]:
    """Return the records of a compacted changelog: the last one of each source and of each grant."""
    sources = [codec.encode(account.to_record()) for account in ledger.accounts.values()]
    grants = [
        codec.encode(account.grant_record(grant))
        for account in ledger.accounts.values()
        for grant in account.grants.values()
    ]
    return sources + grants


def ledger_from_records(records: Iterable[bytes]) -> Ledger:
    """Return the ledger that these changelog records, the last of each key, restore."""
    ledger = Ledger()
    restore_ledger(ledger, [codec.decode(record) for record in records])
    return ledger
