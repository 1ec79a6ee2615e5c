"""Says which engine fits a table. The engine is declared, and never chosen by a table's rows.

It needs no package of a worker: clients describe the engine of a source, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemas import TableSource
from schemas.sources import MAX_ROWS

PERSON_CODE_BYTES: Final = 4
"""Length of a person's number."""
TEXT_CODE_BYTES: Final = 4
"""Length of the code of a text."""
CHOOSING_BYTES: Final = 32
"""Maximum number of bytes of memory per row, besides codes, while rows are chosen: person, hash, rank, position."""
_ROOM_TO_GROW: Final = 2
"""Memory fits a table if it has room for this many times its rows."""


def code_bytes(size: int) -> int:
    """Return the least number of bytes, 1, 2 or 4, of codes 0 … size − 1."""
    if size <= 1 << 8:
        return 1
    return 2 if size <= 1 << 16 else 4


def row_bytes(source: TableSource) -> int:
    """Return the most memory that a row takes, in bytes; for an engine, the most disk.

    With a person column a row has its codes twice: in memory while rows within the contribution bound
    are chosen, on disk as one of all rows and as a counted one.
    """
    if source.engine == "memory":
        return _memory_row_bytes(source)
    # Each row has a mark beside its codes.
    codes = _code_bytes(source) + 1
    return codes if source.person is None else 2 * (codes + PERSON_CODE_BYTES)


def describe_engine(source: TableSource, table_bytes: int) -> str:
    """Say what counts a source's rows, and how many fit into memory of this limit: from public facts alone."""
    room = (
        f"memory has room for {memory_row_limit(source, table_bytes):,} of its rows, {_memory_row_bytes(source)} bytes each, "
        "if SOTTO_TABLE_BYTES is the default"
    )
    if source.engine == "memory":
        return f"its rows are counted in memory; {room}; larger tables need the engine duckdb"
    return f"its rows are counted in DuckDB, and take {row_bytes(source)} bytes of disk each; {room}"


def advise_on_engine(source: TableSource, rows: int, table_bytes: int) -> Iterator[str]:
    """Yield advice if another engine fits a table of so many rows better; private, for its owner."""
    room = memory_row_limit(source, table_bytes)
    fits = rows * _ROOM_TO_GROW <= room
    if source.engine == "memory" and not fits:
        yield (
            f"engine: memory has room for {room:,} rows (SOTTO_TABLE_BYTES), and the engine cannot be changed when the table "
            'grows; declare "engine": "duckdb", or raise the limit in all services'
        )
    if source.engine != "memory" and fits:
        yield (
            f"engine: memory has room for {room:,} rows (SOTTO_TABLE_BYTES), and answers single questions faster; leave engine "
            "out, unless the table will outgrow it"
        )


def memory_row_limit(source: TableSource, table_bytes: int) -> int:
    """Return how many rows of a source fit into memory."""
    return min(MAX_ROWS, table_bytes // _memory_row_bytes(source))


def _memory_row_bytes(source: TableSource) -> int:
    codes = _code_bytes(source)
    return codes if source.person is None else 2 * codes + CHOOSING_BYTES


def _code_bytes(source: TableSource) -> int:
    codes = sum(code_bytes(domain.size) for domain in source.attributes.values())
    return codes + TEXT_CODE_BYTES * len(source.texts)
