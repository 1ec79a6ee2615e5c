"""What the cells of a ``group_by`` answer stand for, from the public definition of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from schemas import Bins, Categories, Domain, Integers, Source, TableSource

Group = Mapping[str, str | int]
"""One cell: the value of each attribute; of a binned one its bin, as ``[0, 10)``."""


def groups_of(source: Source, attributes: Sequence[str]) -> tuple[Group, ...] | None:
    """The cells in the order in which an answer lists them (row-major); None if the source declares no such attributes."""
    if not isinstance(source, TableSource) or not set(attributes) <= source.attributes.keys():
        return None
    values = [_values(source.attributes[name]) for name in attributes]
    return tuple(dict(zip(attributes, cell, strict=True)) for cell in product(*values))


def _values(domain: Domain) -> Sequence[str | int]:
    match domain:
        case Categories():
            return domain.values
        case Integers():
            return range(domain.minimum, domain.maximum + 1)
        case Bins():
            bins = [f"[{low:g}, {high:g})" for low, high in pairwise(domain.edges)]
            return [*bins[:-1], f"{bins[-1][:-1]}]"]
