"""Which stream a statement is for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas import EventsSource, GrantRecord, SourceRecord, TableSource
from stream.errors import Unknown
from stream.sql.errors import StatementError
from stream.suggestions import did_you_mean

ANSWERING: Final = ("pmw", "laplace")
"""The mechanisms that answer any question of a statement with numbers."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, with the table that it is about."""

    source: TableSource
    grant: GrantRecord


def target(name: str, sources: Iterable[SourceRecord], grants: Sequence[GrantRecord]) -> Target:
    """The open stream of this name, or the one on the source of this name.

    Raises:
        Unknown: there is neither.
        StatementError: the source has several such streams, or the stream cannot be asked with statements.
    """
    tables = {one.source.source: one.source for one in sources}
    grant = next((one for one in grants if one.spec.stream == name), None)
    if isinstance(tables.get(name if grant is None else grant.spec.source), EventsSource):
        raise StatementError(
            f"FROM {name}: is about a live topic, whose windows ask its streams; statements are about tables"
        )
    if grant is None:
        streams = [one.spec.stream for one in grants if one.state == "open"]
        grant = _on_source(name, tables, streams, grants)
    if grant.spec.mechanism.kind not in ANSWERING:
        raise StatementError(
            f"FROM {name}: stream '{grant.spec.stream}' is one of {grant.spec.mechanism.kind}, which does not answer every count with a "
            f"number; name one of {' or '.join(ANSWERING)}"
        )
    table = tables.get(grant.spec.source)
    if not isinstance(table, TableSource):
        raise StatementError(
            f"FROM {name}: source '{grant.spec.source}' is not a table; statements are about tables"
        )
    return Target(table, grant)


def _on_source(
    name: str, sources: Collection[str], streams: Collection[str], grants: Sequence[GrantRecord]
) -> GrantRecord:
    if name not in sources:
        hint = did_you_mean(name, [*sources, *streams]) or "; 'sotto source list' shows the sources"
        raise Unknown(f"FROM {name}: there is no such source or stream{hint}")
    found = [
        one
        for one in grants
        if one.spec.source == name
        and one.spec.mechanism.kind in ANSWERING
        and (one.state, one.ending) == ("open", None)
    ]
    if not found:
        raise Unknown(
            f"FROM {name}: the source has no open stream of {' or '.join(ANSWERING)}; open one with 'sotto stream open'"
        )
    if len(found) > 1:
        names = ", ".join(sorted(one.spec.stream for one in found)[:8])
        raise StatementError(f"FROM {name}: several streams on it are open; say FROM one of them: {names}")
    return found[0]
