"""A table of digests whose rows are in sorted files, so that the memory does not grow with the rows.

New rows are in memory. If there are many, they are merged into one file, together with the newest files that are not
larger. So each file has about twice the rows of the next one, and each row is written a logarithmic number of times.

A file has no name and belongs to its process. It consists of pages with checksums. An unreadable page is an
error; its rows are never treated as missing.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import IO, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from stream.diagnostics import LoggableError
from stream.privacy.ledger.retirement import DIGEST_BYTES, name_digest
from stream.settings import Settings, variable_of

MAX_RECENT_ROWS: Final = 8192
"""Maximum number of rows in memory before a file is written."""
PAGE_BYTES: Final = 4096
_CHECKSUM_BYTES: Final = 4
_KEY_BYTES: Final = 8
"""Rows are sorted by the first bytes of their digests."""
_PAGES_PER_READ: Final = 8
_MIN_JOINT_SEARCH: Final = 1000
"""From this number of digests on, reading whole files is faster than a search for each digest."""

_Rows = NDArray[np.uint8]
"""An array with a line for each row."""


class DigestFileError(LoggableError):
    """A file of digests cannot be written or read; the current step of the processor must fail."""


class DigestTable:
    """A table whose rows are a digest and ``row_bytes`` further bytes."""

    def __init__(self, row_bytes: int = 0) -> None:
        self._row_size = DIGEST_BYTES + row_bytes
        self._folder: str | None = None
        self._recent: dict[bytes, bytes] = {}
        self._files: list[_SortedFile] = []
        """From the oldest and largest to the newest and smallest."""

    def __bool__(self) -> bool:
        return bool(self._recent or self._files)

    def __len__(self) -> int:
        """Return the number of rows; a row that was added twice may count twice."""
        return len(self._recent) + sum(file.count for file in self._files)

    def add(self, digest: bytes, row: bytes = b"") -> None:
        """Add a row, or do nothing if it was added before; DigestFileError if the disk is full."""
        self.add_all(((digest, row),))

    def add_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add rows as ``add`` does; each is a digest and its other bytes."""
        self._recent.update(rows)
        self._limit_recent()

    def find(self, digest: bytes) -> bytes | None:
        """Return the other bytes of a digest's row; None if it is not in the table."""
        if (row := self._recent.get(digest)) is not None:
            return row
        found = (file.find(digest) for file in reversed(self._files))
        return next((row for row in found if row is not None), None)

    def find_all(self, digests: bytes) -> list[int]:
        """Return the indices of the digests that are in the table; ``digests`` are joined."""
        keys = _keys_of(np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES))
        places: Iterable[int] = range(len(keys))
        if len(keys) >= _MIN_JOINT_SEARCH:
            ordered = np.sort(keys)
            known = [np.array([_key_of(digest) for digest in self._recent], np.uint64)]
            for file in self._files:
                known += file.common_keys(ordered)
            places = np.flatnonzero(np.isin(keys, np.concatenate(known))).tolist()
        parts = ((at, digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]) for at in places)
        return [at for at, digest in parts if self.find(digest) is not None]

    def _limit_recent(self) -> None:
        """Merge the new rows with the last files if there are too many; change nothing if this fails."""
        if len(self._recent) < MAX_RECENT_ROWS:
            return
        joined = b"".join(chain.from_iterable(self._recent.items()))
        rows = np.frombuffer(joined, np.uint8).reshape(-1, self._row_size)
        rows = rows[np.argsort(_keys_of(rows), kind="stable")]
        first, total = len(self._files), len(rows)
        while first and self._files[first - 1].count <= total:
            first -= 1
            total += self._files[first].count
        merged = _merge([*(file.read_all() for file in self._files[first:]), iter((rows,))])
        if self._folder is None:
            self._folder = Settings().engine_folder  # read only once, because reading takes milliseconds
        self._files[first:] = [_SortedFile(merged, self._row_size, self._folder)]
        self._recent = {}


def find_retired(table: DigestTable, streams: Iterable[str]) -> set[str]:
    """Return the streams whose digests are in a table."""
    names = list(streams) if table else []
    places = table.find_all(b"".join(name_digest("stream", name) for name in names))
    return {names[at] for at in places}


class _SortedFile:
    """A temporary file of pages; each page has a checksum and rows sorted by their keys."""

    def __init__(self, rows: Iterable[_Rows], row_size: int, folder: str) -> None:
        self.count = 0
        self._row_size = row_size
        self._rows_per_page = (PAGE_BYTES - _CHECKSUM_BYTES) // row_size
        self._first_keys = array("Q")
        """The first key of each page."""
        try:
            file = tempfile.TemporaryFile(dir=folder or None)  # noqa: SIM115  (closed with this object)
            self._close = weakref.finalize(self, _close, file)
            self._file = file.fileno()
            file.writelines(self._pages_of(rows))
            file.flush()
        except OSError as error:
            raise DigestFileError(
                f"{variable_of('engine_folder')}: digests of retired streams cannot be written to "
                f"'{folder or 'the temporary folder'}' ({error.strerror or error}); free disk space, or name another folder"
            ) from error

    def _pages_of(self, chunks: Iterable[_Rows]) -> Iterator[bytes]:
        """Yield the rows as pages, many at a time."""
        left = np.empty((0, self._row_size), np.uint8)
        for chunk in chunks:
            rows = np.concatenate((left, chunk))
            full = len(rows) - len(rows) % self._rows_per_page
            yield self._write_pages(rows[:full])
            left = rows[full:]
        if len(left):
            yield self._write_pages(left)

    def _write_pages(self, rows: _Rows) -> bytes:
        self.count += len(rows)
        first, count = len(self._first_keys), -(-len(rows) // self._rows_per_page)
        content = np.zeros((count, self._rows_per_page * self._row_size), np.uint8)
        content.reshape(-1)[: rows.size] = rows.reshape(-1)
        pages = np.zeros((count, PAGE_BYTES), np.uint8)
        pages[:, _CHECKSUM_BYTES : _CHECKSUM_BYTES + content.shape[1]] = content
        checked = [page[_CHECKSUM_BYTES:] for page in _split_pages(pages.tobytes())]
        sums = np.array([crc32(page, number) for number, page in enumerate(checked, first)], "<u4")
        pages[:, :_CHECKSUM_BYTES] = sums.view(np.uint8).reshape(-1, _CHECKSUM_BYTES)
        self._first_keys.frombytes(_keys_of(rows[:: self._rows_per_page]).tobytes())
        return pages.tobytes()

    def _read_pages(self, first: int, count: int) -> bytes:
        try:
            pages = os.pread(self._file, count * PAGE_BYTES, first * PAGE_BYTES)
        except OSError as error:
            raise _unreadable_error(error.strerror or str(error)) from error
        if len(pages) != count * PAGE_BYTES:
            raise _unreadable_error("a file is too short")
        for number, page in enumerate(_split_pages(pages), first):
            if crc32(page[_CHECKSUM_BYTES:], number) != int.from_bytes(page[:_CHECKSUM_BYTES], "little"):
                raise _unreadable_error("a page has changed")
        return pages

    def find(self, digest: bytes) -> bytes | None:
        """Return the other bytes of a digest's row; None if it is not in the file."""
        key = _key_of(digest)
        # Rows with the same key may be on several pages.
        first, end = bisect_left(self._first_keys, key) - 1, bisect_right(self._first_keys, key)
        for number in range(max(first, 0), end):
            row_count = min(self.count - number * self._rows_per_page, self._rows_per_page)
            page, end_of_rows = self._read_pages(number, 1), _CHECKSUM_BYTES + row_count * self._row_size
            at = page.find(digest, _CHECKSUM_BYTES, end_of_rows)
            while at >= 0:
                if (at - _CHECKSUM_BYTES) % self._row_size == 0:
                    return page[at + DIGEST_BYTES : at + self._row_size]
                at = page.find(digest, at + 1, end_of_rows)
        return None

    def read_all(self) -> Iterator[_Rows]:
        """Yield all rows in order, many at a time."""
        left = self.count
        for first in range(0, len(self._first_keys), _PAGES_PER_READ):
            count = min(_PAGES_PER_READ, len(self._first_keys) - first)
            pages = np.frombuffer(self._read_pages(first, count), np.uint8).reshape(count, PAGE_BYTES)
            content = pages[:, _CHECKSUM_BYTES : _CHECKSUM_BYTES + self._rows_per_page * self._row_size]
            rows = content.reshape(-1, self._row_size)[:left]
            left -= len(rows)
            yield rows

    def common_keys(self, keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Yield the file's keys that are also in the sorted ``keys``."""
        for rows in self.read_all():
            mine = _keys_of(rows)
            start, end = np.searchsorted(keys, mine[0]), np.searchsorted(keys, mine[-1], "right")
            yield np.intersect1d(mine, keys[start:end])


def _merge(sources: Iterable[Iterator[_Rows]]) -> Iterator[_Rows]:
    """Yield the rows of sorted sources in order; yield equal rows once."""
    heads: list[tuple[NDArray[np.uint64], _Rows, Iterator[_Rows]]] = []
    for source in sources:
        heads += _next_head(source)
    while heads:
        bound = min(keys[-1] for keys, _, _ in heads)
        taken, left = [], []
        for keys, rows, source in heads:
            count = int(np.searchsorted(keys, bound, "right"))
            taken.append(rows[:count])
            left += [(keys[count:], rows[count:], source)] if count < len(keys) else _next_head(source)
        heads = left
        joined = np.concatenate(taken)
        keys = _keys_of(joined)
        order = np.argsort(keys, kind="stable")
        joined, keys = joined[order], keys[order]
        repeated = np.flatnonzero(keys[1:] == keys[:-1])
        same = (joined[repeated, :DIGEST_BYTES] == joined[repeated + 1, :DIGEST_BYTES]).all(axis=1)
        yield np.delete(joined, repeated[same], axis=0) if same.any() else joined


def _next_head(source: Iterator[_Rows]) -> list[tuple[NDArray[np.uint64], _Rows, Iterator[_Rows]]]:
    return [(_keys_of(rows), rows, source) for rows in [next(source, None)] if rows is not None]


def _split_pages(pages: bytes) -> Iterator[memoryview]:
    whole = memoryview(pages)
    return (whole[at : at + PAGE_BYTES] for at in range(0, len(pages), PAGE_BYTES))


def _keys_of(rows: _Rows) -> NDArray[np.uint64]:
    found = np.ascontiguousarray(rows[:, :_KEY_BYTES]).view(">u8").ravel()
    return np.asarray(found, np.uint64)


def _key_of(digest: bytes) -> int:
    return int.from_bytes(digest[:_KEY_BYTES], "big")


def _close(file: IO[bytes]) -> None:
    """Close a file; ignore an error, because a full disk was already reported by an earlier write."""
    with suppress(OSError):
        file.close()


def _unreadable_error(reason: str) -> DigestFileError:
    return DigestFileError(
        f"{variable_of('engine_folder')}: digests of retired streams cannot be read again ({reason}); "
        "check the disk, or name another folder"
    )
