"""A client's view of the ledger: the latest record of each key, in a temporary SQLite database."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec
from pydantic import BaseModel

from schemas import (
    AllotmentRecord,
    GrantRecord,
    PopulationRecord,
    RegisterSource,
    SourceRecord,
    StreamSpec,
    WaitingRequest,
    ledger_codec,
    registered_name,
    request_codec,
)
from schemas.wire import DECODE_ERRORS, Codec, MalformedEventError
from stream.errors import Invalid, Unknown, Unreachable
from stream.formatting import MAX_COMPARED_NAMES, did_you_mean
from stream.privacy.composition.costs import displayed_grant, ordinary_charges_left
from stream.questions.first_windows import MissedEvents, describe_missed_events

_Decoded = TypeVar("_Decoded", bound=BaseModel)

CACHE_KIB: Final = 32 * 1024
"""Maximum memory of a view's database, in KiB; SQLite keeps the rest in a temporary file without a name."""

_SCHEMA: Final = """
CREATE TABLE record (key BLOB NOT NULL UNIQUE, stream BLOB, open_group BLOB, value BLOB NOT NULL, since INTEGER);
CREATE INDEX by_stream ON record (stream) WHERE stream IS NOT NULL;
CREATE INDEX by_open_group ON record (open_group, stream) WHERE open_group IS NOT NULL;
"""
_PUT: Final = (
    "INSERT INTO record VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET open_group = excluded.open_group, value = excluded.value"
)
_FIRST_OF_GROUPS: Final = (
    "WHERE stream IN (SELECT MIN(stream) FROM record WHERE open_group > ? AND open_group < ? "
    "AND stream NOT IN (SELECT CAST(value AS BLOB) FROM json_each(?)) GROUP BY open_group)"
)
MANY_ANSWERS: Final = 256
"""Maximum number of questions of a statement; a stream with this many charged answers left can answer it."""
_KINDS: Final = (b"source|", b"grant|", b"population|", b"allotment|", b"waiting|")
"""Prefixes of the keys that a view keeps: all keys of the ledger except receipts and progress."""
_AFTER: Final = b"}"
"""The byte after the separator ``|``. All keys of a prefix sort before the prefix that ends in this byte."""


class LedgerView:
    """The ledger's latest records, encoded; a record is decoded when a call asks for it.

    Records may disappear: a record without a value deletes its key.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.executescript(f"PRAGMA cache_size = -{CACHE_KIB}; PRAGMA journal_mode = MEMORY; {_SCHEMA}")

    def clear(self) -> None:
        """Remove all records."""
        with _storage_errors(), self._database:
            self._database.execute("DELETE FROM record")

    def add(self, records: Iterable[Any]) -> None:
        """Add Kafka records in the ledger's order; ``Unreachable`` if the temporary file cannot be written."""
        latest: dict[bytes, tuple[bytes, int]] = {}
        deleted: set[bytes] = set()
        for one in records:
            if not (key := one.key or b"").startswith(_KINDS):
                continue
            if one.value is None:
                latest.pop(key, None)
                deleted.add(key)
            else:
                latest[key] = one.value, latest.get(key, (b"", one.timestamp))[1]
        rows = ((*_row(key, value), since) for key, (value, since) in latest.items())
        with _storage_errors(), self._database:
            self._database.executemany("DELETE FROM record WHERE key = ?", ((key,) for key in deleted))
            self._database.executemany(_PUT, rows)

    def source(self, name: str) -> SourceRecord:
        """Return a source; raise ``Unknown`` if it is not registered."""
        self._require_source(name)
        [record] = self._decode_all(SourceRecord, *_key_condition(f"source|{name}"))
        return record

    def sources(self) -> list[SourceRecord]:
        """Return all sources, sorted by name."""
        return self._decode_all(SourceRecord, *_prefix_condition(b"source|"))

    def populations(self) -> list[PopulationRecord]:
        """Return all populations, sorted by name."""
        return self._decode_all(PopulationRecord, *_prefix_condition(b"population|"))

    def allotments(self) -> list[AllotmentRecord]:
        """Return all allotments."""
        return self._decode_all(AllotmentRecord, *_prefix_condition(b"allotment|"))

    def source_name_of(self, stream: str) -> str | None:
        """Return the name of a stream's source; None if the stream is unknown."""
        rows = self._read("SELECT key FROM record WHERE stream = ?", stream.encode())
        return rows[0][0].split(b"|")[1].decode() if rows else None

    def grant(self, source: str, stream: str) -> GrantRecord:
        """Return a stream's grant; raise ``Unknown`` if the source or the stream is not known."""
        for record in self._grants(*_key_condition(f"grant|{source}|{stream}")):
            return record
        self._require_source(source)
        prefix = f"grant|{source}|".encode()
        hint = did_you_mean(stream, self._names(prefix)) or f"; see 'sotto source show {source}'"
        raise Unknown(f"stream '{stream}' of source '{source}' is not known{hint}")

    def missed_events(self, spec: StreamSpec) -> MissedEvents | None:
        """Describe which events a standing stream may lack; None if the clock or the opening excludes it.

        The stream was opened before the earliest record that was read.
        """
        rows = self._read("SELECT since FROM record WHERE key = ?", f"grant|{spec.source}|{spec.stream}".encode())
        opened = min((since / 1000 for (since,) in rows), default=None)
        return describe_missed_events(spec, self.source(spec.source), opened)

    def grants(
        self, source: str | None, limit: int | None, after: str | None, *, periods: bool = False
    ) -> list[GrantRecord]:
        """Return the grants of one source or of all sources, sorted by stream, beginning after ``after``.

        With ``periods``, the grants of the accounts of a source's periods are included.

        Raises:
            Unknown: the source is not registered.
        """
        behind, most = (after or "").encode(), -1 if limit is None else limit
        if source is None:
            return self._grants("WHERE stream > ? ORDER BY stream LIMIT ?", behind, most)
        self._require_source(source)
        prefix = f"grant|{source}|".encode()
        if periods:
            streams = sorted(self._streams_with_periods(source, behind))[:limit]
            return [grant for one in streams for grant in self._grants("WHERE stream = ?", one)]
        condition = "WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
        return self._grants(condition, prefix + behind, prefix[:-1] + _AFTER, most)

    def _streams_with_periods(self, source: str, behind: bytes) -> Iterator[bytes]:
        """Yield the streams of a source and of its periods' accounts whose names are after ``behind``."""
        first = f"grant|{source}".encode()
        condition = "WHERE key > ? AND key < ? OR key > ? AND key < ?"
        bounds = (first + b"|" + behind, first + _AFTER, first + b"@", first + b"A")
        for stream, key in self._read(f"SELECT stream, key FROM record {condition}", *bounds):  # noqa: S608  (constants)
            account = key.split(b"|")[1].decode()
            if stream > behind and source in {account, registered_name(account)}:
                yield stream

    def records_of(self, name: str) -> tuple[list[SourceRecord], list[GrantRecord]]:
        """Return the records that a statement needs if its FROM has this name, of a stream or of a source.

        They are the stream and its source, or the source and its open streams. If several open streams
        have the same mechanism, calibration and price, only the first is returned. If the name is unknown,
        some sources and open streams are returned, for the hint in the error.
        """
        grants = self._grants("WHERE stream = ?", name.encode())
        owner = grants[0].spec.source if grants else name
        sources = self._decode_all(SourceRecord, *_key_condition(f"source|{owner}"))
        if grants:
            return sources, grants
        if sources:
            return sources, self.first_open(name)
        condition, *bounds = _prefix_condition(b"source|")
        limit = MAX_COMPARED_NAMES + 1
        sources = self._decode_all(SourceRecord, f"{condition} LIMIT ?", *bounds, limit)
        return sources, self._grants("WHERE open_group IS NOT NULL LIMIT ?", limit)

    def first_open(self, source: str, excluded: Iterable[str] = ()) -> list[GrantRecord]:
        """Return a source's open streams except ``excluded`` ones; of several as in ``records_of``, only the first."""
        prefix = f"{source}|".encode()
        return self._grants(_FIRST_OF_GROUPS, prefix, prefix[:-1] + _AFTER, json.dumps([*excluded]))

    def _require_source(self, name: str) -> None:
        if not self._read("SELECT 1 FROM record WHERE key = ?", f"source|{name}".encode()):
            for waiting in self._decode_all(WaitingRequest, *_prefix_condition(b"waiting|")):
                request = decode_record(request_codec, waiting.value.encode())
                if isinstance(request, RegisterSource) and request.source.source == name:
                    raise Unknown(
                        f"source '{name}' is not registered yet: its registration waits until its table is read"
                    )
            hint = did_you_mean(name, self._names(b"source|")) or "; register it with 'sotto source add'"
            raise Unknown(f"source '{name}' is not registered{hint}")

    def _names(self, prefix: bytes) -> list[str]:
        """Return the names of the keys with a prefix, at most one more than a hint compares."""
        condition, *bounds = _prefix_condition(prefix)
        rows = self._read(f"SELECT key FROM record {condition} LIMIT ?", *bounds, MAX_COMPARED_NAMES + 1)  # noqa: S608  (constants)
        return [key.removeprefix(prefix).decode() for (key,) in rows]

    def _grants(self, condition: str, *bounds: Any) -> list[GrantRecord]:
        return [displayed_grant(record) for record in self._decode_all(GrantRecord, condition, *bounds)]

    def _decode_all(self, kind: type[_Decoded], condition: str, *bounds: Any) -> list[_Decoded]:
        rows = self._read(f"SELECT value FROM record {condition}", *bounds)  # noqa: S608  (constants)
        entries = [decode_record(ledger_codec, value) for (value,) in rows]
        return [entry for entry in entries if isinstance(entry, kind)]

    def _read(self, statement: str, *bounds: Any) -> list[Any]:
        with _storage_errors():
            return self._database.execute(statement, bounds).fetchall()


class _End(msgspec.Struct, gc=False):
    state: str
    ending: str | None = None


class _Spec(msgspec.Struct, gc=False):
    mechanism: msgspec.Raw


class _Cutoff(msgspec.Struct, gc=False):
    cutoff: int


class _OpenGrant(msgspec.Struct, gc=False):
    spec: _Spec
    calibration: msgspec.Raw
    answered: int
    tops: int
    surplus: int = 0
    extensions: msgspec.Raw = msgspec.Raw(b"")


_end_decoder: Final = msgspec.json.Decoder(_End)
_grant_decoder: Final = msgspec.json.Decoder(_OpenGrant)
_cutoff_decoder: Final = msgspec.json.Decoder(_Cutoff)


def _row(key: bytes, value: bytes) -> tuple[bytes, bytes | None, bytes | None, bytes]:
    kind, _, rest = key.partition(b"|")
    if kind != b"grant":
        return key, None, None, value
    source, _, stream = rest.partition(b"|")
    try:
        end = _end_decoder.decode(value)
        is_open = end.state == "open" and end.ending is None
        traits = _statement_traits(value) if is_open else b""
    except DECODE_ERRORS:
        is_open, traits = True, value  # a record of a later version: the call that decodes it reports it
    group = source + b"|" + blake2b(traits, digest_size=16).digest() if is_open else None
    return key, stream, group, value


def _statement_traits(value: bytes) -> bytes:
    """Return equal bytes for grants that can answer the same statements at the same price."""
    grant = _grant_decoder.decode(value)
    mechanism, calibration, extensions = map(bytes, (grant.spec.mechanism, grant.calibration, grant.extensions))
    left = ordinary_charges_left(_cutoff_decoder.decode(calibration).cutoff, grant.tops, max(grant.surplus, 0))
    has_many = left > MANY_ANSWERS and not extensions
    used = (grant.answered > 0, *(() if has_many else (grant.tops, grant.surplus)))
    return b"%b|%b|%b|%b" % (mechanism, calibration, extensions, str(used).encode())


def _key_condition(key: str) -> tuple[str, bytes]:
    return "WHERE key = ?", key.encode()


def _prefix_condition(prefix: bytes) -> tuple[str, bytes, bytes]:
    return "WHERE key > ? AND key < ? ", prefix, prefix[:-1] + _AFTER


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unreachable(
            f"the ledger's records cannot be kept in a temporary file ({error}); set SQLITE_TMPDIR to a writable "
            "folder with more space"
        ) from error


def decode_record(codec: Codec[_Decoded], value: bytes | None) -> _Decoded:
    """Decode a record; raise ``Invalid`` if it does not fit the contract."""
    try:
        return codec.decode(value)
    except MalformedEventError as error:
        raise Invalid(str(error)) from error
