"""Caches tables and predicates for all streams of a process, and fingerprints tables.

A fingerprint is a keyed digest of a table's schema and rows. A worker answers only from data that has the registered
fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import FIRST_VERSION, Domain, TableSource
from stream.caches import ENTRY_BYTES, BoundedCache
from stream.privacy.noise.keys import NoiseKey
from stream.tables.comparisons import Ranges
from stream.tables.counted_table import CountedTable
from stream.tables.encoding import siphash
from stream.tables.engine_limits import EngineStatementError
from stream.tables.expressions import Predicate, memory_of
from stream.tables.people import pack_codes
from stream.tables.readers.source_parts import Stamp, stamp_of_source
from stream.tables.readers.table_files import local_database
from stream.tables.readers.table_reading import build_table, read_rows
from stream.tables.rows import Frame, Rows, StoredRows
from stream.tables.sensitivity import rows_are_public
from stream.tables.table_errors import PredicateError, TableDataError, UnreadableError, quote_name

if TYPE_CHECKING:
    from stream.tables.predicates import PredicateParser

PREDICATE_CACHE_BYTES: Final = 32 << 20
TABLES_KEPT: Final = 64
"""Maximum number of tables that are kept for new streams; an open stream keeps its own table."""
SOURCES_KEPT: Final = 1 << 10
"""Maximum number of sources whose parser, fingerprint, refusal or unreadable table is remembered."""
RETRY_SECONDS: Final = 10.0
_FINGERPRINT_PURPOSE: Final = "sotto table fingerprint v1"
_ORDERED_TAG: Final = b"sotto table fingerprint v1"
_UNORDERED_TAG: Final = b"sotto table fingerprint of rows in no order v1"
_STORED_TAG: Final = b"sotto table fingerprint of stored rows v1 "
_HASH_BLOCK_ROWS: Final = 1 << 16


class _CurrentTable(NamedTuple):
    stamp: Stamp
    table: CountedTable
    fingerprint: str


class _KnownFingerprint(NamedTuple):
    """The fingerprint of one version of a source's data; it is valid while the stamp and the source stay equal."""

    stamp: Stamp
    source: TableSource
    fingerprint: str


class _Parser(NamedTuple):
    attributes: Mapping[str, Domain]
    parser: PredicateParser
    number: int


class TableStore:
    """Caches the latest table of each source; older tables are freed once nothing refers to them.

    - ``keys`` have 32 bytes each. New fingerprints use the first key; registered ones may have been made with any of the
      keys. The key of a fingerprint also determines which rows of a person count.
    - ``overrides`` are tables in memory by the source's name, which are used instead of the sources' paths.
    - ``read`` reads a table. ``stamp`` returns a value that differs if the table may have changed. An unreadable table is
      read again only after its stamp has changed.
    - Without ``keeps_tables`` only fingerprints are cached.

    If the table at an address does not have the expected fingerprint, it is read again only after ``RETRY_SECONDS``. The
    store is thread-safe, and reading one source does not block other sources.
    """

    def __init__(
        self,
        *keys: bytes,
        overrides: Mapping[str, Frame] | None = None,
        read: Callable[[TableSource], Rows | StoredRows] = read_rows,
        stamp: Callable[[TableSource], Stamp] = stamp_of_source,
        keeps_tables: bool = True,
    ) -> None:
        self._keys = keys
        self._keeps_tables = keeps_tables
        self._read = read
        self._stamp = stamp
        self._lock = RLock()
        self._loading: WeakValueDictionary[str, RLock] = WeakValueDictionary()
        self._serial_numbers = count()
        self._frames: dict[str, tuple[int, Frame]] = {}
        self._current: BoundedCache[str, _CurrentTable] = BoundedCache(TABLES_KEPT)
        self._fingerprints: BoundedCache[tuple[str, int], _KnownFingerprint] = BoundedCache(SOURCES_KEPT)
        self._unreadable: BoundedCache[str, tuple[Stamp, TableSource, UnreadableError]] = BoundedCache(
            SOURCES_KEPT
        )
        self._tables: WeakValueDictionary[tuple[str, str], CountedTable] = WeakValueDictionary()
        self._refused: BoundedCache[tuple[str, str], tuple[float, TableDataError]] = BoundedCache(SOURCES_KEPT)
        self._parsers: BoundedCache[str, _Parser] = BoundedCache(SOURCES_KEPT)
        self._predicates: BoundedCache[tuple[int, str], Predicate | PredicateError] = BoundedCache(
            PREDICATE_CACHE_BYTES, name="predicates"
        )
        for name, frame in (overrides or {}).items():
            self.put(name, frame)

    @classmethod
    def keyed_by(cls, key: NoiseKey, **options: Any) -> TableStore:
        """Create a store with these options, and with keys that are derived from a noise key and its older keys."""
        return cls(*map(table_key, (key, *key.older)), **options)

    def put(self, source_name: str, frame: Frame) -> None:
        """Use a table in memory, instead of its path, for the source of this name."""
        with self._lock:
            self._frames[source_name] = (next(self._serial_numbers), frame)

    def get(
        self, source: TableSource, expected_fingerprint: str | None = None, version: int = FIRST_VERSION
    ) -> CountedTable:
        """Return the source's current table, which must have the expected fingerprint if one is given.

        A table in memory with this fingerprint is returned even if its file has changed since. TableDataError if the file's
        data has another fingerprint.
        """
        if (known := self.table_in_memory(source, expected_fingerprint)) is not None:
            return known
        with self._loading_lock(source):
            if expected_fingerprint is None:
                return self._load(source, self._stamp_of(source)).table
            refused = self._refused.get((source.source, expected_fingerprint))
            if refused is not None and monotonic() < refused[0] + RETRY_SECONDS:
                raise refused[1].with_traceback(None)
            try:
                return self._load_expected(source, expected_fingerprint, version)
            except TableDataError as error:
                if source.addresses:
                    self._refused.put((source.source, expected_fingerprint), (monotonic(), error))
                raise

    def table_in_memory(self, source: TableSource, expected_fingerprint: str | None) -> CountedTable | None:
        """Return the source's table with this fingerprint, or None if it is not in memory."""
        if expected_fingerprint is None:
            return None
        known = self._tables.get((source.source, expected_fingerprint))
        return known if known is not None and known.fits_source(source) else None

    def fingerprint(self, source: TableSource, version: int = FIRST_VERSION) -> str:
        """Return the fingerprint of the source's current table as data of this ``version``."""
        with self._loading_lock(source):
            stamp = self._stamp_of(source)
            known = self._fingerprints.get((source.source, version))
            if known is not None and (known.stamp, known.source) == (stamp, source):
                return known.fingerprint
            current = self._load(source, stamp)
            made = current.fingerprint
            if version != FIRST_VERSION:
                made = fingerprint(current.table, source, self._keys[0], version)
                self._tables[source.source, made] = current.table
            self._fingerprints.put((source.source, version), _KnownFingerprint(stamp, source, made))
            return made

    def predicate(self, source: TableSource, text: str) -> Predicate:
        """Return the predicate of a text over the source's attributes; predicates and errors are cached."""
        parser = self._parser(source)
        key = (parser.number, text)
        if (known := self._predicates.get(key)) is None:
            try:
                known = parser.parser.parse(text)
            except PredicateError as error:
                known = PredicateError(str(error))
            size = ENTRY_BYTES if isinstance(known, PredicateError) else memory_of(known)
            self._predicates.put(key, known, size + len(text))
        if isinstance(known, PredicateError):
            raise PredicateError(str(known))
        return known

    def ranges(self, source: TableSource, text: str) -> Ranges | None:
        """Return a predicate as ranges; None unless it differs from an earlier predicate only in its numbers."""
        return self._parser(source).parser.ranges(text)

    def _parser(self, source: TableSource) -> _Parser:
        parser = self._parsers.get(source.source)
        if parser is None or not (
            parser.attributes is source.attributes or parser.attributes == source.attributes
        ):
            from stream.tables.predicates import PredicateParser  # noqa: PLC0415  (its import takes a tenth of a worker's start)

            with self._lock:
                made = PredicateParser(source.attributes, source.texts)
                parser = _Parser(source.attributes, made, next(self._serial_numbers))
                self._parsers.put(source.source, parser)
        return parser

    def _load_expected(self, source: TableSource, expected: str, version: int) -> CountedTable:
        """Load the current table; TableDataError unless it has the expected fingerprint with one of the keys."""
        current = self._load(source, self._stamp_of(source))
        found: CountedTable | None = current.table
        if version != FIRST_VERSION or current.fingerprint != expected:
            # The key determines which rows of a person count, so a table is built with each key.
            made = (
                (
                    current.table
                    if key == self._keys[0] or source.person is None
                    else build_table(current.table.rows(), source, key),
                    key,
                )
                for key in self._keys
            )
            found = next((one for one, key in made if fingerprint(one, source, key, version) == expected), None)
        if found is None:
            raise TableDataError(
                f"source data differs from what was registered for {quote_name(source.source)}, or the noise key of that "
                "registration was removed; restore the data or the key and restart the worker, or register the present "
                "data with 'sotto source refresh'"
            )
        self._tables[source.source, expected] = found
        return found

    def _loading_lock(self, source: TableSource) -> RLock:
        with self._lock:
            return self._loading.setdefault(source.source, RLock())

    def _stamp_of(self, source: TableSource) -> Stamp:
        number, frame = self._frames.get(source.source, (None, None))
        return (number,) if frame is not None else self._stamp(source)

    def _load(self, source: TableSource, stamp: Stamp) -> _CurrentTable:
        current = self._current.get(source.source)
        if current is None or current.stamp != stamp or not current.table.fits_source(source):
            # The earlier table is freed before the new one is loaded, and the rows as soon as the table is built.
            self._current.pop(source.source)
            current = None
            rows = self._read_rows(source, stamp)
            try:
                table = build_table(rows, source, self._keys[0])
                current = _CurrentTable(stamp, table, fingerprint(table, source, self._keys[0]))
            except EngineStatementError as error:
                # If an engine fails, a question waits; but a table that cannot be loaded is refused.
                raise UnreadableError(str(error), lasting=False, hidden=True) from None
            del rows
            if self._keeps_tables:
                self._current.put(source.source, current)
            self._tables[source.source, current.fingerprint] = table
        return current

    def _read_rows(self, source: TableSource, stamp: Stamp) -> Rows | StoredRows:
        _, frame = self._frames.get(source.source, (None, None))
        if frame is not None:
            return read_rows(source, frame)
        if (failed := self._unreadable.get(source.source)) is not None and failed[:2] == (stamp, source):
            raise failed[2].with_traceback(None)
        try:
            return self._read(source)
        except UnreadableError as refused:
            # The stamp of a missing file has only the path, so a failed read of it must not be remembered.
            if refused.lasting and len(stamp) > 1:
                self._unreadable.put(source.source, (stamp, source, refused))
            raise


def table_key(key: NoiseKey) -> bytes:
    """Derive the key of fingerprints, and of the choice of people's rows, from a noise key."""
    return key.subkey(_FINGERPRINT_PURPOSE)


def fingerprint(table: CountedTable, source: TableSource, key: bytes, version: int = FIRST_VERSION) -> str:
    """Return a keyed digest of a source's name, schema and rows: 64 hexadecimal digits.

    Equal data of one version has equal digests; without the 32-byte key a digest reveals nothing. It covers the person of
    each row, the choice of the counted rows, and the number of rows or people if that is public. The order of rows matters
    only if the source has no person column and is not in a database. Equal data has another digest in each version,
    because it is private whether the data has changed.
    """
    if not table.fits_source(source):
        raise TableDataError(f"the table was not encoded for source {quote_name(source.source)}; load it again")
    domains = {**source.attributes, **source.texts}
    schema = {name: domain.model_dump(mode="json") for name, domain in domains.items()}
    digest = blake3(key=key)

    def add(part: bytes | memoryview) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    rows = table.rows()
    is_ordered = isinstance(rows, Rows) and (rows.people is not None or not _is_in_database(source))
    tag = _ORDERED_TAG if is_ordered else _UNORDERED_TAG
    add(tag if source.engine == "memory" else _STORED_TAG + source.engine.encode())
    add(source.source.encode())
    add(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode())
    if isinstance(rows, Rows) and is_ordered:
        for part in _ordered_parts(rows):
            add(part)
    else:
        add(_hash_unordered_rows(rows.private_blocks(_HASH_BLOCK_ROWS), key))
    if source.person is not None:
        add(json.dumps([source.person, source.contribution, table.private_row_count]).encode())
        for part in _people_parts(rows, key):
            add(part)
        if rows_are_public(source) and rows.private_unnamed:
            # If every row has a person, the digests of names already determine this number.
            add(b"people of the file")
            add(table.public_size.to_bytes(8, "little"))
    elif source.neighbors == "replace" and table.public_size != table.private_row_count:
        # If no row is left out, the codes already determine this number.
        add(b"rows of the file")
        add(table.public_size.to_bytes(8, "little"))
    if version != FIRST_VERSION:
        add(b"version")
        add(version.to_bytes(8, "little"))
    return digest.hexdigest()


def _ordered_parts(rows: Rows) -> Iterator[bytes | memoryview]:
    """Yield the columns of ordered rows as bytes.

    First come the name and the codes of each attribute, then the name and the digests of each text.
    """
    for name in sorted(rows.private_codes):
        yield name.encode()
        yield from _column_parts(rows.private_codes[name])
    for name in sorted(rows.private_texts):
        yield name.encode()
        digests = rows.private_texts[name].digests
        for start in range(0, rows.private_row_count, _HASH_BLOCK_ROWS):
            yield digests[start : start + _HASH_BLOCK_ROWS].tobytes()


def _column_parts(column: npt.NDArray[np.unsignedinteger[Any]]) -> Iterator[bytes | memoryview]:
    yield column.dtype.str.encode()
    yield np.ascontiguousarray(column).view(np.uint8).data


def _is_in_database(source: TableSource) -> bool:
    is_on_server = any(address.scheme != "s3" for address in source.addresses)
    return is_on_server or any(local_database(path) is not None for path in source.paths)


def _people_parts(rows: Rows | StoredRows, key: bytes) -> Iterator[bytes | memoryview]:
    """Yield the people of a table as bytes.

    The people of a table in memory are in the order of its rows; the people of stored rows are one hash without an order.
    """
    if isinstance(rows, Rows):
        if rows.people is not None:
            yield from _column_parts(rows.people.private_numbers)
            yield from _column_parts(rows.people.private_names)
    elif rows.private_names is not None:
        yield _hash_unordered_rows([{"low": rows.private_names[:, 0], "high": rows.private_names[:, 1]}], key)


def _hash_unordered_rows(blocks: Iterable[Mapping[str, Any]], key: bytes) -> bytes:
    """Return the number of rows and two sums of their keyed hashes mod 2⁶⁴, which do not depend on their order.

    Collisions cannot be found without the key. The result is private, and is used only as input of the digest.
    """
    keys = (
        np.frombuffer(blake3(_UNORDERED_TAG, key=key).digest(32), dtype="<u8").reshape(2, 1, 2).astype(np.uint64)
    )
    sums, rows = np.zeros(2, dtype=np.uint64), 0
    for block in blocks:
        count = len(next(iter(block.values())))
        words = pack_codes(block, count)
        for place in range(2):
            sums[place : place + 1] += siphash(keys[place], words).sum(dtype=np.uint64)
        rows += count
    return rows.to_bytes(8, "little") + sums.astype("<u8").tobytes()
