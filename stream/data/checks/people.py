"""How many rows belong to one person."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from stream.data.checks.report import People
from stream.data.checks.scan import TableScan
from stream.data.people import named

_ROWS_A_PASS: Final = 1 << 23

_Digests = npt.NDArray[np.uint64]


def count_people(file: TableScan, column: str, rows: int, most: int = 1) -> People:
    """Count each person's rows by 64-bit digests of the names in a column, and those beyond ``most`` a person.

    The file is read once more for every eight million rows, so that memory does not grow with them: each pass counts
    the people whose digests fall to it. Two people in a hundred million share a digest with a chance of 0.03 %.
    """
    passes = -(-rows // _ROWS_A_PASS)
    people = most_rows = several = somebody = beyond = 0
    for number in range(passes):
        counted = _Counted()
        for batch in file.batches([column]):
            digests = _digests(column, batch[column])
            counted.add(digests[digests % np.uint64(passes) == number])
        people += len(counted.rows)
        most_rows = max(most_rows, int(counted.rows.max(initial=0)))
        beyond += int(np.maximum(counted.rows - most, 0).sum())
        several += int(np.count_nonzero(counted.rows > 1))
        somebody += int(counted.rows.sum())
    return People(
        column=column,
        people=people,
        most_rows=most_rows,
        with_several=several,
        contribution=most,
        rows_beyond=beyond,
        rows_without=rows - somebody,
    )


class _Counted:
    """How often each digest came."""

    def __init__(self) -> None:
        self._digests: _Digests = np.empty(0, dtype=np.uint64)
        self.rows: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def add(self, digests: _Digests) -> None:
        found, rows = np.unique(digests, return_counts=True)
        places = np.searchsorted(self._digests, found)
        known = np.zeros(len(found), dtype=np.bool_)
        inside = places < len(self._digests)
        known[inside] = self._digests[places[inside]] == found[inside]
        self.rows[places[known]] += rows[known]
        self._digests = np.insert(self._digests, places[~known], found[~known])
        self.rows = np.insert(self.rows, places[~known], rows[~known])


def _digests(name: str, column: pl.Series) -> _Digests:
    """One for each row that names somebody."""
    texts, nobody = named(name, column)
    return texts.filter(pl.Series(~nobody)).hash().to_numpy()
