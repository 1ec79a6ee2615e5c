"""A witness in a table of PostgreSQL to which the services may only append.

User, password and other connection settings come from libpq's variables (PGUSER, PGPASSFILE,
PGSERVICEFILE, PGSSLMODE). An error has only the server's error code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from schemas import Address
from stream.optional_packages import import_or_missing
from stream.witnesses.anchor import ANCHORS_READ, Anchor, WitnessError, parse_anchor

_CONNECT_SECONDS: Final = 5


class PostgresqlWitness:
    """A table with the columns ``installation``, ``generation``, ``number`` (an identity) and ``anchor``."""

    def __init__(self, address: Address) -> None:
        """Raise Missing if the driver is not installed."""
        import_or_missing("adbc_driver_postgresql", "postgresql")
        self._host, self._port = address.host, address.port
        self._database, *relation = address.parts
        # The parts of an address have no quotes.
        self._table = ".".join(f'"{part}"' for part in relation)
        self.name = f"postgresql://{address.host}:{address.port}/{'/'.join(address.parts)}"

    def write(self, anchor: Anchor) -> None:
        """Insert a row, and wait until it is on the server's disk."""
        with self._connect() as connection, connection.cursor() as cursor:
            # A server may have turned this off for other applications.
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute(
                f"INSERT INTO {self._table} (installation, generation, anchor) VALUES ($1, $2, $3)",  # noqa: S608  (the name is quoted)
                (anchor.installation, anchor.generation, anchor.encode().decode()),
            )
            connection.commit()

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the last rows of the last generations."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT anchor FROM {self._table} WHERE installation = $1 "  # noqa: S608  (the name is quoted)
                f"ORDER BY generation DESC, number DESC LIMIT {ANCHORS_READ}",
                (installation,),
            )
            texts = [text for (text,) in cursor.fetchall()]
        found = [anchor for text in texts if (anchor := parse_anchor(text)) is not None]
        if len(found) < len(texts):
            raise WitnessError(f"{self.name}: {len(texts) - len(found)} rows are no anchors; remove them")
        return found

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """Open a connection; convert the driver's errors, without their messages."""
        settings = {
            "host": self._host,
            "port": self._port,
            "dbname": self._database,
            "connect_timeout": _CONNECT_SECONDS,
        }
        text = " ".join(f"{name}='{value}'" for name, value in settings.items())
        failure = import_module("adbc_driver_manager").Error
        try:
            connection = import_module("adbc_driver_postgresql.dbapi").connect(text)
            try:
                yield connection
            finally:
                connection.close()
        except failure as error:
            code = error.sqlstate
            cause = f"PostgreSQL refused: {code}" if code else "PostgreSQL was not reached, or refused the login"
            raise WitnessError(f"{self.name}: {cause}") from None
