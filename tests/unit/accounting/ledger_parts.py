"""Sources, streams and their calibrations for the ledger's tests, and the ledger's own way through the changelog."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

from schemas import (
    MAX_DEFINITION_BYTES,
    LedgerRecord,
    Source,
    SparseVectorCalibration,
    StreamIdentity,
    StreamSpec,
    ValuesSource,
)
from schemas.wire import Codec
from stream.accounting.grants import Grant
from stream.accounting.ledger import Ledger
from stream.accounting.plans import choose
from stream.accounting.restoring import restore
from stream.accounting.setting import Setting

codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_DEFINITION_BYTES)


def source(name: str = "feed", **changes: Any) -> ValuesSource:
    fields = {"kind": "values", "source": name, "neighbors": "replace", "epsilon": 1.0, "sensitivity": 1.0}
    return ValuesSource.model_validate({**fields, **changes})


def spec(
    stream: str,
    source_name: str = "feed",
    *,
    epsilon: float = 0.1,
    delta: float = 0.0,
    cutoff: int = 1,
    calibration: Literal["best", "textbook"] = "best",
) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "stream": stream,
            "source": source_name,
            "mechanism": {"kind": "above_threshold", "threshold": 0.0, "cutoff": cutoff},
            "epsilon": epsilon,
            "delta": delta,
            "calibration": calibration,
        }
    )


@lru_cache
def calibration_of(asked: StreamSpec) -> SparseVectorCalibration:
    found = choose(asked, Setting())
    assert isinstance(found, SparseVectorCalibration)
    return found


def identity(number: int) -> StreamIdentity:
    return StreamIdentity(incarnation=f"{number:032x}", digest="0" * 64, key_id="0" * 16)


def reserve(ledger: Ledger, asked: StreamSpec, number: int = 0) -> Grant:
    return ledger.reserve(asked, calibration_of(asked), identity(number))


def ledger_with(*sources: Source) -> Ledger:
    ledger = Ledger()
    for one in sources:
        ledger.register(one, None)
    return ledger


def records_of(ledger: Ledger) -> list[bytes]:
    """What the changelog holds of a ledger: the last record of each source and of each grant."""
    sources = [codec.encode(account.record()) for account in ledger.accounts.values()]
    grants = [
        codec.encode(account.grant_record(grant))
        for account in ledger.accounts.values()
        for grant in account.grants.values()
    ]
    return sources + grants


def restored(records: Iterable[bytes]) -> Ledger:
    """A ledger from changelog records in any order, of which the later ones count."""
    ledger = Ledger()
    restore(ledger, [codec.decode(record) for record in records])
    return ledger
