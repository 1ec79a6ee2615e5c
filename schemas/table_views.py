"""Views: the rows of a table source as a SELECT over several tables."""

from __future__ import annotations

from os.path import normpath
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from schemas.base import SparingEvent, text_matching
from schemas.domains import AttributeName
from schemas.table_places import Address

MAX_VIEW_TABLES = 16
MAX_VIEW_LENGTH = 16_384

TablePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
"""A file, a folder with ``/`` at its end, a pattern, or an address."""

ViewTableName = Annotated[
    str,
    text_matching(
        r"^[A-Za-z_][A-Za-z0-9_]*$",
        "a table's name in a view has only letters from A to Z and a to z, digits and _, and begins with no digit; give one, as airports",
        min_length=1,
        max_length=63,
    ),
]
ColumnKind = Literal["text", "integer", "number", "boolean", "date"]


def require_public_path(path: str) -> str:
    """Return a path; ValueError if it is an invalid address."""
    Address.parse_table(path)
    return path


def _place_of(path: str) -> str:
    return path if "://" in path else normpath(path)


class ViewTable(SparingEvent):
    """One table of a view: rows of people or, with a ``key``, a public lookup table.

    ``columns`` has the kinds of the columns that expressions use. A cell that is not of its column's kind is
    NULL, as is an empty text. A column that the view only selects needs no kind.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"columns", "person", "key"})

    path: TablePath
    columns: Annotated[dict[AttributeName, ColumnKind], Field(max_length=256)] = Field(default_factory=dict)
    person: AttributeName | None = None
    key: Annotated[tuple[AttributeName, ...], Field(max_length=8, strict=False)] = ()

    _has_public_path = field_validator("path")(require_public_path)

    @model_validator(mode="after")
    def _check_columns(self) -> ViewTable:
        if self.key and self.person is not None:
            raise ValueError("key, person: a table with a key is public and has no person; leave one of them out")
        if len(set(self.key)) < len(self.key):
            raise ValueError("key: names a column twice; name each once")
        if not set(self.key) <= self.columns.keys():
            raise ValueError("key: its columns need a kind; declare them in columns")
        if self.person is not None and self.person in self.columns:
            raise ValueError("columns: the person's column has no kind; leave it out there")
        return self


class View(SparingEvent):
    """A SELECT of one row of people's data at a time, joined to lookup tables and to rows of the same person."""

    select: Annotated[str, StringConstraints(min_length=1, max_length=MAX_VIEW_LENGTH)]
    tables: Annotated[dict[ViewTableName, ViewTable], Field(min_length=1, max_length=MAX_VIEW_TABLES)]

    @model_validator(mode="after")
    def _check_names(self) -> View:
        if len({name.casefold() for name in self.tables}) < len(self.tables):
            raise ValueError("tables: two names differ in case only; rename one")
        people = {_place_of(table.path) for table in self.tables.values() if not table.key}
        if any(_place_of(table.path) in people for table in self.tables.values() if table.key):
            raise ValueError(
                "key: a table with a key is public, and another table with its path has rows of people; "
                "leave the key out, or give the path of a public table"
            )
        return self

    def require_person(self, person: str | None) -> None:
        """Raise ValueError unless the tables of people fit a source with or without a person column."""
        people = [table for table in self.tables.values() if not table.key]
        if person is None and any(table.person is not None for table in people):
            raise ValueError("person: a table of the view has persons; name the view's column with the person")
        if person is None and len(people) != 1:
            raise ValueError(
                f"view: {len(people)} tables without a key, and no person; without persons exactly one table has rows of "
                "people, so give the others a key, or name the person"
            )
        if person is not None and (not people or any(table.person is None for table in people)):
            raise ValueError(
                "view: each table needs a person or, if it is public, a key, and one a person; name them"
            )
