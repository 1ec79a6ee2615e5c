"""Streams that were opened, asked and closed leave nothing in the services but what is listed here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, get_type_hints

import numpy as np
import pytest

from benchmarks.lifetime import Lifetime
from stream.budget import receipts
from stream.caches import BoundedCache, RecentCache
from stream.worker.families.sparse_vector_family import RoundValues
from stream.worker.stream_columns import StreamColumns

KEEPS_ENDED: Final = {
    "worker: figures, names and keys of each stream": (
        *(f"HostedStreams.{name}" for name in ("incarnations", "kinds", "names", "slots", "sorts")),
        *(
            f"{kind.__name__}.{name}"
            for kind in (StreamColumns, RoundValues)
            for name in (*get_type_hints(kind), "rows")
        ),
        *("StreamKeys._digests", "StreamKeys._key_of"),
        *("SlotNames._table", "Texts._at", "Texts._data", "Texts._size"),
    ),
    "worker: why each stream ended": ("LifeCycle.reasons",),
    "worker: the measurements of each pmw stream": ("EstimateFamily._updates",),
    "budget service: each grant that is not retired": (
        *("Account.grants", "Ledger.source_of_stream", "EndedStreams._source_and_end"),
    ),
    "monitor: each stream": ("MonitorTables.streams", "PeriodsByName._starts"),
    "monitor: streams with a record in two hours": ("MonitorTables._active",),
}
"""The collections that hold ended streams: all that grows with history."""
LEAST_GROWTH: Final = 0.02
"""Items for each stream from which a collection counts as growing."""


def _items_by_attribute(*roots: object) -> Counter[str]:
    """Count the items of all collections that the roots reach, by class and attribute.

    Caches with a bound and queues with a greatest length are left out.
    """
    found: Counter[str] = Counter()
    seen = set(map(id, roots))
    left = list(roots)
    kept = []  # so that no id is used again
    while left:
        one = left.pop()
        kept.append(one)
        for name, value in _parts(one):
            if (
                name
                and isinstance(value, Mapping | AbstractSet | list | deque | np.ndarray)
                and not _is_bounded(value)
            ):
                found[f"{type(one).__name__}.{name}"] += len(value)
            if id(value) not in seen and not isinstance(value, str | bytes | int | float | np.ndarray | type):
                seen.add(id(value))
                left.append(value)
    return found


def _is_bounded(one: object) -> bool:
    return isinstance(one, BoundedCache | RecentCache) or (isinstance(one, deque) and one.maxlen is not None)


def _parts(one: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, or the items of a collection (with an empty name)."""
    if _is_bounded(one):
        return
    if isinstance(one, Mapping):
        yield from (("", part) for pair in list(one.items()) for part in pair)
    elif isinstance(one, list | tuple | AbstractSet | deque):
        yield from (("", part) for part in list(one))
    elif type(one).__module__.split(".")[0] in {"stream", "schemas"}:
        slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
        names: set[str] = {*slots, *getattr(one, "__dict__", ())}
        yield from (
            (name, getattr(one, name)) for name in sorted(names) if name[:2] != "__" and hasattr(one, name)
        )


@pytest.mark.parametrize("streams", [200, 10_000])
def test_history_stays_in_no_other_collection(monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 10)
    lifetime = Lifetime(keeps=False)
    roles = (lifetime._workers, lifetime._budget, lifetime._feeds, lifetime._tables, lifetime.monitor)
    lifetime.live(streams // 10)
    before = _items_by_attribute(*roles)
    lifetime.live(streams)
    grown = _items_by_attribute(*roles) - before
    growing = {name for name, items in grown.items() if items > LEAST_GROWTH * streams}
    assert growing - set(chain(*KEEPS_ENDED.values())) == set()
