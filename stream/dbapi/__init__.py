"""DB-API 2.0 (PEP 249) for Sotto: connections and cursors that ask statements through a client.

Everything is read-only: there is nothing to commit or to roll back.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date as Date  # noqa: N812  (the names that DB-API requires)
from datetime import datetime as Timestamp  # noqa: N812
from datetime import time as Time  # noqa: N812
from itertools import islice
from typing import Any, Final, Self

from schemas import Domain, Text
from stream.client.blocking_client import Client, SyncCalls
from stream.errors import Forbidden, Invalid, NotAnswered, SottoError, Timeout, Unknown, Unreachable
from stream.formatting import ROWS_LEFT_OUT
from stream.questions.question_forms import ANSWER_TIMEOUT
from stream.questions.result_text import ERROR_SUFFIX, HIGH_SUFFIX, INFORMATIVE_SUFFIX, LOW_SUFFIX
from stream.settings import Settings
from stream.sql.aggregates import StatementError
from stream.sql.result_tables import Table
from stream.sql.select_statements import parse_statement
from stream.sql.statement_text import Parameters, bind_parameters
from stream.sql.stream_choice import list_tables

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Binary = bytes
DateFromTicks = Date.fromtimestamp
TimestampFromTicks = Timestamp.fromtimestamp


class Warning(UserWarning):  # noqa: A001  (the name that DB-API requires)
    """A warning about an answer, such as a number that is not informative."""


class Error(Exception):
    """Base class of all errors of this module."""


class InterfaceError(Error):
    """The connection or the cursor is closed, or has no result."""


class DatabaseError(Error):
    """Base class of the errors of an installation."""


class DataError(DatabaseError):
    """Required by DB-API; never raised."""


class OperationalError(DatabaseError):
    """The installation cannot answer: unreachable, forbidden, too late, too dear, halted or exhausted."""


class IntegrityError(DatabaseError):
    """Required by DB-API; never raised."""


class InternalError(DatabaseError):
    """Required by DB-API; never raised."""


class ProgrammingError(DatabaseError):
    """The statement, a parameter, a table or an option is wrong; nothing is charged."""


class NotSupportedError(DatabaseError):
    """Required by DB-API; never raised: a statement that is not supported is a ``ProgrammingError``."""


_ERROR_CLASSES: Final[tuple[tuple[tuple[type[SottoError], ...], type[DatabaseError]], ...]] = (
    ((Invalid, Unknown), ProgrammingError),
    ((NotAnswered, Timeout, Unreachable, Forbidden), OperationalError),
    ((SottoError,), DatabaseError),
)


@contextmanager
def convert_errors() -> Iterator[None]:
    """Raise a client's error as an error of DB-API with the same message."""
    try:
        yield
    except SottoError as error:
        kind = next(kind for causes, kind in _ERROR_CLASSES if isinstance(error, causes))
        raise kind(str(error)) from None


STRING: Final = str
NUMBER: Final = float
BINARY: Final = bytes
DATETIME: Final = Timestamp
ROWID: Final = int
"""Type codes, which DB-API requires; columns of results have STRING, NUMBER, ``int`` or ``bool``."""

_ENDINGS: Final = {
    "_error": ERROR_SUFFIX,
    "_low": LOW_SUFFIX,
    "_high": HIGH_SUFFIX,
    "_informative": INFORMATIVE_SUFFIX,
}
"""The endings of the column names that ``intervals`` adds, with the endings of a table's columns."""
_EPSILON: Final = "epsilon"

Description = tuple[str, type, None, None, None, None, None]
Row = tuple[Any, ...]

_PROBE: Final = re.compile(
    r"""\s*select\s+\*\s+from\s+(?:"(?P<quoted>[^"]+)"|(?P<name>\w+))\s+(?:where\s+1\s*=\s*0|limit\s+0)\s*;?\s*""",
    re.IGNORECASE,
)
"""A statement by which tools read the columns of a table, and no rows."""


def _describe(name: str, code: type) -> Description:
    return name, code, None, None, None, None, None


class Cursor:
    """Asks statements, and keeps the rows of the last statement."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[Description] | None = None
        self.rowcount = -1
        self._rows: Iterator[Row] | None = None
        self._is_closed = False

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Ask a statement; ``?`` takes the values of a sequence, and ``:name`` the values of a mapping."""
        return self.executemany(operation, [() if parameters is None else parameters])

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Ask a statement once for each set of parameters; the cursor then has the rows of all results."""
        self._require_open()
        self.description, self.rowcount, self._rows = None, -1, None
        rows: list[Row] = []
        found: dict[str, None] = {}
        for parameters in seq_of_parameters:
            self.description, more, texts = self.connection.ask(operation, parameters)
            rows += more
            found |= dict.fromkeys(texts)
        self.rowcount, self._rows = len(rows), iter(rows)
        for text in found:
            warnings.warn(text, Warning, stacklevel=3)
        return self

    def fetchone(self) -> Row | None:
        """Return the next row; None after the last row."""
        return next(self._require_rows(), None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """Return the next ``size`` rows, by default ``arraysize``."""
        return list(islice(self._require_rows(), self.arraysize if size is None else size))

    def fetchall(self) -> list[Row]:
        """Return the rows that are left."""
        return list(self._require_rows())

    def __iter__(self) -> Iterator[Row]:
        return self._require_rows()

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing: required by DB-API."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: required by DB-API."""

    def close(self) -> None:
        """Forget the rows; further calls raise ``InterfaceError``."""
        self._is_closed, self._rows = True, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("cursor: is closed; open another one with connection.cursor()")
        self.connection.require_open()

    def _require_rows(self) -> Iterator[Row]:
        self._require_open()
        if self._rows is None:
            raise InterfaceError("cursor: has no result; execute a statement first")
        return self._rows


class Connection:
    """A read-only connection; threads may share it, each with its own cursor."""

    def __init__(
        self,
        client: SyncCalls,
        *,
        intervals: bool,
        epsilon: bool,
        max_price: float | str | None,
        timeout: float | None,
        disconnects: bool,
    ) -> None:
        self._client: SyncCalls | None = client
        self._intervals = intervals
        self._epsilon = epsilon
        self._max_price = max_price
        self._timeout = timeout
        self._disconnects = disconnects
        self._warned_of_rows = set[str]()

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self.require_open()
        return Cursor(self)

    def commit(self) -> None:
        """Do nothing: statements change no data."""
        self.require_open()

    def rollback(self) -> None:
        """Do nothing: a charge stays, because its answer is published."""
        self.require_open()

    def close(self) -> None:
        """Disconnect the client that ``connect`` created; further calls raise ``InterfaceError``."""
        client, self._client = self._client, None
        if self._disconnects and isinstance(client, Client):
            client.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_open(self) -> SyncCalls:
        """Return the client; ``InterfaceError`` if the connection is closed."""
        if self._client is None:
            raise InterfaceError("connection: is closed; open another one with connect()")
        return self._client

    def tables(self) -> dict[str, dict[str, Domain | Text]]:
        """Return the sources and streams that FROM can name now, and the attributes of each."""
        client = self.require_open()
        with convert_errors():
            return list_tables(client.list_sources(), client.list_streams())

    def ask(self, operation: str, parameters: Parameters) -> tuple[list[Description], list[Row], Sequence[str]]:
        """Return the columns, the rows and the warnings of a statement's result."""
        client = self.require_open()
        probe = _PROBE.fullmatch(operation)
        if probe and (attributes := self.tables().get(probe["quoted"] or probe["name"])):
            return [_describe(name, STRING) for name in attributes], [], []
        with convert_errors():
            statement = bind_parameters(operation, parameters)
            self._require_distinct_names(statement)
            table = client.sql(statement, timeout=self._timeout, max_price=self._max_price)
            table.results.checked()
        columns = self._columns(table)
        rows = [
            tuple(
                table.epsilon if key is None else row.get(key, True if key.endswith(INFORMATIVE_SUFFIX) else None)
                for key in columns.values()
            )
            for row in table
        ]
        cells = zip(*rows, strict=True) if rows else [()] * len(columns)
        kinds = [{type(one) for one in column if one is not None} for column in cells]
        types = [kind.pop() if len(kind) == 1 else STRING if str in kind else NUMBER for kind in kinds]
        return [*map(_describe, columns, types)], rows, self._news(table)

    def _news(self, table: Table) -> list[str]:
        """Return the warnings to show; the one about incomplete rows is shown once for each stream, which it names."""
        found = [text for text in table.warnings if text != ROWS_LEFT_OUT]
        if len(found) < len(table.warnings) and table.stream not in self._warned_of_rows:
            self._warned_of_rows.add(table.stream)
            found.append(f"{ROWS_LEFT_OUT} (stream '{table.stream}')")
        return found

    def _require_distinct_names(self, statement: str) -> None:
        """Refuse a column name that an added column has too, before anything is charged."""
        if not self._intervals and not self._epsilon:
            return
        names = [column.name for column in parse_statement(statement).columns]
        taken = {_EPSILON} if self._epsilon else set()
        taken |= {name + end for name in names for end in _ENDINGS if self._intervals}
        if clash := next((name for name in names if name in taken), None):
            raise StatementError(
                f"column '{clash}': is also added by the connection's options; give it another name with AS"
            )

    def _columns(self, table: Table) -> dict[str, str | None]:
        """Return the names of the result's columns, each with its column in the table; None for ε."""
        found: dict[str, str | None] = {}
        for name in table.columns:
            if name.endswith(tuple(_ENDINGS.values())):
                continue
            found[name] = name
            if self._intervals and name + ERROR_SUFFIX in table.columns:
                found |= {name + ending: name + suffix for ending, suffix in _ENDINGS.items()}
        return found | ({_EPSILON: None} if self._epsilon else {})


def connect(
    installation: SyncCalls | Settings | str | None = None,
    *,
    intervals: bool = False,
    epsilon: bool = False,
    max_price: float | str | None = None,
    timeout: float | None = ANSWER_TIMEOUT,
    **settings: Any,
) -> Connection:
    """Connect to an installation: Kafka's address, settings, a ``Client`` or a ``Driver``.

    Without an address, the environment's settings apply, as for ``Client``. ``intervals`` adds four columns after each
    number ``n``: its error bound ``n_error``, the ends of its 95 % confidence interval, ``n_low`` and ``n_high``, and
    ``n_informative``, which says whether it is informative. ``epsilon`` adds a column with the ε of the whole statement.
    ``max_price`` and ``timeout`` apply to each question.

    Examples:
        >>> from sotto import dbapi
        >>> cursor = dbapi.connect(client).cursor()
        >>> rows = cursor.execute("SELECT sex, COUNT(*) FROM people WHERE age < ? GROUP BY sex", [65])
        >>> [sex for sex, count in rows]
        ['F', 'M']
    """
    client: SyncCalls
    with convert_errors():
        if disconnects := not isinstance(installation, SyncCalls):
            client = Client(installation, **settings)
            client.connect()
        else:
            client = installation
    return Connection(
        client, intervals=intervals, epsilon=epsilon, max_price=max_price, timeout=timeout, disconnects=disconnects
    )
