"""A backup's file: a line that says what it is, one line a record, and a line with how many there are and a digest over all.

Lines are JSON. Keys and values stand in them as they were written, byte for byte; a record without a value deletes its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import msgspec
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import MAX_RECORD_BYTES, LedgerRecord, TrailHead
from schemas.wire import UNREADABLE, Codec
from stream.budget.trail_verification import TrailCheck
from stream.processing.receipts import RECEIPT_PREFIX, BrokenTrailError

FORMAT: Final = "sotto-backup"
VERSION: Final = 1

TopicName = Literal["ledger", "trail", "state"]


class BackupError(RuntimeError):
    """A backup cannot be taken, read or brought back; the message says why and what to do."""


class BackupRecord(NamedTuple):
    """One record: its topic without the prefix, its partition, its key and its value."""

    topic: TopicName
    partition: int
    key: bytes
    value: bytes | None


class Heading(BaseModel):
    """What a file is, and of which installation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["sotto-backup"] = "sotto-backup"
    version: int = VERSION
    prefix: str
    partitions: int
    began: str
    """When it was begun, as ISO 8601 in UTC by the clock of the machine."""
    sotto: str
    """The version of Sotto that wrote it."""


class BackupEnd(BaseModel):
    """What must be there: the records of each topic, up to which offsets they were read, where the trail ends, and the digest.

    The digest is BLAKE3 over all lines before this one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    records: dict[TopicName, int]
    offsets: dict[str, int]
    head: TrailHead
    digest: str


class BackupWriter:
    """Writes a backup record by record; nothing is held in memory."""

    def __init__(self, file: IO[bytes], heading: Heading) -> None:
        self._file = file
        self._digest = blake3()
        self.records: dict[TopicName, int] = {"ledger": 0, "trail": 0, "state": 0}
        self._line(heading.model_dump_json().encode())

    def write(self, record: BackupRecord) -> None:
        """Write one record."""
        try:
            value = None if record.value is None else record.value.decode()
            line = msgspec.json.encode([record.topic, record.partition, record.key.decode(), value])
        except UnicodeDecodeError:
            raise BackupError(
                f"{record.topic}: a record is no text; somebody beside Sotto writes there, see 'sotto topics acl'"
            ) from None
        self._line(line)
        self.records[record.topic] += 1

    def end(self, offsets: dict[str, int], head: TrailHead) -> BackupEnd:
        """Write the last line, without which a file is not whole."""
        ending = BackupEnd(records=self.records, offsets=offsets, head=head, digest=self._digest.hexdigest())
        self._file.write(ending.model_dump_json().encode() + b"\n")
        return ending

    def _line(self, line: bytes) -> None:
        self._digest.update(line + b"\n")
        self._file.write(line + b"\n")


_decode_record: Any = msgspec.json.Decoder(tuple[TopicName, int, str, str | None]).decode


class BackupFile:
    """A backup that is read, as often as need be; ``ending`` is there once all records have been read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ending: BackupEnd | None = None
        with _opened(path) as file:
            self.heading = _heading(path, file.readline())

    def records(self) -> Iterator[BackupRecord]:
        """All records in order.

        Raises:
            BackupError: the file is not what was written: cut off, changed, or longer.
        """
        counts: dict[TopicName, int] = {"ledger": 0, "trail": 0, "state": 0}
        digest, line = blake3(), b""
        with _opened(self.path) as file:
            for number, following in enumerate(file, 1):
                if number > 2:
                    record = self._record(line, number - 1)
                    counts[record.topic] += 1
                    yield record
                digest.update(line)
                line = following
        try:
            ending = BackupEnd.model_validate_json(line)
        except ValidationError:
            raise BackupError(f"{self.path} is cut off: its last line is missing; take another copy") from None
        if ending.records != counts or ending.digest != digest.hexdigest():
            raise BackupError(f"{self.path} was changed: its digest is another; take another copy")
        self.ending = ending

    def _record(self, line: bytes, number: int) -> BackupRecord:
        try:
            topic, partition, key, value = _decode_record(line)
        except UNREADABLE:
            raise BackupError(f"{self.path} was changed: line {number} is no record; take another copy") from None
        return BackupRecord(topic, partition, key.encode(), None if value is None else value.encode())


def is_backup(path: Path) -> bool:
    """Whether a file says that it is a backup, of whatever version."""
    with _opened(path) as file:
        return file.read(64).startswith(b'{"format":"sotto-backup"')


def _heading(path: Path, line: bytes) -> Heading:
    try:
        plain = msgspec.json.decode(line)
    except UNREADABLE:
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise BackupError(f"{path} is no backup; give a file that 'sotto ledger export' wrote")
    if plain.get("version") != VERSION:
        raise BackupError(f"{path} has the form of another version; use the version of Sotto that wrote it")
    try:
        return Heading.model_validate_json(line)
    except ValidationError:
        raise BackupError(
            f"{path} was changed: its first line is not what was written; take another copy"
        ) from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from None


_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


@dataclass(frozen=True)
class Checked:
    """A backup that is whole: its last line, its accounts, what is wrong with them and the trail, and what a noted head misses."""

    ending: BackupEnd
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
