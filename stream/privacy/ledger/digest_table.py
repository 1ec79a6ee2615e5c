"""Digests of retired names, and a table of digests that needs no object for each row."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Final, Literal

from blake3 import blake3

DIGEST_BYTES: Final = 16

NameKind = Literal["stream", "source", "periods"]
"""Kind of a retired name: a stream, a period's account, or a model whose periods had retired streams."""


def name_digest(kind: NameKind, name: str) -> bytes:
    """Return the digest by which a retired name is recognized.

    Two names with one digest are improbable, and would only make the ledger refuse a new name.
    """
    return blake3(f"{kind}|{name}".encode()).digest(DIGEST_BYTES)


def split_digests(digits: str) -> list[bytes]:
    """Split the digests of a block, which are hexadecimal digits."""
    digests = bytes.fromhex(digits)
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


class DigestTable:
    """A table whose rows are a digest and ``row_bytes`` further bytes.

    Rows whose digests begin with the same 12 bits are in one bucket, which is sorted before a search.
    """

    def __init__(self, row_bytes: int = 0) -> None:
        self._size = DIGEST_BYTES + row_bytes
        self._buckets: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._unsorted: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values())) // self._size

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(bucket.__sizeof__() for bucket in self._buckets.values())

    def add(self, digest: bytes, row: bytes = b"") -> None:
        """Add a row; a repeated row is kept once."""
        number = _bucket_of(digest)
        self._buckets[number] += digest + row
        self._unsorted.add(number)

    def find(self, digest: bytes) -> bytes | None:
        """Return the other bytes of a digest's row; None if it is not in the table."""
        number, size = _bucket_of(digest), self._size
        if (bucket := self._buckets.get(number)) is None:
            return None
        if number in self._unsorted:
            bucket[:] = b"".join(sorted({bytes(bucket[at : at + size]) for at in range(0, len(bucket), size)}))
            self._unsorted.remove(number)
        places = range(0, len(bucket), size)
        found = bisect_left(places, digest, key=lambda at: bytes(bucket[at : at + DIGEST_BYTES]))
        at = found * size
        return bytes(bucket[at + DIGEST_BYTES : at + size]) if bucket[at : at + DIGEST_BYTES] == digest else None


def _bucket_of(digest: bytes) -> int:
    return digest[0] << 4 | digest[1] >> 4
