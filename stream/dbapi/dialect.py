"""The SQLAlchemy dialect ``sotto://host:port/table``; works with SQLAlchemy 1.4, which Superset requires."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import ArgumentError, NoSuchTableError
from sqlalchemy.sql.compiler import IdentifierPreparer

from schemas import Dates, Decimals, Domain, Integers, Text
from stream import dbapi

_SCHEMA: Final = "main"
"""The name of the only schema, for tools that require a schema; statements do not name it."""
_KAFKA_PORT: Final = 9092


def _parse_flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _parse_seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < math.inf:
        raise ValueError(text)
    return seconds


_OPTIONS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "intervals": (_parse_flag, "true or false"),
    "epsilon": (_parse_flag, "true or false"),
    "max_price": (
        lambda text: text if text.endswith("%") else float(text),
        "an ε, such as 0.1, or a part of the stream's grant, such as 10%25",
    ),
    "timeout": (_parse_seconds, "seconds above 0"),
    "prefix": (str, "the prefix of the installation's topics"),
}
"""The options of a URL, each with its parser and a description of its values."""


class _Day(types.Date):  # type: ignore[misc]
    """A day, which answers give as text."""

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[str | None], date | None]:  # noqa: ARG002
        """Return the function that parses a day."""
        return lambda text: None if text is None else date.fromisoformat(text)


class _Preparer(IdentifierPreparer):  # type: ignore[misc]
    """Quotes names, and writes tables without their schema."""

    schema_for_object = staticmethod(lambda _: None)


class SottoDialect(DefaultDialect):  # type: ignore[misc]
    """The dialect: its tables are the sources and streams that FROM can name, and it reads only aggregates."""

    name = "sotto"
    driver = "dbapi"
    default_paramstyle = "qmark"
    preparer = _Preparer
    colspecs = {types.Date: _Day}  # noqa: RUF012
    supports_statement_cache = True
    supports_alter = False
    supports_native_boolean = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._only_table: str | None = None

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module."""
        return dbapi

    @classmethod
    def dbapi(cls) -> Any:
        """Return the DB-API module to SQLAlchemy 1.4."""
        return dbapi

    def create_connect_args(self, url: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of ``connect``; security settings come from the environment."""
        if url.username or url.password:
            raise ArgumentError(
                "URL: has a user or password; leave it out, and set SOTTO_SASL_USERNAME and SOTTO_SASL_PASSWORD_FILE"
            )
        self._only_table = url.database or None
        options = {}
        for name, text in url.query.items():
            if name not in _OPTIONS:
                raise ArgumentError(f"URL: '{name}' is not an option; there are {', '.join(_OPTIONS)}")
            parse, expected = _OPTIONS[name]
            try:
                options[name] = parse(text)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise ArgumentError(f"URL: {name} is not valid; give {expected}") from None
        if url.host is None:
            return [], options
        host = f"[{url.host}]" if ":" in url.host else url.host
        return [f"{host}:{url.port or _KAFKA_PORT}"], options

    def initialize(self, connection: Any) -> None:
        """Refuse a URL with the name of an unknown table, which may be meant as a prefix."""
        super().initialize(connection)
        if self._only_table is not None and self._only_table not in _tables(connection, {}):
            raise NoSuchTableError(
                f"URL: there is no source or open stream '{self._only_table}'; an installation is named by ?prefix="
            )

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Read the ledger, which fails if Kafka cannot be reached."""
        dbapi_connection.tables()
        return True

    def _get_default_schema_name(self, connection: Any) -> str:  # noqa: ARG002
        return _SCHEMA

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:  # noqa: ARG002
        """Return the only schema."""
        return [_SCHEMA]

    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the sources and open streams that answer statements, or only the table that the URL names."""
        if schema not in {None, _SCHEMA}:
            return []
        if self._only_table is None:
            return list(_tables(connection, kw))
        _attributes(connection, self._only_table, schema, kw)
        return [self._only_table]

    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        """Return whether FROM can name a table."""
        return schema in {None, _SCHEMA} and table_name in _tables(connection, kw)

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return the attributes that statements about a table can name."""
        return [
            {"name": name, "type": _type_of(domain), "nullable": False, "default": None, "autoincrement": False}
            for name, domain in _attributes(connection, table_name, schema, kw).items()
        ]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return no primary key, because rows are never returned."""
        _attributes(connection, table_name, schema, kw)
        return {"constrained_columns": [], "name": None}

    def _get_none(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Return no constraint or index."""
        _attributes(connection, table_name, schema, kw)
        return []

    get_foreign_keys = get_indexes = get_unique_constraints = get_check_constraints = _get_none

    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:  # noqa: ARG002
        """Return no view."""
        return []


def _tables(connection: Any, kw: dict[str, Any]) -> dict[str, dict[str, Domain | Text]]:
    """Return the tables of a connection; an inspector's cache keeps them."""
    cache: dict[str, Any] = kw.get("info_cache") or {}
    if "sotto_tables" not in cache:
        cache["sotto_tables"] = connection.connection.dbapi_connection.tables()
    found: dict[str, dict[str, Domain | Text]] = cache["sotto_tables"]
    return found


def _attributes(connection: Any, table: str, schema: str | None, kw: dict[str, Any]) -> dict[str, Domain | Text]:
    found = _tables(connection, kw).get(table)
    if found is None or schema not in {None, _SCHEMA}:
        raise NoSuchTableError(table)
    return found


def _type_of(domain: Domain | Text) -> Any:
    """Return the type of an attribute's values in a result; a bin or a month is a text."""
    match domain:
        case Integers():
            return types.Integer()
        case Decimals():
            return types.Float()
        case Dates() if domain.part is not None:
            return types.Integer()
        case Dates(granularity="day"):
            return types.Date()
    return types.String()
