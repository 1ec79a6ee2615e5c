"""Holds the codes of one table in DuckDB, and counts them.

A database is a file in a folder of its process, and is deleted with its object. It has only integers: codes of
attributes and texts, and numbers of people. Statements are Ibis expressions; no SQL text is written here.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import finalize

import duckdb
import ibis
import ibis.expr.datatypes as dt
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stream.tables.encoding import CodeArray, code_type
from stream.tables.engine_limits import EngineLimits, StatementRunner
from stream.tables.expressions import TRUE, AllOf, AnyOf, Codes, Constant, Predicate
from stream.tables.people import PERSON
from stream.tables.table_errors import UnreadableError

Numbers = npt.NDArray[np.int64]

_REAL: Final = "real"
"""The name of the column that is 1 in rows of the table, and 0 in filler rows (see ``CodeTable.append``)."""

Measure = tuple[str | None, Predicate]
"""The sum of an attribute's codes over the rows that match a predicate or, if the attribute is None, their number."""

_FOLDER_PREFIX: Final = "sotto-codes-"
_LOCK_NAME: Final = "lock"
_TYPES: Final = {1: "uint8", 2: "uint16", 4: "uint32"}
_PERFECT_GROUP_BITS: Final = 20
"""Groups of up to 2^20 cells are counted in an array, three times as fast as in a hash table."""
_BLOCK_ROWS: Final = 1 << 20
_ROWS_BETWEEN_FILLERS: Final = 1 << 14
"""Number of rows between filler rows. DuckDB stores segments of up to 122,880 rows, so each segment has filler rows."""


class CodeDatabase:
    """A database of codes in a file that only this process reads."""

    def __init__(self, limits: EngineLimits) -> None:
        """Create an empty database; UnreadableError if it cannot be created."""
        try:
            folder = tempfile.mkdtemp(dir=_process_folder(limits.folder))
            self._connection = duckdb.connect(
                str(Path(folder, "codes.duckdb")),
                config={
                    "memory_limit": f"{limits.memory_bytes >> 20}MiB",
                    "temp_directory": str(Path(folder, "temporary")),
                    "max_temp_directory_size": f"{limits.disk_bytes >> 20}MiB",
                    # Without compression the size of a table, and so the time of a scan, does not depend on the codes.
                    "force_compression": "uncompressed",
                    "perfect_ht_threshold": _PERFECT_GROUP_BITS,
                    "preserve_insertion_order": False,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                },
            )
        except Exception as error:  # noqa: BLE001  (the text of an engine's error stays here)
            raise _load_error(error) from None
        self._runner = StatementRunner(limits, self._connection.interrupt)
        self._tables = 0
        finalize(self, _remove_database, self._connection, folder)

    def create_table(self, sizes: Mapping[str, int | None]) -> CodeTable:
        """Create a table with a column for each entry of ``sizes``; codes without a known size take 4 bytes."""
        name, self._tables = f"table{self._tables}", self._tables + 1
        columns = {column: f"c{place}" for place, column in enumerate(sizes)}
        types = {
            columns[one]: _TYPES[4 if size is None else code_type(size).itemsize] for one, size in sizes.items()
        }
        types[_REAL] = "uint8"
        try:
            self._connection.from_arrow(pa.table({one: pa.array([], kind) for one, kind in types.items()})).create(
                name
            )
        except Exception as error:  # noqa: BLE001
            raise _load_error(error) from None
        return CodeTable(self, ibis.table(types, name=name), columns, sizes)

    def insert(self, table: str, columns: Mapping[str, CodeArray]) -> None:
        """Add rows to a table; UnreadableError if the disk has no room."""
        rows = pa.table({name: pa.array(codes) for name, codes in columns.items()})
        try:
            self._connection.from_arrow(rows).insert_into(table)
        except Exception as error:  # noqa: BLE001
            raise _load_error(error) from None

    def run(self, expression: ibis.Table) -> list[Numbers]:
        """Return the columns of an expression's result; all values are integers.

        The SQL text is made before the time of the statement begins, because Ibis cannot be interrupted.
        """
        text = _make_sql(expression)
        with self._runner.limit_statement(text):
            found = self._make_relation(text).to_arrow_table()
            # Sums have more than 64 bits in DuckDB; the conversion fails if a sum does not fit into 64.
            return [column.fill_null(0).cast(pa.int64()).to_numpy() for column in found.columns]

    def stream(self, expression: ibis.Table) -> Iterator[list[npt.NDArray[Any]]]:
        """Yield the columns of an expression's result in blocks of rows, without a limit on the time."""
        text = _make_sql(expression)
        with self._runner.guard_reading():
            for batch in self._make_relation(text).to_arrow_reader(_BLOCK_ROWS):
                yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]

    def _make_relation(self, text: str) -> duckdb.DuckDBPyRelation:
        return self._connection.sql(text)


class CodeTable:
    """One table of a database: a column of codes for each attribute and text, and for ``PERSON``."""

    def __init__(
        self,
        database: CodeDatabase,
        expression: ibis.Table,
        columns: Mapping[str, str],
        sizes: Mapping[str, int | None],
    ) -> None:
        self._database = database
        self._columns = columns
        self._sizes = sizes
        self.names: Final = list(columns)
        self.expression: Final = expression

    def append(self, codes: Mapping[str, CodeArray]) -> None:
        """Add rows, which have all columns of the table.

        Two filler rows, with the least and the largest codes, are added before each ``_ROWS_BETWEEN_FILLERS`` rows.
        They do not count. So no stored segment is constant, and each column has the range of its domain: otherwise
        DuckDB would be faster for constant segments and would plan by ranges, which one person's row could change.
        """
        rows = len(next(iter(codes.values())))
        places = np.repeat(np.arange(0, rows, _ROWS_BETWEEN_FILLERS), 2)

        def add_fillers(column: CodeArray, largest: int) -> CodeArray:
            ends = np.tile(np.array([0, largest], dtype=column.dtype), len(places) // 2)
            return np.insert(column, places, ends)

        columns = {
            self._columns[name]: add_fillers(codes[name], 0 if size is None else size - 1)
            for name, size in self._sizes.items()
        }
        columns[_REAL] = add_fillers(np.ones(rows, dtype=np.uint8), 0)
        self._database.insert(self.expression.get_name(), columns)

    def measure(self, measures: Sequence[Measure]) -> list[int]:
        """Compute several measures in one statement."""
        found = {
            f"m{place}": _count_if(self._match_condition(predicate))
            if name is None
            else (self._match_flags(predicate) * self._column(name).cast("int64")).sum()
            for place, (name, predicate) in enumerate(measures)
        }
        return [int(column[0]) for column in self._database.run(self.expression.aggregate(**found))]

    def count_groups(
        self, names: Sequence[str], predicate: Predicate, *, people: bool = False
    ) -> tuple[list[Numbers], Numbers]:
        """Return the codes of the groups with at least one row, and each group's number of matching rows or people."""
        keys = [self._columns[name] for name in names]
        if people:
            person = self._columns[PERSON]
            matching = self.expression.group_by(*keys, person).aggregate(n=self._match_flags(predicate).max())
            found = matching.group_by(*keys).aggregate(n=matching.n.sum())
        else:
            found = self.expression.group_by(*keys).aggregate(n=_count_if(self._match_condition(predicate)))
        *codes, counts = self._database.run(found)
        return codes, counts

    def count_people(self, predicate: Predicate, min_rows: int) -> int:
        """Return the number of people with at least ``min_rows`` matching rows."""
        person = self._columns[PERSON]
        people = self.expression.group_by(person).aggregate(n=_count_if(self._match_condition(predicate)))
        [[count]] = self._database.run(people.aggregate(n=_count_if(people.n >= min_rows)))
        return int(count)

    def count_rows_of_people(self) -> tuple[Numbers, Numbers]:
        """Return the people with at least one row, as their numbers, and each person's number of rows."""
        people = self.expression.group_by(self._columns[PERSON])
        numbers, counts = self._database.run(people.aggregate(n=_count_if(self._match_condition(TRUE))))
        return numbers, counts

    def sum_clamped(self, name: str, minimum: int, predicate: Predicate, low: int, high: int) -> int:
        """Return the total of all people's clamped sums of code + ``minimum`` over their matching rows.

        Without a person column each row is one person.
        """
        values = self._match_flags(predicate) * (self._column(name).cast("int64") + minimum)
        if PERSON in self._columns:
            people = self.expression.group_by(self._columns[PERSON]).aggregate(n=values.sum())
            clamped = people.aggregate(n=people.n.cast("int64").clip(low, high).sum())
        else:
            clamped = self.expression.aggregate(n=values.clip(low, high).sum())
        [[total]] = self._database.run(clamped)
        return int(total)

    def blocks(
        self, names: Sequence[str], people: tuple[int, int] | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield columns in blocks of rows, in any order: of all rows, or of the rows of a range of people."""
        rows = self.expression.filter(self.expression[_REAL] == 1)
        if people is not None:
            person = self._column(PERSON)
            rows = rows.filter(person >= people[0], person < people[1])
        for columns in self._database.stream(rows.select(*(self._columns[name] for name in names))):
            yield dict(zip(names, columns, strict=True))

    def _column(self, name: str) -> Any:
        return self.expression[self._columns[name]]

    def _match_flags(self, predicate: Predicate) -> Any:
        """Return 1 for each matching row and 0 for others."""
        return self._match_condition(predicate).cast("int64")

    def _match_condition(self, predicate: Predicate) -> Any:
        """Return the condition that a row matches.

        Statements compute it for all rows instead of filtering by it, so their time depends little on how many match.
        """
        return self._translate_predicate(predicate) & (self.expression[_REAL] == 1)

    def _translate_predicate(self, predicate: Predicate) -> Any:
        match predicate:
            case Constant(holds):
                return ibis.literal(holds)
            case Codes(attribute, size, cuts):
                return self._translate_codes(self._column(attribute), size, cuts)
            case AllOf(parts):
                return _combine(
                    [self._translate_predicate(part) for part in parts], lambda one, other: one & other
                )
            case AnyOf(parts):
                return _combine(
                    [self._translate_predicate(part) for part in parts], lambda one, other: one | other
                )

    def _translate_codes(self, column: Any, size: int, cuts: Sequence[int]) -> Any:
        ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
        single = [low for low, high in ranges if high == low + 1]
        tests = [column == single[0]] if len(single) == 1 else [column.isin(single)] if single else []
        for low, high in ranges:
            if high > low + 1:
                ends = [column >= low] * (low > 0) + [column < high] * (high < size)
                tests.append(_combine(ends, lambda one, other: one & other))
        return _combine(tests, lambda one, other: one | other)


@ibis.udf.agg.builtin(name="count_if", signature=((dt.boolean,), dt.int64))  # type: ignore[untyped-decorator]
def _count_if(condition: Any) -> Any:
    """Count the rows that satisfy a condition, by DuckDB; the time does not depend on their number."""


def _make_sql(expression: ibis.Table) -> str:
    return str(ibis.to_sql(expression, dialect="duckdb"))


def _combine(parts: Sequence[Any], combine: Any) -> Any:
    """Combine conditions in a balanced tree, because a chain of hundreds of conditions would nest too deeply."""
    while len(parts) > 1:
        pairs = [combine(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def _load_error(error: Exception) -> UnreadableError:
    """Return the error of a failed load; it names only the kind of failure, because its text may quote a value."""
    if isinstance(error, UnreadableError):
        return error
    return UnreadableError(
        f"its codes could not be stored ({type(error).__name__}); free disk space below SOTTO_ENGINE_FOLDER, or raise "
        "SOTTO_ENGINE_MEMORY_BYTES",
        lasting=False,
    )


_folder_lock: Final = Lock()
_process_folders: Final[dict[tuple[int, str], Path]] = {}


def _process_folder(parent: str) -> Path:
    """Return the folder of this process's databases; the first call removes the folders of ended processes."""
    with _folder_lock:
        key = (os.getpid(), parent)
        if key not in _process_folders:
            root = Path(parent or tempfile.gettempdir())
            root.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(root)
            folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=root))
            # The descriptor stays open, and the operating system unlocks the file when the process ends. The file
            # is renamed only after it is locked, so no other process finds it unlocked before.
            descriptor, unlocked = tempfile.mkstemp(dir=folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            Path(unlocked).rename(folder / _LOCK_NAME)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _process_folders[key] = folder
        return _process_folders[key]


def _remove_abandoned(root: Path) -> None:
    """Remove the folders of ended processes; their locks are free."""
    for folder in root.glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _remove_database(connection: duckdb.DuckDBPyConnection, folder: str) -> None:
    with suppress(Exception):
        connection.close()
    shutil.rmtree(folder, ignore_errors=True)
