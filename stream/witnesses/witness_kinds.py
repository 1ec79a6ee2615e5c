"""The kinds of witnesses: owner-only files with or without time stamps, tables of PostgreSQL, and S3 buckets.

- A file has one anchor a line, appended and never changed.
- To a table of PostgreSQL the services may only append.
- A bucket has one object for each anchor, the newest first in a listing.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from schemas import Address
from stream.diagnostics import get_logger
from stream.optional_packages import (
    connect_to_postgresql,
    convert_postgresql_errors,
    convert_s3_errors,
    import_or_missing,
    s3_client,
)
from stream.secret_files import find_writable_folder, trusted_users
from stream.witnesses.anchor import (
    LARGEST_TIME,
    MAX_ANCHORS_READ,
    Anchor,
    DamagedWitnessError,
    TimeStampAuthority,
    TimeStampVerifier,
    Witness,
    WitnessError,
    newest_generation,
    parse_anchor,
    stamped_statement,
)

_FILE: Final = "file://"
_POSTGRESQL_PARTS: Final = 3


def open_witnesses(addresses: str) -> list[Witness]:
    """Return the witness of each address, separated by commas.

    Raises:
        WitnessError: a text is not the address of a witness; the message does not quote it.
    """
    return [
        _open_witness(address.strip(), number)
        for number, address in enumerate(addresses.split(","), 1)
        if address.strip()
    ]


def _open_witness(text: str, number: int) -> Witness:
    if text.startswith(_FILE):
        path = Path(text.removeprefix(_FILE))
        if not path.is_absolute() or text.endswith("/"):
            raise _address_error(
                number, "a file's address has no absolute path to a file; give file:///FOLDER/FILE"
            )
        return FileWitness(path)
    try:
        address = Address.parse_root(text)
    except ValueError as error:
        raise _address_error(number, f"{error}; a witness begins with file:///, s3:// or postgresql://") from None
    if address.scheme == "s3":
        return S3Witness(address)
    if len(address.parts) != _POSTGRESQL_PARTS or address.is_folder:
        raise _address_error(number, "names no table; give postgresql://HOST[:PORT]/DATABASE/SCHEMA/TABLE")
    return PostgresqlWitness(address)


def _address_error(number: int, problem: str) -> WitnessError:
    return WitnessError(f"SOTTO_WITNESSES: address {number}: {problem}")


_BLOCK_BYTES: Final = 16 << 20
"""Bytes of a block; blocks are read from the file's end backwards until one has an anchor."""
_CUT_OFF: Final = b"~"
"""Mark at the end of a line that a crash has cut off. Other lines that are no anchors are damaged."""
_MAX_NAMED: Final = 5
_SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening the file: links are not followed, and a pipe does not make the process wait."""


class FileWitness:
    """A file to which the services append; put it on storage to which Kafka's administrators cannot write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"file://{path}"

    def write(self, anchor: Anchor) -> None:
        """Append a line and wait until it is on the disk."""
        with self._as_witness_errors():
            is_new = not self._path.exists()
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFE_FLAGS, 0o600)
            try:
                size = self._require_protected(descriptor)
                # A crash may have cut off the last line. It stays, because the file may allow appending only.
                is_cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                line = (_CUT_OFF + b"\n") * is_cut_off + anchor.encode() + b"\n"
                if os.write(descriptor, line) < len(line):
                    raise WitnessError(f"{self.name}: the disk is full; make room")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                self._sync_folder()

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the last anchors; an empty list if the file does not exist yet.

        Raises:
            DamagedWitnessError: lines that were read are damaged.
        """
        found, damaged = list[Anchor](), set[bytes]()
        with self._as_witness_errors():
            try:
                opened = open(self._path, "rb", opener=_open_safely)  # noqa: SIM115  (closed below)
            except FileNotFoundError:
                if not self._path.parent.is_dir():
                    raise
                return []
            with opened as file:
                size = self._require_protected(file.fileno())
                for lines in _read_blocks_backwards(file, size):
                    anchors = (_parse_line(line, damaged) for line in reversed(lines))
                    own = (one for one in anchors if one is not None and one.installation == installation)
                    if found := list(islice(own, MAX_ANCHORS_READ)):
                        break
                self._require_undamaged(file, damaged, found)
        return found

    def read_all(self) -> list[Anchor]:
        """Return the anchors of all installations, the oldest first."""
        with self._as_witness_errors(), open(self._path, "rb", opener=_open_safely) as file:
            blocks = [*_read_blocks_backwards(file, self._require_protected(file.fileno()))]
            damaged = set[bytes]()
            anchors = [_parse_line(line, damaged) for block in reversed(blocks) for line in block]
            found = [one for one in anchors if one is not None]
            self._require_undamaged(file, damaged, found)
        return found

    def _require_undamaged(self, file: BinaryIO, damaged: Collection[bytes], found: list[Anchor]) -> None:
        if damaged:
            file.seek(0)
            numbers = [number for number, line in enumerate(file, 1) if line.rstrip(b"\n") in damaged]
            named = ", ".join(map(str, numbers[:_MAX_NAMED])) + ", …" * (len(numbers) > _MAX_NAMED)
            raise DamagedWitnessError(
                f"{self.name}: no anchor in line {named}, which is damaged; restore it from a copy, or remove it",
                found,
            )

    def _require_protected(self, descriptor: int) -> int:
        """Return the file's size; WitnessError if other users could change or replace the file."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WitnessError(f"{self.name}: is no regular file; give the path of a file")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise WitnessError(f"{self.name}: others may write to it; run 'chmod 600 {self._path}'")
        if status.st_uid not in trusted_users():
            raise WitnessError(
                f"{self.name}: belongs to another user (uid {status.st_uid}), who could change it; "
                f"run 'chown {os.geteuid()} {self._path}'"
            )
        if (folder := find_writable_folder(self._path)) is not None:
            raise WitnessError(f"{self.name}: others may write to {folder}; run 'chmod go-w {folder}'")
        return status.st_size

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _as_witness_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WitnessError(f"{self.name}: {error.strerror}; check its disk and folder") from None


def _open_safely(path: str, flags: int) -> int:
    return os.open(path, flags | _SAFE_FLAGS)


def _parse_line(line: bytes, damaged: set[bytes]) -> Anchor | None:
    anchor = parse_anchor(line.rstrip(_CUT_OFF))
    if anchor is None and line and not line.endswith(_CUT_OFF):
        damaged.add(line)
    return anchor


def _read_blocks_backwards(file: BinaryIO, end: int) -> Iterator[list[bytes]]:
    """Yield the lines of each block, the last block first; a line that is longer than a block is cut."""
    rest = _CUT_OFF  # A crash has cut off what follows the last newline.
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        lines = (file.read(end - start) + rest).split(b"\n")
        rest = lines.pop(0) if start > 0 else b""
        if not lines:  # The line is longer than a block, so it is no anchor, and is passed over.
            rest = _CUT_OFF
        yield lines
        end = start


_CONNECT_SECONDS: Final = 5


class PostgresqlWitness:
    """A table with the columns ``installation``, ``generation``, ``number`` (an identity) and ``anchor``."""

    def __init__(self, address: Address) -> None:
        """Raise Missing if the driver is not installed."""
        import_or_missing("adbc_driver_postgresql", "postgresql")
        self._address = address
        _database, *relation = address.parts
        # The parts of an address contain no quotes, so none must be escaped.
        self._table = ".".join(f'"{part}"' for part in relation)
        self.name = f"postgresql://{address.host}:{address.port}/{'/'.join(address.parts)}"

    def write(self, anchor: Anchor) -> None:
        """Insert a row, and wait until it is on the server's disk."""
        with self._connect() as connection, connection.cursor() as cursor:
            # A server may have turned synchronous commits off for other applications.
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute(
                f"INSERT INTO {self._table} (installation, generation, anchor) VALUES ($1, $2, $3)",  # noqa: S608  (the name is quoted)
                (anchor.installation, anchor.generation, anchor.encode().decode()),
            )
            connection.commit()

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the newest anchors; the newest generation comes first (see ``anchor``)."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT anchor FROM {self._table} WHERE installation = $1 "  # noqa: S608  (the name is quoted)
                f"ORDER BY generation DESC, number DESC LIMIT {MAX_ANCHORS_READ}",
                (installation,),
            )
            texts = [text for (text,) in cursor.fetchall()]
        found = [anchor for text in texts if (anchor := parse_anchor(text)) is not None]
        if len(found) < len(texts):
            raise WitnessError(f"{self.name}: {len(texts) - len(found)} rows are no anchors; remove them")
        return found

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """Open a connection; errors of the driver become WitnessError."""
        with (
            convert_postgresql_errors(lambda cause: WitnessError(f"{self.name}: {cause}")),
            connect_to_postgresql(self._address, _CONNECT_SECONDS) as connection,
        ):
            yield connection


_OBJECTS_READ: Final = 10
"""Maximum number of anchors that are read from a bucket; each takes a request."""
_LARGEST_OBJECT: Final = 1 << 20
"""Size of the largest object that is read, in bytes."""
_LARGEST_GENERATION: Final = 9_999

log = get_logger("witness")


class S3Witness:
    """A folder of a bucket; the bucket's Object Lock keeps its anchors from being changed by anyone."""

    def __init__(self, address: Address) -> None:
        """Raise Missing if boto3 is not installed."""
        import_or_missing("boto3", "s3")
        self._bucket = address.host
        self._folder = "".join(f"{part}/" for part in address.parts)
        self._lock_is_checked = False
        self.name = f"s3://{self._bucket}/{self._folder}"

    def write(self, anchor: Anchor) -> None:
        """Put an object under a new key; the bucket's default retention applies to it."""
        with self._as_witness_errors():
            self._check_lock()
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._key(anchor),
                Body=anchor.encode(),
                ContentType="application/json",
                ChecksumAlgorithm="SHA256",  # Object Lock requires a checksum
            )

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the anchors of the first keys, which are the newest.

        Raises:
            DamagedWitnessError: objects that were read are no anchors.
        """
        found, others = list[Anchor](), list[str]()
        with self._as_witness_errors():
            listed = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=f"{self._folder}{installation}/", MaxKeys=MAX_ANCHORS_READ
            )
            for one in listed.get("Contents", ()):
                anchor = None
                if one["Size"] <= _LARGEST_OBJECT:
                    found_object = self._client.get_object(Bucket=self._bucket, Key=one["Key"])
                    anchor = parse_anchor(found_object["Body"].read())
                if anchor is None or anchor.installation != installation:
                    others.append(one["Key"])
                    continue
                found.append(anchor)
                if len(found) == _OBJECTS_READ:
                    break
        if others:
            named = ", ".join(others[:_MAX_NAMED]) + ", …" * (len(others) > _MAX_NAMED)
            remedy = "remove it (a delete marker hides a locked object)"
            raise DamagedWitnessError(f"{self.name}: no anchor in object {named}; {remedy}", found)
        return found

    def _key(self, anchor: Anchor) -> str:
        # Stores list keys in ascending order.
        generation, time = _LARGEST_GENERATION - anchor.generation, LARGEST_TIME - anchor.written
        return f"{self._folder}{anchor.installation}/{generation:04d}-{time:013d}-{secrets.token_hex(8)}.json"

    def _check_lock(self) -> None:
        """Log a warning once if the bucket does not protect its objects from deletion."""
        if self._lock_is_checked:
            return
        try:
            found = self._client.get_object_lock_configuration(Bucket=self._bucket)
            is_protected = bool(found.get("ObjectLockConfiguration", {}).get("Rule"))
        except import_module("botocore.exceptions").ClientError:
            is_protected = False
        self._lock_is_checked = True
        if not is_protected:
            log.warning(
                "witness without object lock",
                witness=self.name,
                remedy="anyone who may delete its objects can remove anchors; set a default retention on the bucket",
            )

    @cached_property
    def _client(self) -> Any:
        return s3_client(connect_seconds=_CONNECT_SECONDS, read_seconds=10, attempts=2)

    def _as_witness_errors(self) -> AbstractContextManager[None]:
        """Convert errors of the store to WitnessError."""
        return convert_s3_errors(lambda cause: WitnessError(f"{self.name}: {cause}"))


class TimeStamper:
    """A witness that has the heads of anchors stamped, and keeps the anchors with their stamps in a file."""

    def __init__(self, address: str, path: Path) -> None:
        """Raise Missing without the client, and WitnessError for an invalid address."""
        self._authority = TimeStampAuthority(address)
        if not path.is_absolute():
            raise WitnessError("SOTTO_TIMESTAMP_FILE: is no absolute path; give the path of a file for the stamps")
        self.name = address
        self._file = FileWitness(path)

    def write(self, anchor: Anchor) -> None:
        """Have an anchor's head stamped, and append the anchor with the stamp.

        Raises:
            WitnessError: the authority does not answer, or stamps something else.
        """
        statement = stamped_statement(anchor.installation, anchor.head)
        self._file.write(anchor.model_copy(update={"stamp": self._authority.stamp(statement)}))

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the last anchors of the file."""
        return self._file.read_newest(installation)


def read_stamps(path: Path, roots: Path, installation: str) -> list[tuple[Anchor, str | None]]:
    """Return a file's newest generation, with the time of each anchor's stamp, or None if the stamp is invalid.

    Raises:
        Missing: the client is not installed.
        WitnessError: a file cannot be read.
    """
    verifier = TimeStampVerifier(roots)
    own = newest_generation(one for one in FileWitness(path).read_all() if one.installation == installation)
    return [(one, verifier.find_time(one)) for one in own]
