"""Events that are written plainly, read without an object for any of them; whatever is written otherwise is left to ``reading``.

What is read here is what ``reading`` would make of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas import Categories, EventsSource
from schemas.moments import END_MS
from stream.data.encoding import bin_codes, integer_codes
from stream.data.events.cells import Codes
from stream.data.events.flaws import MAX_BYTES, Flaw
from stream.data.events.names import Digests, digests_and_homes
from stream.data.events.times import Moments
from stream.kernel import Fields, Names, Spans, Values

_NOT_AMONG: Final = -1


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a batch that are as declared, in order, and what is wrong with the others.

    ``places`` are theirs in the batch; ``homes`` the partitions that their people belong to.
    """

    places: npt.NDArray[np.int64]
    people: Digests
    homes: npt.NDArray[np.int64]
    times: Moments
    codes: Mapping[str, Codes]
    flaws: Mapping[int, Flaw]

    def merged(self, others: Events, places: npt.NDArray[np.int64]) -> Events:
        """These and others of the same batch, whose own places are given by theirs."""
        both = np.concatenate([self.places, places[others.places]])
        order = np.argsort(both)
        return Events(
            both[order],
            np.concatenate([self.people, others.people])[order],
            np.concatenate([self.homes, others.homes])[order],
            np.concatenate([self.times, others.times])[order],
            {name: np.concatenate([codes, others.codes[name]])[order] for name, codes in self.codes.items()},
            {**self.flaws, **{int(places[place]): flaw for place, flaw in others.flaws.items()}},
        )


class PlainReader:
    """Reads the plain events of one source."""

    def __init__(self, source: EventsSource, partitions: int) -> None:
        self._partitions = partitions
        self._domains = source.attributes
        self._person = tuple(source.person.split("."))
        self._time = tuple(source.time.split("."))
        self._paths = {name: tuple(source.path_of(name).split(".")) for name in source.attributes}
        paths = {self._person, self._time, *self._paths.values()}
        leads_on = any(way != path and path[: len(way)] == way for way in paths for path in paths)
        self._fields = None if leads_on else Fields(sorted(paths))
        self._names: dict[str, Names] = {}
        for name, domain in source.attributes.items():
            if isinstance(domain, Categories):
                self._names[name] = Names()
                self._names[name].extend([value.encode(errors="replace") for value in domain.values])

    def read(self, texts: Spans) -> Events | None:
        """The plain ones; None where there is no kernel to read them, or the fields are none that plain events have."""
        if self._fields is None or (values := self._fields.scan(texts, MAX_BYTES)) is None:
            return None
        columns = self._fields.columns
        values.people(columns[self._person])
        times = values.moments(columns[self._time], END_MS)
        codes = {name: self._codes(name, values, columns[path]) for name, path in self._paths.items()}
        rows = np.flatnonzero(values.read)
        people, homes = digests_and_homes(values.texts(columns[self._person], rows), self._partitions)
        return Events(rows, people, homes, times[rows], {name: column[rows] for name, column in codes.items()}, {})

    def _codes(self, name: str, values: Values, column: int) -> Codes:
        """The code of each value; those without one are left to be told why."""
        domain = self._domains[name]
        if isinstance(domain, Categories):
            other = _NOT_AMONG if domain.other is None else domain.values.index(domain.other)
            return values.slots(column, self._names[name], other)
        numbers = values.numbers(column)
        numbers[~values.read] = np.nan
        codes, known = (bin_codes if domain.kind == "bins" else integer_codes)(domain, numbers)  # type: ignore[arg-type]
        np.logical_and(values.read, known, out=values.read)
        return codes
