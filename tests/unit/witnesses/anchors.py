"""Anchors, and a trail to anchor."""

from __future__ import annotations

from functools import cache

from schemas import TrailHead
from stream.budget.receipts import EMPTY_TRAIL_HEAD, check_next_entry
from stream.witnesses.anchor import Anchor
from tests.unit.dev.backups import installation


@cache
def trail() -> tuple[bytes, ...]:
    """Return the entries of an installation's trail."""
    driver = installation()
    return tuple(record.value or b"" for record in driver.records(driver.topics.trail))


def heads(entries: tuple[bytes, ...]) -> list[TrailHead]:
    """Return the trail's head before each entry, and after the last one."""
    found = [EMPTY_TRAIL_HEAD]
    for value in entries:
        found.append(check_next_entry(found[-1], value)[0])
    return found


def anchor(entries: int, *, generation: int = 0, written: int = 0, **fields: object) -> Anchor:
    """Return an anchor of a trail with this number of entries."""
    given = {"installation": "sotto", "generation": generation, "written": written or 1_000 + entries}
    head = {"entries": entries, "digest": f"{entries:064x}", "time": entries}
    return Anchor.model_validate({**given, "head": head, **fields})
