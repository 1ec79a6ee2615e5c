"""Which rows have equal numbers, and an order in which these stand together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stream.kernel.columns import Column, address
from stream.kernel.library import compiled


class Groups(NamedTuple):
    """The ``distinct`` numbers in ascending order, which of them each row has, and the rows by it, equal ones as they came."""

    distinct: Column
    group_of: Column
    order: Column


def grouped(numbers: Column) -> Groups:
    """Group rows by their numbers, none of which is below 0."""
    count = len(numbers)
    if (library := compiled()) is None:
        order = np.argsort(numbers, kind="stable")
        begins = np.ones(count, dtype=np.bool_)
        np.not_equal(numbers[order[1:]], numbers[order[:-1]], out=begins[1:])
        group_of = np.empty(count, dtype=np.int64)
        group_of[order] = np.cumsum(begins) - 1
        return Groups(numbers[order[begins]], group_of, order)
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    order, spare, distinct, group_of = (np.empty(count, dtype=np.int64) for _ in range(4))
    found = library.sotto_group(count, *map(address, (numbers, order, spare, distinct, group_of)))
    return Groups(distinct[:found], group_of, order)
