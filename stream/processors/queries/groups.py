"""Which rows of several columns are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.intp]


def groups(count: int, columns: Sequence[npt.NDArray[Any]]) -> tuple[Places, Places]:
    """One row of each group of equal rows, and the group of each row."""
    group = np.zeros(count, dtype=np.intp)
    found = min(count, 1)
    for column in columns:
        if count and (column == column[0]).all():
            continue
        _, number = np.unique(column, return_inverse=True)
        _, group = np.unique(group * count + number, return_inverse=True)
        found = int(group.max(initial=-1)) + 1
    first = np.zeros(found, dtype=np.intp)
    first[group[::-1]] = np.arange(count - 1, -1, -1)
    return first, group
