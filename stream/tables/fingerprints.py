"""Fingerprints of tables: keyed digests of schema and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import FIRST_VERSION, Address, TableSource
from stream.tables.columns_table import PrivateTable
from stream.tables.encoding import CodeArray, siphash
from stream.tables.people import words_of
from stream.tables.sums import rows_are_public
from stream.tables.table_errors import DataError, shown

_TAG: Final = b"sotto table fingerprint v1"
_UNORDERED_TAG: Final = b"sotto table fingerprint of rows in no order v1"
_BLOCK_ROWS: Final = 1 << 16


def fingerprint(table: PrivateTable, source: TableSource, key: bytes, version: int = FIRST_VERSION) -> str:
    """Return a keyed digest of a source's name, schema and rows: 64 hexadecimal digits.

    Equal data has equal digests; without the 32-byte key a digest reveals nothing. It covers the
    owners of rows, which rows count, and a public number of rows or people. The order of rows matters
    unless they have persons or come from a database. The version is included, as it is private whether
    the data changed.
    """
    if not table.is_of(source):
        raise DataError(f"the table was not encoded for source {shown(source.source)}; load it again")
    schema = {name: domain.model_dump(mode="json") for name, domain in source.attributes.items()}
    digest = blake3(key=key)

    def add(part: bytes | memoryview) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    def add_column(column: npt.NDArray[np.unsignedinteger[Any]]) -> None:
        add(column.dtype.str.encode())
        add(np.ascontiguousarray(column).view(np.uint8).data)

    rows = table.rows()
    is_ordered = rows.people is not None or not _is_in_database(source)
    add(_TAG if is_ordered else _UNORDERED_TAG)
    add(source.source.encode())
    add(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode())
    if is_ordered:
        for name in sorted(rows.private_codes):
            add(name.encode())
            add_column(rows.private_codes[name])
    else:
        add(_multiset(rows.private_codes, rows.private_row_count, key))
    if rows.people is not None:
        add(json.dumps([source.person, source.contribution, table.private_row_count]).encode())
        add_column(rows.people.private_numbers)
        add_column(rows.people.private_names)
        if rows_are_public(source) and rows.people.private_unnamed:
            # If there are no such rows, the names determine the number.
            add(b"people of the file")
            add(table.public_size.to_bytes(8, "little"))
    elif source.neighbors == "replace" and table.public_size != table.private_row_count:
        # If no row is left out, the codes determine the number.
        add(b"rows of the file")
        add(table.public_size.to_bytes(8, "little"))
    if version != FIRST_VERSION:
        add(b"version")
        add(version.to_bytes(8, "little"))
    return digest.hexdigest()


def _is_in_database(source: TableSource) -> bool:
    address = Address.of_table(source.path)
    return address is not None and address.scheme == "postgresql"


def _multiset(codes: Mapping[str, CodeArray], rows: int, key: bytes) -> bytes:
    """Hash rows independent of order: their number and two sums of keyed hashes mod 2⁶⁴.

    Collisions cannot be found without the key. The result is private, for the digest alone.
    """
    keys = (
        np.frombuffer(blake3(_UNORDERED_TAG, key=key).digest(32), dtype="<u8").reshape(2, 1, 2).astype(np.uint64)
    )
    sums = np.zeros(2, dtype=np.uint64)
    for start in range(0, rows, _BLOCK_ROWS):
        block = {name: column[start : start + _BLOCK_ROWS] for name, column in codes.items()}
        words = words_of(block, min(_BLOCK_ROWS, rows - start))
        for place in range(2):
            sums[place : place + 1] += siphash(keys[place], words).sum(dtype=np.uint64)
    return rows.to_bytes(8, "little") + sums.astype("<u8").tobytes()
