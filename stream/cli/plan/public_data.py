"""The data of a simulation: nothing that a deployment holds for private."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import polars as pl
from aiokafka.errors import KafkaError

from schemas import EventsSource, Source, TableSource
from stream.cli.output import CommandError
from stream.client import AsyncClient
from stream.dev.simulation import LAW, SimulationError, require_public, synthetic
from stream.dev.simulation.simulation_inputs import is_shipped, require_other_table
from stream.kafka.client.local_address import settings_here
from stream.kafka.client.security import advice
from stream.kafka.topics.creation import find_topics
from stream.kafka.topics.layouts import TopicsError
from stream.settings import Settings
from stream.tables import UnreadableError, adult
from stream.tables.readers.table_files import parse_roots
from stream.tables.rows import read_cells

_PROBE_SECONDS = 2.0


def public_data(
    source: Source, registered: RegisteredSources, table: Path | None, rows: int | None, seed: int
) -> tuple[pl.DataFrame | None, str]:
    """The public table that stands in for the source's own, and what it is in words."""
    if not isinstance(source, TableSource):
        # A live topic has neither: that its streams cannot be simulated is said where they would be run.
        if not isinstance(source, EventsSource) and (table is not None or rows is not None):
            raise SimulationError("--table, --synthetic: the source has no table; its questions carry the values")
        return None, "the values in the questions, taken for public"
    if table is not None and rows is not None:
        raise SimulationError("--table, --synthetic: give one of them")
    if rows is not None:
        return synthetic(source, rows, seed), f"{rows:,} rows made up: {LAW}"
    if table is None:
        require_other_table(source)
        table = Path(source.path)
    path, words = public_path(source, registered, table)
    try:
        return read_cells(source, str(path)), words
    except UnreadableError as error:
        raise SimulationError(f"--table: {table} cannot be read: {error.problem}") from None


def public_path(source: TableSource, registered: RegisteredSources, table: Path) -> tuple[Path, str]:
    """The file of a public table, and what it is in words; SimulationError for one that the deployment holds for private."""
    if is_shipped(table):
        return adult.PATH, "the shipped Adult table, which is public"
    roots = [root for root in parse_roots(Settings().table_roots) if isinstance(root, Path)]
    private = registered.tables()
    path = require_public(table, source, roots=roots, registered=private or ())
    nobody = "" if private is not None else " (no ledger was in reach to ask)"
    return path, f"{table}, taken for public{nobody}"


class RegisteredSources:
    """The sources of the ledger, read once if anybody asks."""

    def __init__(self) -> None:
        self._settings = settings_here()
        self._named = "bootstrap" in Settings().model_fields_set
        self._sources: list[Source] | None = None

    def tables(self) -> list[TableSource] | None:
        """All registered tables; None where no deployment is named and none is in reach.

        CommandError where one is named, or something is in reach, and cannot be asked: what is private is not known then.
        """
        if not self._named and not _reachable(self._settings.bootstrap):
            return None
        try:
            return [one for one in self._read() if isinstance(one, TableSource)]
        except (TopicsError, KafkaError) as error:
            if not self._named and isinstance(error, TopicsError):
                return None  # Kafka is somebody else's
            raise CommandError(
                f"--table: the ledger at {self._settings.bootstrap} says which tables are private and cannot be read; use "
                f"--synthetic, or {'mend or unset' if self._named else 'set'} SOTTO_BOOTSTRAP ({_told(error)})"
            ) from None

    def find(self, name: str) -> Source:
        """A registered source's definition."""
        try:
            found = [one for one in self._read() if one.source == name]
        except (TopicsError, KafkaError) as error:
            raise CommandError(
                f"source '{name}': the ledger cannot be read for its definition; give it with --source ({_told(error)})"
            ) from None
        if not found:
            raise CommandError(f"source '{name}' is not registered; give its definition with --source")
        return found[0]

    def _read(self) -> list[Source]:
        if self._sources is None:
            self._sources = asyncio.run(_sources_of(self._settings))
        return self._sources


def _told(error: TopicsError | KafkaError) -> str:
    return str(error) if isinstance(error, TopicsError) else advice(error)


async def _sources_of(settings: Settings) -> list[Source]:
    await find_topics(settings)  # at once: a client waits for topics that are being made
    async with AsyncClient(settings) as client:
        return [record.source for record in await client.list_sources()]


def _reachable(bootstrap: str) -> bool:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
