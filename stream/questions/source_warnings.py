"""Warnings about sources of one name or of the same data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from schemas import EventsSource, Source, SourceRecord, TableSource


def warn_about_repetition(source: Source, registered: Mapping[str, str | None]) -> str | None:
    """Return a warning if a source of this name is registered, or None; its table is not read again.

    ``registered`` has the reason of each halted source, and None of each open one.
    """
    if source.source not in registered:
        return None
    if (reason := registered[source.source]) is not None:
        unknown = ", less the unknown grants" if _has_unknown_grants(reason) else ""
        return (
            f"source: '{source.source}' was registered before and is halted for good ({reason}); give its data another "
            f"name, with the budget that 'sotto source show {source.source}' has left{unknown}"
        )
    changed = f"; if its table has changed, run 'sotto source refresh {source.source}'"
    return f"source: '{source.source}' was registered before, so nothing changes{changed if isinstance(source, TableSource) else ''}"


def warn_about_shared_data(source: Source, registered: Iterable[SourceRecord]) -> str | None:
    """Return a warning if open sources with other budgets have the same path or topic, or None.

    If an open source has the path of a view's lookup table, the warning is about the lookup table.
    Sources of one population share its budget, so they need no warning.
    """
    registered = list(registered)
    public = set(source.paths) - set(source.private_paths) if isinstance(source, TableSource) else set()
    people = sorted(
        record.source.source
        for record in registered
        if record.state == "open" and _places(public) & _data_of(record.source)
    )
    if people:
        return (
            f"view: a lookup table of {source.source} has the path of '{people[0]}', whose rows are private; "
            "leave its key out, or give the path of a public table"
        )
    populations, own = _find_populations(source, registered)
    others = {
        name: other
        for name, other in _find_sources_of_same_data(source, registered).items()
        if own is None or own != populations[name]
    }
    if not others:
        return None
    sources = (source, *others.values())
    is_split = len({own, *map(populations.get, others)} - {None}) > 1  # a source stays in its population
    can_join = not is_split and not any(
        getattr(one, "has_periods", False) or one.neighbors != source.neighbors for one in sources
    )
    join = "add both to one population with 'sotto source join', or " if can_join else ""
    return (
        f"{_place_of(source)}: {source.source} has the same data as {_name_first(others)}, but a separate budget; "
        f"the spending of both adds up for the same people; {join}end the streams of one with 'sotto stream close'"
    )


def warn_about_halted_data(source: Source, registered: Iterable[SourceRecord]) -> str | None:
    """Return a warning if halted sources of other budgets have, or may have, spent on the data of this one; else None."""
    registered = list(registered)
    populations, own = _find_populations(source, registered)
    found = [
        record
        for record in registered
        if record.state == "halted"
        and record.source.source != source.source
        and (own is None or own != populations[record.source.source])
        and (record.spent.epsilon or record.spent.rho or _has_unknown_grants(record.reason))
        and _data_of(source) & _data_of(record.source)
    ]
    if not found or any(one.source.source == source.source and one.state == "halted" for one in registered):
        return None
    if len(found) == 1:
        subject, see = "which is halted; its spending", f"'sotto source show {found[0].source.source}'"
    else:
        subject, see = "which are halted; their spending", "'sotto source show' of each"
    unknown = [one.source.source for one in found if _has_unknown_grants(one.reason)]
    return (
        f"{_place_of(source)}: {source.source} has the same data as {_name_first(one.source.source for one in found)}, "
        f"{subject} adds up with that of {source.source} for the same people: open streams on it for that much "
        f"less than its budget, see {see}"
        + (f"; some grants of {_name_first(unknown)} are unknown" if unknown else "")
    )


def _find_populations(
    source: Source, registered: Iterable[SourceRecord]
) -> tuple[dict[str, str | None], str | None]:
    """Return the population of each registered source, and of ``source``, which may have joined one since."""
    found = {record.source.source: record.population or record.source.population for record in registered}
    return found, found.get(source.source) or source.population


def _has_unknown_grants(reason: str | None) -> bool:
    """Return whether a source was halted because a restore or rollback has lost grants."""
    return reason is not None and "grants" in reason and reason.endswith("not known")


def warn_about_old_versions(source: Source, registered: Iterable[SourceRecord]) -> str | None:
    """Return a warning if other open sources have a path of this refreshed source, or None."""
    others = _find_sources_of_same_data(source, registered)
    if not others:
        return None
    return (
        f"path: this is also the data of {_name_first(others)}: refresh each source of a changed file, or workers "
        "answer 'halted' once they load it"
    )


def _find_sources_of_same_data(source: Source, registered: Iterable[SourceRecord]) -> dict[str, Source]:
    """Return the other open sources that have private data of this one, by name."""
    data = _data_of(source)
    return {
        record.source.source: record.source
        for record in registered
        if record.state == "open" and record.source.source != source.source and data & _data_of(record.source)
    }


def _name_first(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3:,} more" if len(ordered) > 3 else ""
    return ", ".join(f"'{name}'" for name in ordered[:3]) + more


def _place_of(source: Source) -> str:
    """Return the name of the field that says where a source's data is."""
    return "path" if isinstance(source, TableSource) else "topic"


def _places(paths: Iterable[str]) -> set[tuple[str, str]]:
    return {("path", path if "://" in path else os.path.normpath(path)) for path in paths}


def _data_of(source: Source) -> set[tuple[str, str]]:
    """Return the places of a source's private data; none for a source whose questions carry the values."""
    if isinstance(source, TableSource):
        return _places(source.private_paths)
    return {("topic", source.topic)} if isinstance(source, EventsSource) and source.period_of is None else set()
