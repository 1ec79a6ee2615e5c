"""What goes wrong with tables and predicates, told without a word of private data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from unicodedata import normalize

from stream.formatting import in_other_case

MAX_MESSAGE_LENGTH = 300
_SHOWN_LENGTH = 60
_LISTED_LENGTH = 120


def one_line(text: str, length: int = MAX_MESSAGE_LENGTH) -> str:
    """The text on one printable line of at most ``length`` characters."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= length else line[: length - 1] + "…"


def shown(text: str) -> str:
    """A name or a literal in quotes, cut to a length that fits a message."""
    return f"'{one_line(text, _SHOWN_LENGTH)}'"


def normal(text: str) -> str:
    """A text with each sign in one piece, where Unicode has it so: ``ä`` may be an ``a`` and two dots, too, and looks the same."""
    return normalize("NFC", text)


def listed(names: Iterable[str]) -> str:
    """Declared names in quotes, as many as fit a message, and a sign that there are more."""
    found, room = "", _LISTED_LENGTH
    for name in names:
        room -= len(shown(name)) + 2
        if found and room < 0:
            return f"{found}, …"
        found += f"{', ' if found else ''}{shown(name)}"
    return found


def no_attribute(place: int, name: str, names: Collection[str], whole: str) -> str:
    """Say that the name at a place is none of the declared ``names`` of ``whole``; the name itself is not shown."""
    meant = in_other_case(name, names)
    hint = f"; did you mean {shown(meant)}?" if meant is not None else ""
    return f"name {place + 1} is no attribute of {whole} {listed(names)}{hint}"


class DataError(ValueError):
    """A table cannot be used as declared.

    Messages are one printable line of at most 300 characters. They name attributes, paths and declared values,
    which are public, and never a cell, a row or a number of rows.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


_HIDDEN: Final = (
    "path: no table can be read there; give a well-formed .csv, .csv.gz or .parquet file, a folder of them with '/' at "
    "its end, or an address, that lies in the deployment's table roots, that its services may read, and that is within "
    "their limits (their log says more)"
)
OUTSIDE: Final = "outside SOTTO_TABLE_ROOTS"


class UnreadableError(DataError):
    """There is no table to be read at a source's path.

    The message names the ``cause``, in public words, and the ``file`` of a folder. With ``hidden`` it is one and the same whatever
    the cause: whoever may register a source with a service must not learn from it which files that service can see, and the
    cause is for the service's own log. ``lasting`` says whether the cause is the table's. ``where`` names the place in the file:
    it is private, for the table's owner alone, and leaves no process.
    """

    def __init__(
        self, cause: str, *, lasting: bool = True, where: str = "", file: str = "", hidden: bool = False
    ) -> None:
        self.cause = cause
        self.lasting = lasting
        self.where = where
        self.file = file
        super().__init__(_HIDDEN if hidden else f"path: no table can be read there: {self.problem}")

    @property
    def problem(self) -> str:
        """The file, the cause and its remedy."""
        begin = f"{shown(self.file)}: " if self.file else ""
        return f"{begin}{self.cause}" if ";" in self.cause else f"{begin}{self.cause}; {self._remedy()}"

    def in_file(self, file: str) -> UnreadableError:
        """The same error of a file of a folder; of the file that was named before, if any."""
        return UnreadableError(self.cause, lasting=self.lasting, where=self.where, file=self.file or file)

    def for_callers(self, *, hidden: bool) -> UnreadableError:
        """The same error as callers of a service get it, without the cause if it is ``hidden``."""
        return UnreadableError(self.cause, lasting=self.lasting, file=self.file, hidden=hidden)

    def _remedy(self) -> str:
        if self.cause == OUTSIDE:
            return "move it below one of these folders or addresses, or have whoever runs the services add its own"
        if "SOTTO_" in self.cause:
            return "make the table smaller, or raise that limit"
        return "give a well-formed .csv, .csv.gz or .parquet file, a folder of them with '/' at its end, or an address"


COLUMN_ERRORS: Final = {
    "missing": "{table} has no column {column}; add it or leave the attribute out",
    "no person": "person: {table} has no column {column}; add it, or name the column that says whose each row is",
    "no text": "column {column}{place} has type {kind}, not text, whole or floating numbers, or booleans; write it as text",
    "no numbers": "column {column}{place} has type {kind}, not numbers, text or booleans; write it as numbers",
}
"""What may be wrong with a declared column."""


class ColumnError(DataError):
    """A declared column is missing, or of a type that it is not read from.

    ``told`` is what is wrong, a key of ``COLUMN_ERRORS``, the column, and the name of its type: three words
    from which the error can be made again, and each of which can be looked up. ``file`` is that of a folder.
    """

    def __init__(self, wrong: str, column: str, kind: str = "", file: str = "") -> None:
        table = f"file {shown(file)}" if file else "the table"
        place = f" of {table}" if file else ""
        super().__init__(COLUMN_ERRORS[wrong].format(column=shown(column), kind=kind, table=table, place=place))
        self.told = (wrong, column, kind)
        self.file = file

    def in_file(self, file: str) -> ColumnError:
        """The same error of a file of a folder."""
        return ColumnError(*self.told, file)


class PredicateError(DataError):
    """A predicate is not in the accepted part of SQL, or does not fit the declared attributes.

    It depends on the text and the schema alone. The message may stand on a public topic, so it has nothing of the text but
    declared names: ``culprit`` is what it is about, for whoever has the text to tell where it stands.
    """

    def __init__(self, message: str, culprit: str | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit
