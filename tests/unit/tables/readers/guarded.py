"""The rows that services read from a table, or the reason for their refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from schemas import Domain, Integers
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import Rows
from stream.tables.table_errors import UnreadableError

MIB = 1 << 20
AGE: dict[str, Domain] = {"age": Integers(minimum=0, maximum=99)}


def reader(
    *roots: Path,
    table: int = 8 * MIB,
    reading: int = 384 * MIB,
    seconds: float = 60.0,
    reveals_causes: bool = False,
) -> GuardedReader:
    """Return a reader of the tables below these folders, with limits that suit a test."""
    return GuardedReader(ReadingLimits(roots, table, reading, seconds, reveals_causes))


def cause(refuse: Callable[[], object], *, secret: str | None = None) -> str:
    """Return the cause of a table's refusal. The client's error is the same for all causes, and no log has the secret."""
    with pytest.raises(UnreadableError) as refused, capture_logs() as logged:
        refuse()
    assert str(refused.value) == str(UnreadableError("another cause", hidden=True))
    assert [entry["cause"] for entry in logged] == [refused.value.cause]
    assert secret is None or secret not in str(logged)
    return refused.value.cause


def rows_of(rows: Rows) -> list[tuple[int, ...]]:
    """Return the codes of each row, in order."""
    return list(zip(*(column.tolist() for column in rows.private_codes.values()), strict=True))
