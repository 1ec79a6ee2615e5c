"""What the cells of several attributes stand for: the values of each attribute, in the order of its codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from schemas import Bins, Categories, Domain, Integers


def values_of(domain: Domain) -> Sequence[str | int]:
    """The values of a domain; of a binned one its bins, as ``[0, 10)``."""
    match domain:
        case Categories():
            return domain.values
        case Integers():
            return range(domain.minimum, domain.maximum + 1)
        case Bins():
            bins = [f"[{low:g}, {high:g})" for low, high in pairwise(domain.edges)]
            return [*bins[:-1], f"{bins[-1][:-1]}]"]


def cells_of(attributes: Mapping[str, Domain], by: Sequence[str]) -> tuple[dict[str, str | int], ...]:
    """The cells of these attributes in row-major order; one that says nothing if there are none."""
    values = [values_of(attributes[name]) for name in by]
    return tuple(dict(zip(by, cell, strict=True)) for cell in product(*values))
