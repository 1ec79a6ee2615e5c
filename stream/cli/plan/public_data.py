"""Reads ``--source``, and a simulation's table; private tables of a deployment are refused."""

from __future__ import annotations

import asyncio
import re
import socket
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter

from schemas import EventsSource, Source, TableSource
from stream.cli.output import CommandError, read_as
from stream.client.async_client import AsyncClient
from stream.dev.simulation import SYNTHETIC_LAW, SimulationError, require_public, synthetic
from stream.dev.simulation.simulation_inputs import is_shipped, require_shipped_table
from stream.kafka.broker.broker_addresses import local_settings
from stream.kafka.client.broker_connections import describe_error
from stream.kafka.topics.creation import require_topics
from stream.kafka.topics.layouts import TopicsError
from stream.settings import Settings
from stream.tables.demo_tables import ADULT_PATH
from stream.tables.readers.table_files import parse_roots
from stream.tables.rows import read_cells
from stream.tables.table_errors import UnreadableError

_PROBE_SECONDS = 2.0


def public_data(
    source: Source, registered: RegisteredSources, table: Path | None, rows: int | None, seed: int
) -> tuple[pl.DataFrame | None, str]:
    """Return the table to simulate on (None for values in queries) and its description."""
    if not isinstance(source, TableSource):
        # ``simulate_stream`` refuses streams on a live topic later.
        if not isinstance(source, EventsSource) and (table is not None or rows is not None):
            raise SimulationError("--table, --synthetic: the source has no table; its questions carry the values")
        return None, "the values in the questions, assumed public"
    if table is not None and rows is not None:
        raise SimulationError("--table, --synthetic: cannot be combined; give one of them")
    if rows is not None:
        return synthetic(source, rows, seed), f"{rows:,} generated rows: {SYNTHETIC_LAW}"
    if table is None:
        table = require_shipped_table(source)
    path, words = public_path(source, registered, table)
    try:
        return read_cells(source, str(path)), words
    except UnreadableError as error:
        raise SimulationError(f"--table: {table} cannot be read: {error.problem}") from None


def public_path(source: TableSource, registered: RegisteredSources, table: Path) -> tuple[Path, str]:
    """Return a public table's file and description; SimulationError if it is private."""
    if is_shipped(table):
        return ADULT_PATH, "the shipped Adult table, which is public"
    roots = [root for root in parse_roots(Settings().table_roots) if isinstance(root, Path)]
    private = registered.tables()
    path = require_public(table, source, roots=roots, registered=private or ())
    unchecked = "" if private is not None else " (no ledger was reachable for a check)"
    return path, f"{table}, assumed public{unchecked}"


class RegisteredSources:
    """The sources of the ledger, read on first use."""

    def __init__(self) -> None:
        self._settings = local_settings()
        self._is_configured = "bootstrap" in Settings().model_fields_set

    def tables(self) -> list[TableSource] | None:
        """Return all registered tables, or None if no deployment is configured or reachable.

        Raises CommandError if there is a deployment whose ledger cannot be read.
        """
        if not self._is_configured and not _is_reachable(self._settings.bootstrap):
            return None
        try:
            return [one for one in self._sources if isinstance(one, TableSource)]
        except (TopicsError, KafkaError) as error:
            if not self._is_configured and isinstance(error, TopicsError):
                return None  # a Kafka without Sotto
            raise CommandError(
                f"--table: the ledger at {self._settings.bootstrap}, which names the private tables, cannot be read; use "
                f"--synthetic, or {'correct or unset' if self._is_configured else 'set'} SOTTO_BOOTSTRAP ({_error_text(error)})"
            ) from None

    def find_source(self, name: str) -> Source:
        """Return a registered source's definition."""
        try:
            found = [one for one in self._sources if one.source == name]
        except (TopicsError, KafkaError) as error:
            raise CommandError(
                f"source '{name}': the ledger with its definition cannot be read; give --source ({_error_text(error)})"
            ) from None
        if not found:
            raise CommandError(f"source '{name}' is not registered; give its definition with --source")
        return found[0]

    @cached_property
    def _sources(self) -> list[Source]:
        return asyncio.run(_fetch_sources(self._settings))


def _error_text(error: TopicsError | KafkaError) -> str:
    return str(error) if isinstance(error, TopicsError) else describe_error(error)


async def _fetch_sources(settings: Settings) -> list[Source]:
    await require_topics(settings)  # fails at once if topics are missing; a client would wait for them
    async with AsyncClient(settings) as client:
        return [record.source for record in await client.list_sources()]


def _is_reachable(bootstrap: str) -> bool:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


_sources: TypeAdapter[Source] = TypeAdapter(Source)
_NAME_PATTERN: Final = re.compile("[A-Za-z0-9_-]*[A-Za-z0-9_]", re.ASCII)
"""Names that cannot be taken for a file with a suffix, inline JSON, or ``-``."""


def read_source(argument: str) -> Source:
    """Return the source that a document defines, or the registered one of that name."""
    if _NAME_PATTERN.fullmatch(argument) and not Path(argument).exists():
        from stream.cli.plan.public_data import RegisteredSources  # noqa: PLC0415  (reading a document needs no packages)

        return RegisteredSources().find_source(argument)
    return read_as(_sources, argument)


def parse_source(argument: str | None) -> Source | None:
    """Return the source of the option ``--source``, if it is given."""
    return None if argument is None else read_source(argument)
