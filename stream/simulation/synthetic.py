"""Tables that are made up over declared domains: public, since nothing private goes into them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
from blake3 import blake3

from schemas import Bins, Categories, Domain, TableSource

LAW = (
    "independent attributes; a category has odds 1/k, k its place in a drawn order; "
    "a number or bin d steps from a drawn one has odds 1/(1 + d)"
)
"""The law that rows are drawn from."""


def synthetic(source: TableSource, rows: int, seed: int) -> pl.DataFrame:
    """So many rows that are drawn independently by ``LAW`` over a source's declared domains.

    No row is left out of the table or clamped. Where rows have persons, each is that of one of so many people that they
    have as many rows on average as count. The same seed gives the same cells to an attribute, whatever other
    attributes there are. This is no noise, and protects nothing: there is nothing to protect.
    """
    columns = [_column(name, domain, rows, seed) for name, domain in source.attributes.items()]
    if source.person is not None and source.person not in source.attributes:
        people = max(1, rows // source.contribution)
        columns.append(pl.Series(source.person, _generator(source.person, seed).integers(people, size=rows)))
    return pl.DataFrame(columns)


def _column(name: str, domain: Domain, rows: int, seed: int) -> pl.Series:
    codes = _codes(domain, rows, _generator(name, seed))
    match domain:
        case Categories(values=values):
            return pl.Series(name, values, dtype=pl.String).gather(codes)
        case Bins(edges=edges):
            # The lower edge lies in its bin.
            return pl.Series(name, np.array(edges, dtype=np.float64)[codes])
        case _:
            return pl.Series(name, codes + domain.minimum)


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = blake3(f"sotto synthetic table v1 {seed} {name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def _codes(domain: Domain, rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    if isinstance(domain, Categories):
        places = generator.permutation(domain.size) + 1
    else:
        places = 1 + np.abs(np.arange(domain.size) - generator.integers(domain.size))
    ends = np.cumsum(1.0 / places)
    drawn: npt.NDArray[np.int64] = ends.searchsorted(generator.random(rows) * ends[-1], side="right")
    return np.minimum(drawn, domain.size - 1)
