"""How the mechanisms of a kind take questions in and answer them, one module per family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stream.processors.queries.families.base import Context, Family
from stream.processors.queries.families.hypothesis import SparsePmwFamily
from stream.processors.queries.families.laplace import LaplaceFamily
from stream.processors.queries.families.pmw import PmwFamily
from stream.processors.queries.families.randomized_response import RandomizedResponseFamily
from stream.processors.queries.families.release import HistogramFamily, LazyHistogramFamily, SparseProjectFamily
from stream.processors.queries.families.rows import ColumnFamily
from stream.processors.queries.families.running_count import RunningCountFamily
from stream.processors.queries.families.selection import ExponentialFamily, NoisyMaxFamily
from stream.processors.queries.families.sparse_vector import SparseVectorFamily
from stream.processors.queries.families.standing_histogram import StandingHistogramFamily
from stream.processors.queries.terms import STANDING_HISTOGRAM


@dataclass(frozen=True, slots=True)
class Families:
    """The families of a partition's streams: by name those that answer questions one by one, and ``in_columns``
    that of all other kinds of mechanism.
    """

    one_by_one: Mapping[str, Family]
    in_columns: ColumnFamily

    def of(self, kind: str) -> Family | ColumnFamily:
        """The family of this name."""
        return self.one_by_one.get(kind, self.in_columns)


def families(context: Context) -> Families:
    """The families of a partition."""
    return Families(
        one_by_one={
            "laplace": LaplaceFamily(context),
            "randomized_response": RandomizedResponseFamily(context),
            "noisy_max": NoisyMaxFamily(context),
            "exponential": ExponentialFamily(context),
            "histogram": HistogramFamily(context),
            STANDING_HISTOGRAM: StandingHistogramFamily(context),
            "lazy_histogram": LazyHistogramFamily(context),
            "sparse_project": SparseProjectFamily(context),
            "running_count": RunningCountFamily(context),
            "pmw": PmwFamily(context),
            "sparse_pmw": SparsePmwFamily(context),
        },
        in_columns=SparseVectorFamily(context),
    )
