"""Measures how long a table's engine takes for loading and for questions."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from schemas import TableSource
from stream.tables.checks.check_report import EngineTimes
from stream.tables.engines.collectors import build_table, read_rows
from stream.tables.engines.statements import EngineLimits
from stream.tables.expressions import TRUE, Predicate, make_leaf

BATCH_COUNTS: Final = 100
_NO_KEY: Final = bytes(32)


def measure_engine(source: TableSource, limits: EngineLimits | None = None) -> EngineTimes:
    """Load a source's table into its engine's database, and time questions about its largest attribute.

    The database is removed at the end. UnreadableError if the disk has no room, Missing without the extra.
    """
    began = perf_counter()
    table = build_table(read_rows(source, None, limits), source, _NO_KEY)
    loading = perf_counter() - began
    name, size = max(((name, domain.size) for name, domain in source.attributes.items()), key=lambda one: one[1])

    def count(low: int) -> Predicate:
        return make_leaf(name, size, (low % size, low % size + 1))

    table.count(TRUE)  # the first statement of a process takes longer
    return EngineTimes(
        source.engine,
        loading,
        _time(lambda: table.count(count(0))),
        _time(lambda: table.count_together([count(low) for low in range(1, BATCH_COUNTS + 1)], ())),
        _time(lambda: table.group_counts([name], count(0))),
    )


def _time(step: Callable[[], object]) -> float:
    began = perf_counter()
    step()
    return perf_counter() - began
