"""Takes backups, and reads backup files: a heading, one line per record, and an end line with a digest.

Lines are JSON with keys and values byte for byte; a record without a value deletes its key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import msgspec
from aiokafka import TopicPartition
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import LedgerProgress, LedgerRecord, TrailHead, ledger_codec
from schemas.wire import DECODE_ERRORS
from stream import VERSION
from stream.budget.receipts import EMPTY_TRAIL_HEAD, RECEIPT_KEY_PREFIX, BrokenTrailError, check_next_entry
from stream.budget.trail_verification import TrailCheck
from stream.engine.restore import create_reader, read_to_end, require_visible
from stream.kafka.topic_creation import read_topics
from stream.processing.protocol import PROGRESS_KEY
from stream.processing.topic_names import Topics
from stream.settings import Settings

FORMAT: Final = "sotto-backup"
FORMAT_VERSION: Final = 1

TopicName = Literal["ledger", "trail", "state"]


class BackupError(RuntimeError):
    """A backup cannot be taken, read or restored; the message has the reason and remedy."""


class BackupRecord(NamedTuple):
    """One record: its topic without the prefix, its partition, its key and its value."""

    topic: TopicName
    partition: int
    key: bytes
    value: bytes | None


class Heading(BaseModel):
    """The heading: format, version and installation of a backup."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["sotto-backup"] = "sotto-backup"
    version: int = FORMAT_VERSION
    prefix: str
    partitions: int
    began: str
    """Start of the backup: ISO 8601 in UTC, by the machine's clock."""
    sotto: str
    """Version of Sotto that wrote the file."""


class BackupEnd(BaseModel):
    """The end line: number of records by topic, end offsets, trail head, and digest.

    The digest is BLAKE3 over all earlier lines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    records: dict[TopicName, int]
    offsets: dict[str, int]
    head: TrailHead
    digest: str


class BackupWriter:
    """Writes a backup record by record, without holding records in memory."""

    def __init__(self, file: IO[bytes], heading: Heading) -> None:
        self._file = file
        self._digest = blake3()
        self.record_counts: dict[TopicName, int] = {"ledger": 0, "trail": 0, "state": 0}
        self._write_line(heading.model_dump_json().encode())

    def write(self, record: BackupRecord) -> None:
        """Write one record."""
        try:
            value = None if record.value is None else record.value.decode()
            line = msgspec.json.encode([record.topic, record.partition, record.key.decode(), value])
        except UnicodeDecodeError:
            raise BackupError(
                f"{record.topic}: a record is not text; another program writes to this topic, see 'sotto topics acl'"
            ) from None
        self._write_line(line)
        self.record_counts[record.topic] += 1

    def write_end(self, offsets: dict[str, int], head: TrailHead) -> BackupEnd:
        """Write the end line, without which the file is incomplete."""
        ending = BackupEnd(records=self.record_counts, offsets=offsets, head=head, digest=self._digest.hexdigest())
        self._file.write(ending.model_dump_json().encode() + b"\n")
        return ending

    def _write_line(self, line: bytes) -> None:
        self._digest.update(line + b"\n")
        self._file.write(line + b"\n")


_decode_record: Any = msgspec.json.Decoder(tuple[TopicName, int, str, str | None]).decode


class BackupFile:
    """Reads a backup any number of times; ``ending`` is set after the first complete read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ending: BackupEnd | None = None
        with _open_file(path) as file:
            self.heading = _parse_heading(path, file.readline())

    def records(self) -> Iterator[BackupRecord]:
        """Yield all records in order; BackupError if the file is truncated or was changed."""
        counts: dict[TopicName, int] = {"ledger": 0, "trail": 0, "state": 0}
        digest, line = blake3(), b""
        with _open_file(self.path) as file:
            for number, following in enumerate(file, 1):
                if number > 2:
                    record = self._parse_record(line, number - 1)
                    counts[record.topic] += 1
                    yield record
                digest.update(line)
                line = following
        try:
            ending = BackupEnd.model_validate_json(line)
        except ValidationError:
            raise BackupError(f"{self.path} is cut off: its last line is missing; take another copy") from None
        if ending.records != counts or ending.digest != digest.hexdigest():
            raise BackupError(f"{self.path} was changed: its digest does not match; take another copy")
        self.ending = ending

    def _parse_record(self, line: bytes, number: int) -> BackupRecord:
        try:
            topic, partition, key, value = _decode_record(line)
        except DECODE_ERRORS:
            raise BackupError(
                f"{self.path} was changed: line {number} is not a record; take another copy"
            ) from None
        return BackupRecord(topic, partition, key.encode(), None if value is None else value.encode())


def is_backup(path: Path) -> bool:
    """Return whether a file is a backup of any version."""
    with _open_file(path) as file:
        return file.read(64).startswith(b'{"format":"sotto-backup"')


def _parse_heading(path: Path, line: bytes) -> Heading:
    try:
        plain = msgspec.json.decode(line)
    except DECODE_ERRORS:
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise BackupError(f"{path} is not a backup; give a file that 'sotto ledger export' wrote")
    if plain.get("version") != FORMAT_VERSION:
        raise BackupError(f"{path} has the format of another version; use the version of Sotto that wrote it")
    try:
        return Heading.model_validate_json(line)
    except ValidationError:
        raise BackupError(f"{path} was changed: its first line is invalid; take another copy") from None


def _open_file(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}; give a readable file") from None


@dataclass(frozen=True)
class CheckedBackup:
    """A verified backup.

    ``ledger_records`` are the ledger's latest records, ``findings`` the errors found. ``missing_heads`` has a
    finding for each trail head that the caller noted and that the backup's trail does not reach.
    """

    ending: BackupEnd
    ledger_records: list[LedgerRecord]
    findings: list[str]
    missing_heads: list[str]


def check_backup(
    backup: BackupFile, noted: Iterable[TrailHead] = (), note_head: Callable[[TrailHead], None] = lambda _: None
) -> CheckedBackup:
    """Read and verify a backup; call ``note_head`` with the trail's head after each entry.

    Raises:
        BackupError: the backup is truncated or was changed.
    """
    check = TrailCheck(noted)
    latest: dict[bytes, bytes | None] = {}
    broken: BrokenTrailError | None = None
    for record in backup.records():
        if record.topic == "ledger" and not record.key.startswith(RECEIPT_KEY_PREFIX):
            latest[record.key] = record.value
        elif record.topic == "trail" and broken is None:
            try:
                check.add_entry(record.value)
                note_head(check.head)
            except BrokenTrailError as error:
                broken = error
    if backup.ending is None:
        raise BackupError(f"{backup.path} is cut off; take another copy")
    ledger_records = [ledger_codec.decode(value) for value in latest.values() if value is not None]
    findings = [str(broken)] if broken is not None else [*check.findings(), *check.compare_ledger(ledger_records)]
    return CheckedBackup(backup.ending, ledger_records, findings, check.missing_heads())


async def take_backup(settings: Settings, file: IO[bytes]) -> BackupEnd:
    """Write all committed records to a file, with constant memory.

    Raises:
        BackupError: the ledger has no trail yet, or the trail is broken or ends before the head in the ledger.
    """
    # Any number of partitions is accepted, because a wrong number may be the reason for the backup.
    topics = (await read_topics(settings)).topics
    began = datetime.now(UTC).isoformat(timespec="seconds")
    heading = Heading(prefix=topics.prefix, partitions=topics.partitions, began=began, sotto=VERSION)
    writer = BackupWriter(file, heading)
    async with create_reader(settings) as consumer:
        backup_reader = _BackupReader(settings, topics, consumer)
        head = await backup_reader.copy_ledger(writer)
        await backup_reader.copy_trail(writer, head)
        await backup_reader.copy_state(writer)
    return writer.write_end(backup_reader.offsets, head)


class _BackupReader:
    """Reads the topics in turn; ``offsets`` has the end of each partition."""

    def __init__(self, settings: Settings, topics: Topics, consumer: Any) -> None:
        self.offsets: dict[str, int] = {}
        self._topics = topics
        self._consumer = consumer
        self._batch_size = settings.batch_events

    async def copy_ledger(self, writer: BackupWriter) -> TrailHead:
        """Copy the ledger; return the head of its trail."""
        progress = None
        async for record in self._read("ledger", 0):
            writer.write(record)
            if record.key == PROGRESS_KEY:
                progress = ledger_codec.decode(record.value)
        if not isinstance(progress, LedgerProgress) or progress.trail is None:
            raise BackupError(
                "the ledger has no trail yet; start this version's budget service and send it a request first"
            )
        return progress.trail

    async def copy_trail(self, writer: BackupWriter, head: TrailHead) -> None:
        """Copy the trail up to the entry that the ledger names as its head; a broken trail could not be imported."""
        copied = EMPTY_TRAIL_HEAD
        async for record in self._read("trail", 0):
            if copied.entries < head.entries:
                try:
                    copied, _ = check_next_entry(copied, record.value)
                except BrokenTrailError as broken:
                    raise BackupError(
                        f"trail: {broken}, so no backup of it could be imported; back up copies of the topics instead"
                    ) from None
                writer.write(record)
        if copied.entries < head.entries:
            raise BackupError(
                f"the trail ends after {copied.entries} entries, and the ledger knows of {head.entries}"
            )
        if copied.digest != head.digest:
            raise BackupError(
                f"trail: entry {head.entries - 1} is not the entry that the ledger names; back up copies of the topics instead"
            )

    async def copy_state(self, writer: BackupWriter) -> None:
        """Copy the workers' changelog."""
        for partition in range(self._topics.partitions):
            async for record in self._read("state", partition):
                writer.write(record)

    async def _read(self, name: TopicName, number: int) -> AsyncIterator[BackupRecord]:
        topic = getattr(self._topics, name)
        await require_visible(self._consumer, topic)
        partition = TopicPartition(topic, number)
        async for records in read_to_end(self._consumer, partition, self._batch_size, whole=True):
            for record in records:
                yield BackupRecord(name, number, record.key or b"", record.value)
        self.offsets[f"{name}/{number}"] = await self._consumer.position(partition)
