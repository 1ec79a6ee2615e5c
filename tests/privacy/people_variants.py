"""Wrong bounds on a person's rows: each variant replaces one part of the real tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stream.tables import people
from stream.tables.columns_table import PrivateTable
from stream.tables.people import RowChoice, choose_rows
from tests.privacy.audit_variants import Surgery

COUNTED_UNBOUND = 1 << 30


def _by(order: npt.NDArray[np.intp], counts: npt.NDArray[np.bool_], own: people.RowOwners) -> RowChoice:
    arranged = np.concatenate([order[counts], order[~counts]])
    numbers = own.private_numbers[arranged]
    return RowChoice(arranged, int(np.count_nonzero(counts)), people.RowOwners(numbers, own.private_names))


def no_bound(surgery: Surgery) -> None:
    """All rows of all people count."""
    surgery.exchange(choose_rows, lambda codes, own, _, key: choose_rows(codes, own, COUNTED_UNBOUND, key))


def chosen_by_order_across_people(surgery: Surgery) -> None:
    """The first rows of the file count, as many as all people together may have, from any person."""

    def first(codes: Mapping[str, Any], own: people.RowOwners, most: int, key: bytes) -> RowChoice:
        del codes, key
        order = np.arange(len(own.private_numbers))
        return _by(order, order < most * own.count, own)

    surgery.exchange(choose_rows, first)


def hashed_without_the_person(surgery: Surgery) -> None:
    """Rows are chosen by a hash of the row and the number of equal rows before it, without the person; each person's first rows by it count."""

    def hashed(codes: Mapping[str, Any], own: people.RowOwners, most: int, key: bytes) -> RowChoice:
        everybody = people.RowOwners(np.zeros(len(own.private_numbers), np.uint32), np.zeros((1, 2), np.uint64))
        order = choose_rows(codes, everybody, COUNTED_UNBOUND, key).private_order.astype(np.int64)
        before = [
            int(np.count_nonzero(own.private_numbers[order[:at]] == own.private_numbers[row]))
            for at, row in enumerate(order)
        ]
        return _by(order, np.array(before, dtype=np.int64) < most, own)

    surgery.exchange(choose_rows, hashed)


def bound_after_the_filter(surgery: Surgery) -> None:
    """The bound applies after a question's predicate, to each person's rows that satisfy it, instead of before."""
    no_bound(surgery)
    grouped = PrivateTable.group_counts

    def groups(
        table: PrivateTable, attributes: Any, predicate: Any, max_cells: int = 1 << 20, *, people: bool = False
    ) -> Any:
        everyone = table.all_rows
        if everyone is None or people:
            return grouped(table, attributes, predicate, max_cells, people=people)
        found = np.zeros_like(grouped(table, attributes, predicate, max_cells))
        for person in range(everyone.people.count):
            own = {
                name: column[everyone.people.private_numbers == person]
                for name, column in everyone.private_codes.items()
            }
            of_one = grouped(PrivateTable(table.attributes, own), attributes, predicate, max_cells)
            found += np.minimum(of_one, everyone.contribution)
        return found

    surgery.patch.setattr(PrivateTable, "group_counts", groups)
