"""Predicates as masks over codes and cells.

The module is separate so that clients can parse and refuse predicates without numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stream.tables.expressions import Codes, Cuts, Predicate, evaluate
from stream.tables.table_errors import PredicateError, shown


def membership(cuts: Cuts, size: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the codes 0 … size − 1 that lie in ``cuts``."""
    inside = np.zeros(size, dtype=np.bool_)
    for low, high in zip(cuts[::2], cuts[1::2], strict=True):
        inside[low:high] = True
    return inside


def cells(predicate: Predicate, sizes: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the cells of these attributes that satisfy the predicate.

    Axes are in the order of ``sizes``, as in ``PrivateTable.group_counts``. The array is read-only, and
    broadcast over attributes without a condition. It depends on the schema alone. PredicateError if
    the predicate depends on an attribute without an axis.
    """
    shape = tuple(sizes.values())
    axes = {name: axis for axis, name in enumerate(sizes)}

    def leaf(node: Codes) -> npt.NDArray[np.bool_]:
        size = sizes.get(node.attribute)
        if size is None:
            raise PredicateError(
                f"attribute {shown(node.attribute)} is none of those that the stream has; ask about those alone"
            )
        if size != node.size:
            raise PredicateError(
                f"the tensor declares {shown(node.attribute)} otherwise; parse the predicate for its attributes"
            )
        broadcast = [1] * len(shape)
        broadcast[axes[node.attribute]] = node.size
        return membership(node.cuts, node.size).reshape(broadcast)

    inside = evaluate(predicate, np.bool_, leaf, np.logical_and, np.logical_or)
    return np.broadcast_to(np.asarray(inside, dtype=np.bool_), shape)
