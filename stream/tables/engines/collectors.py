"""Chooses what holds a source's rows: columns in memory, or a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas import TableSource
from stream.optional_packages import explain_missing_packages
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CountedTable
from stream.tables.engines.statements import EngineLimits
from stream.tables.rows import Collector, Frame, RowCollector, Rows, collect_rows

if TYPE_CHECKING:
    from stream.tables.engines.stored_rows import StoredRows


def make_collector(source: TableSource, limits: EngineLimits) -> Collector[Any]:
    """Return the collector of a source's rows; Missing if its engine is not installed."""
    if source.engine == "memory":
        return RowCollector(source)
    with explain_missing_packages():
        from stream.tables.engines.stored_rows import StoredRowCollector  # noqa: PLC0415  (an extra)

    return StoredRowCollector(source, limits)


def read_rows(
    source: TableSource, frame: Frame | None = None, limits: EngineLimits | None = None
) -> Rows | StoredRows:
    """Read a source's rows in this process; see ``Rows.load``."""
    found: Rows | StoredRows = collect_rows(source, make_collector(source, limits or EngineLimits()), frame)
    return found


def build_table(rows: Rows | StoredRows, source: TableSource, key: bytes) -> CountedTable:
    """Build the table of a source's rows; ``key`` determines which rows of a person count."""
    if isinstance(rows, Rows):
        return PrivateTable.from_rows(rows, source, key)
    from stream.tables.engines.stored_table import StoredTable  # noqa: PLC0415  (an extra)

    return StoredTable.from_rows(rows, source, key)
