"""What the cells of a ``group_by`` answer stand for, from the public definition of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas import Source, TableSource
from stream.labels import cells_of

Group = Mapping[str, str | int]
"""One cell: the value of each attribute; of a binned one its bin, as ``[0, 10)``."""


def groups_of(source: Source, attributes: Sequence[str]) -> tuple[Group, ...] | None:
    """The cells in the order in which an answer lists them (row-major); None if the source declares no such attributes."""
    if not isinstance(source, TableSource) or not set(attributes) <= source.attributes.keys():
        return None
    return cells_of(source.attributes, attributes)
