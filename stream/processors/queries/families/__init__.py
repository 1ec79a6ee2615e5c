"""How the mechanisms of a kind take questions in and answer them, one module per family."""

from __future__ import annotations

from stream.processors.queries.families.base import Context, Family
from stream.processors.queries.families.hypothesis import SparsePmwFamily
from stream.processors.queries.families.laplace import LaplaceFamily
from stream.processors.queries.families.pmw import PmwFamily
from stream.processors.queries.families.randomized_response import RandomizedResponseFamily
from stream.processors.queries.families.release import HistogramFamily, LazyHistogramFamily, SparseProjectFamily
from stream.processors.queries.families.selection import ExponentialFamily, NoisyMaxFamily


def families(context: Context) -> dict[str, Family]:
    """The families of a partition by mechanism kind; sparse vectors have a path of their own."""
    return {
        "laplace": LaplaceFamily(context),
        "randomized_response": RandomizedResponseFamily(context),
        "noisy_max": NoisyMaxFamily(context),
        "exponential": ExponentialFamily(context),
        "histogram": HistogramFamily(context),
        "lazy_histogram": LazyHistogramFamily(context),
        "sparse_project": SparseProjectFamily(context),
        "pmw": PmwFamily(context),
        "sparse_pmw": SparsePmwFamily(context),
    }
