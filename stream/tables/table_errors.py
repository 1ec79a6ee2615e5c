"""Errors about tables and predicates; their messages contain no private data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from unicodedata import normalize

from stream.formatting import find_name_in_other_case

MAX_MESSAGE_LENGTH = 300
_MAX_QUOTED_LENGTH = 60
_MAX_QUOTED_NAMES_LENGTH = 120
MONDAY_IS_1: Final = "1 is Monday, 7 is Sunday"


def to_one_line(text: str, length: int = MAX_MESSAGE_LENGTH) -> str:
    """Return the text as one line of at most ``length`` characters, with invisible characters escaped."""
    line = text if text.isprintable() else "".join(map(_to_printable, text))
    return line if len(line) <= length else line[: length - 1] + "…"


def _to_printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\t\n\r\v\f" else character.encode("unicode_escape").decode()


def quote_name(text: str) -> str:
    """Quote a name or a literal, truncated to fit a message."""
    return f"'{to_one_line(text, _MAX_QUOTED_LENGTH)}'"


def to_nfc(text: str) -> str:
    """Normalize a text to NFC: ``ä`` may also be written as ``a`` with a combining mark."""
    return normalize("NFC", text)


def quote_names(names: Iterable[str]) -> str:
    """Quote several names; an ellipsis replaces the names that do not fit in a message."""
    found, room = "", _MAX_QUOTED_NAMES_LENGTH
    for name in names:
        room -= len(quote_name(name)) + 2
        if found and room < 0:
            return f"{found}, …"
        found += f"{', ' if found else ''}{quote_name(name)}"
    return found


def undeclared_name_message(place: int, name: str, names: Collection[str], owner: str) -> str:
    """Return the message about an undeclared name; it gives the name's position, because the name is private."""
    similar_name = find_name_in_other_case(name, names)
    hint = f"; did you mean {quote_name(similar_name)}?" if similar_name is not None else ""
    return f"name {place + 1} is no attribute of {owner} {quote_names(names)}{hint}"


def private_text_message(name: str) -> str:
    """Return the message about a text attribute in a question that takes only attributes with declared values."""
    return (
        f"attribute {quote_name(name)} is a text, whose values are private; group by it on a stream of unknown_groups, or "
        "declare its values"
    )


class TableDataError(ValueError):
    """A table cannot be used as declared.

    Messages are one printable line of at most 300 characters. They name attributes, paths and declared values,
    which are public, and never a cell, a row or a number of rows.
    """

    def __init__(self, message: str) -> None:
        super().__init__(to_one_line(message))


_HIDDEN_CAUSE_MESSAGE: Final = (
    "path: no table can be read there; give a well-formed .csv, .csv.gz or .parquet file, a folder of them with '/' at "
    "its end, or an address, that lies in the deployment's table roots, that its services may read, and that is within "
    "their limits (their log says more)"
)
OUTSIDE_ROOTS: Final = "outside SOTTO_TABLE_ROOTS"
LARGER_THAN_MEMORY: Final = "larger than SOTTO_TABLE_BYTES"
FILES_TOO_LARGE: Final = "larger than SOTTO_TABLE_READING_BYTES"
"""Like ``LARGER_THAN_MEMORY``, only for tables in memory: the engine DuckDB has neither limit."""


class UnreadableError(TableDataError):
    """No table can be read at a source's path.

    - The message names the public ``cause`` and, for a folder, the ``file``.
    - If ``hidden``, the message is the same for all causes, so that the registration of a source does not reveal which
      files a service can see. The log has the cause.
    - ``lasting`` is true if the error remains until the table changes.
    - ``where`` is the position in the file. It is private, so callers of a service do not get it.
    """

    def __init__(
        self, cause: str, *, lasting: bool = True, where: str = "", file: str = "", hidden: bool = False
    ) -> None:
        self.cause = cause
        self.lasting = lasting
        self.where = where
        self.file = file
        super().__init__(_HIDDEN_CAUSE_MESSAGE if hidden else f"path: no table can be read there: {self.problem}")

    @property
    def problem(self) -> str:
        """The file, the cause and the remedy."""
        prefix = f"{quote_name(self.file)}: " if self.file else ""
        return f"{prefix}{self.cause}" if ";" in self.cause else f"{prefix}{self.cause}; {self.remedy}"

    def in_file(self, file: str) -> UnreadableError:
        """Return the error with the file's name in the table's folder, unless it has one already."""
        return UnreadableError(self.cause, lasting=self.lasting, where=self.where, file=self.file or file)

    def for_callers(self, *, hidden: bool) -> UnreadableError:
        """Return the error for callers of a service, without the cause if ``hidden``."""
        return UnreadableError(self.cause, lasting=self.lasting, file=self.file, hidden=hidden)

    @property
    def remedy(self) -> str:
        """The remedy for the cause."""
        if self.cause in {LARGER_THAN_MEMORY, FILES_TOO_LARGE}:
            return 'raise that limit, or register a new source over it with "engine": "duckdb"'
        if self.cause == OUTSIDE_ROOTS:
            return "move the table below one of these folders or addresses, or ask the operator to add the table's"
        if "SOTTO_" in self.cause:
            return "make the table smaller, or raise that limit"
        return "give a well-formed .csv, .csv.gz or .parquet file, a folder of them with '/' at its end, or an address"


COLUMN_ERRORS: Final = {
    "missing": "{table} has no column {column}; add it or leave the attribute out",
    "repeated": "key: column {column} of a lookup table has one value in several rows; leave one row for each key",
    "no person": "person: {table} has no column {column}; add it, or name the column that says whose each row is",
    "no text": "column {column}{place} has type {kind}, not text, whole or floating numbers, or booleans; write it as text",
    "no dates": "column {column}{place} has type {kind}, not dates, local times or text; write it as text, or declare a timestamp",
    "no times": "column {column}{place} has type {kind}, not times, dates or text; write it as text in ISO 8601",
    "no numbers": "column {column}{place} has type {kind}, not numbers, text or booleans; write it as numbers",
}
"""Messages about declared columns, by the kind of error."""


class ColumnError(TableDataError):
    """A declared column is missing, or has an unsupported type.

    ``details`` are a key of ``COLUMN_ERRORS``, the column and its type. A reading process sends these three;
    the service verifies them and rebuilds the error. ``file`` is the file's name in the table's folder.
    """

    def __init__(self, problem: str, column: str, kind: str = "", file: str = "") -> None:
        table = f"file {quote_name(file)}" if file else "the table"
        place = f" of {table}" if file else ""
        super().__init__(
            COLUMN_ERRORS[problem].format(column=quote_name(column), kind=kind, table=table, place=place)
        )
        self.details = (problem, column, kind)
        self.file = file

    def in_file(self, file: str) -> ColumnError:
        """Return the error with the file's name in the table's folder."""
        return ColumnError(*self.details, file)


class PredicateError(TableDataError):
    """A predicate is not in the accepted part of SQL, or does not fit the declared attributes.

    The error depends on the text and the declared attributes alone. The message may be published, so it quotes only
    declared names. ``culprit`` is the invalid part of the text; messages give only its position.
    """

    def __init__(self, message: str, culprit: str | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit
