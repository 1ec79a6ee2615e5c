"""Places of tables: addresses in object stores and on servers, and views over several tables.

Each place has one canonical address. Addresses are public: no user, password or parameter is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from os.path import normpath
from typing import Annotated, Final, Literal, NamedTuple, cast

from pydantic import Field, StringConstraints, field_validator, model_validator

from schemas.base import Event, text_matching
from schemas.domains import AttributeName

Scheme = Literal["s3", "postgresql", "spark", "trino", "clickhouse", "bigquery", "snowflake", "databricks"]

WILDCARDS: Final = frozenset("*")


class _ServerForm(NamedTuple):
    """The form of a table's address on a kind of server; ``port`` is its default, None if addresses have no port."""

    host: str
    parts: str
    port: int | None = None

    @property
    def part_count(self) -> int:
        return len(self.parts.split("/"))


_SERVER_FORMS: Final = {
    "postgresql": _ServerForm("HOST[:PORT]", "DATABASE/SCHEMA/TABLE", 5432),
    "spark": _ServerForm("HOST[:PORT]", "CATALOG/SCHEMA/TABLE[@VERSION]", 15002),
    "trino": _ServerForm("HOST[:PORT]", "CATALOG/SCHEMA/TABLE", 8443),
    "clickhouse": _ServerForm("HOST[:PORT]", "DATABASE/TABLE", 8443),
    "bigquery": _ServerForm("PROJECT", "DATASET/TABLE"),
    "snowflake": _ServerForm("ACCOUNT", "DATABASE/SCHEMA/TABLE"),
    "databricks": _ServerForm("HOST", "CATALOG/SCHEMA/TABLE"),
}
_SCHEMES: Final = "s3:// or a server's name, as postgresql:// or spark://"

_ADDRESS_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_bucket = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_host = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_port = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_key_part = re.compile(r"[A-Za-z0-9._=+,~$-]+", re.ASCII)
_pattern_part = re.compile(r"[A-Za-z0-9._=+,~$*-]+", re.ASCII)
_database_part = re.compile(r"[A-Za-z0-9_$.-]+", re.ASCII)
_version = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A place in an object store (bucket, key) or on a server (database, schema, table).

    ``is_folder`` is true if the address ends in ``/``. Parts are case-sensitive. ``version`` is the number of a version
    that the server keeps; None for the newest version.
    """

    scheme: Scheme
    host: str
    port: int | None
    parts: tuple[str, ...]
    is_folder: bool
    version: int | None = None

    @classmethod
    def parse_table(cls, text: str) -> Address | None:
        """Parse a source's address, with wildcards; None if it is a path in a file system.

        A ValueError never quotes the text.
        """
        address = cls._parse(text, _pattern_part)
        if address is None:
            return None
        form = _SERVER_FORMS.get(address.scheme)
        if form is not None and (len(address.parts) != form.part_count or address.is_folder):
            raise ValueError(f"give a table there as {address.scheme}://{form.host}/{form.parts}")
        if not address.parts and not address.is_folder:
            raise ValueError(
                "give a bucket's objects as s3://BUCKET/KEY, and a folder of them with '/' at its end"
            )
        return address

    @classmethod
    def parse_root(cls, text: str) -> Address:
        """Parse the address of an allowed folder, without wildcards.

        A ValueError never quotes the text.
        """
        address = cls._parse(text, _key_part)
        if address is None:
            raise ValueError(f"not an address; begin with {_SCHEMES}")
        form = _SERVER_FORMS.get(address.scheme)
        if form is not None and (len(address.parts) > form.part_count or address.version is not None):
            raise ValueError(
                f"a root has at most the parts {address.scheme}://{form.host}/{form.parts.partition('[')[0]}"
            )
        return address

    @classmethod
    def _parse(cls, text: str, part: re.Pattern[str]) -> Address | None:
        if (found := _ADDRESS_PATTERN.fullmatch(text)) is None:
            if "://" in text:
                raise ValueError(f"a path contains no '://'; an address begins with {_SCHEMES}")
            return None
        scheme, authority, rest = found.groups()
        if "@" in authority:
            raise ValueError(
                "no user and no password in an address, because it is public; give them to the services in settings of "
                "the server's or store's client, as PGUSER and PGPASSFILE"
            )
        if "%" in text or "?" in text or "#" in text:
            raise ValueError("an address takes no '%', no parameters ('?') and no '#'; write names as they are")
        form = _SERVER_FORMS.get(scheme)
        if form is None and scheme != "s3":
            raise ValueError(f"an address begins with {_SCHEMES}; files have paths without a scheme")
        if form is None or form.port is None:
            host, port = authority, None
        else:
            host, port = _split_host_and_port(authority, form.port)
        if not (_bucket if form is None else _host).fullmatch(host):
            raise ValueError(
                "after s3:// give a bucket's name, after another scheme a host's, in lower case"
                + ("" if form is not None and form.port else " and without a port")
            )
        rest, version = _split_version(rest) if scheme == "spark" else (rest, None)
        is_folder = rest.endswith("/")
        names = rest.removeprefix("/").removesuffix("/").split("/") if rest not in {"", "/"} else []
        allowed = part if form is None else _database_part
        if any(name in {"", ".", ".."} or allowed.fullmatch(name) is None for name in names):
            raise ValueError(
                "parts of an address are letters, digits and '._-=+,~$', of ASCII, and neither empty nor '.' or '..'"
            )
        return cls(cast("Scheme", scheme), host, port, tuple(names), is_folder, version)

    @property
    def fixed_parts(self) -> tuple[str, ...]:
        """The parts before the first wildcard; all matches of the address lie below them."""
        index = next((at for at, name in enumerate(self.parts) if WILDCARDS & set(name)), len(self.parts))
        return self.parts[:index]

    def is_below(self, root: Address) -> bool:
        """Return whether the address lies below ``root``, with all matches of its wildcards."""
        return (self.scheme, self.host, self.port) == (root.scheme, root.host, root.port) and self.fixed_parts[
            : len(root.parts)
        ] == root.parts


def _split_host_and_port(authority: str, default: int) -> tuple[str, int]:
    host, colon, port = authority.partition(":")
    if colon and not (_port.fullmatch(port) and int(port) < 1 << 16):
        raise ValueError("a port is a number from 1 to 65535, without zeros before it")
    return host, int(port) if colon else default


def _split_version(text: str) -> tuple[str, int | None]:
    place, sign, number = text.partition("@")
    if sign and not _version.fullmatch(number):
        raise ValueError("a version after '@' is a number; give one from the table's history")
    return place, int(number) if sign else None


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


class ViewTable(Event, wire_omits={"columns", "person", "key"}):
    """One table of a view: rows of people or, with a ``key``, a public lookup table.

    ``columns`` has the kinds of the columns that expressions use. A cell that is not of its column's kind is NULL, and so
    is an empty text. A column that the view only selects needs no kind.
    """

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


class View(Event):
    """A SELECT over a table of people, which may join lookup tables, and other tables' rows of the same person."""

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
        """Raise ValueError unless the tables of people fit the source's person column, or its lack of one."""
        people = [table for table in self.tables.values() if not table.key]
        if person is None and any(table.person is not None for table in people):
            raise ValueError("person: a table of the view has persons; name the column of the view that has them")
        if person is None and len(people) != 1:
            raise ValueError(
                f"view: {len(people)} tables without a key, and no person; without a person only one table may have rows of "
                "people, so give the other tables a key, or name the person"
            )
        if person is not None and (not people or any(table.person is None for table in people)):
            raise ValueError(
                "view: each table needs a person or, if it is public, a key, and at least one table needs a person; name them"
            )
