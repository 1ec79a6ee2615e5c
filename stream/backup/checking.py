"""Whether a backup is whole, and its ledger follows from its trail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas import MAX_RECORD_BYTES, LedgerRecord, TrailHead
from schemas.wire import Codec
from stream.backup.files import BackupError, BackupFile, Ending
from stream.processors.budget.verification import TrailCheck
from stream.processors.receipts import RECEIPT_PREFIX
from stream.processors.trails import BrokenTrailError

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


@dataclass(frozen=True)
class Checked:
    """A backup that is whole: its last line, its accounts, what is wrong with them and the trail, and what a noted head misses."""

    ending: Ending
    accounts: list[LedgerRecord]
    findings: list[str]
    missing: list[str]


def check_backup(backup: BackupFile, noted: Iterable[TrailHead] = ()) -> Checked:
    """Read a backup once; BackupError if it is not what was written."""
    check = TrailCheck(noted)
    latest: dict[bytes, bytes | None] = {}
    broken: BrokenTrailError | None = None
    for record in backup.records():
        if record.topic == "ledger" and not record.key.startswith(RECEIPT_PREFIX):
            latest[record.key] = record.value
        elif record.topic == "trail" and broken is None:
            try:
                check.take(record.value)
            except BrokenTrailError as error:
                broken = error
    if backup.ending is None:
        raise BackupError(f"{backup.path} is cut off; take another copy")
    accounts = [_ledger.decode(value) for value in latest.values() if value is not None]
    findings = [str(broken)] if broken is not None else [*check.findings(), *check.compared(accounts)]
    return Checked(backup.ending, accounts, findings, check.missing())
