"""Families of mechanisms: each module admits and answers the questions to some kinds of mechanism.

Start with `family` (the protocol) or `sparse_vector_family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stream.worker.families.charged_answer_families import (
    ExponentialFamily,
    LaplaceFamily,
    NoisyMaxFamily,
    RandomizedResponseFamily,
)
from stream.worker.families.context import Context
from stream.worker.families.estimate_family import EstimateFamily
from stream.worker.families.family import Family, RestorableFamily
from stream.worker.families.hypothesis_family import HypothesisFamily
from stream.worker.families.release_family import HistogramFamily, LazyHistogramFamily, SparseProjectFamily
from stream.worker.families.sparse_vector_family import SparseVectorFamily
from stream.worker.families.unknown_groups_family import UnknownGroupsFamily
from stream.worker.families.window_families import (
    RunningCountFamily,
    RunningTextsFamily,
    StandingHistogramFamily,
    WindowQuantilesFamily,
)
from stream.worker.stream_terms import HYPOTHESIS, RUNNING_TEXTS, STANDING_HISTOGRAM, WINDOW_QUANTILES

IN_COLUMNS: Final = frozenset({"above_threshold", "numeric_sparse"})
"""Kinds of mechanism whose questions are decided as columns, a whole batch at once."""


@dataclass(frozen=True, slots=True)
class Families:
    """The families of a partition: ``in_columns`` answers the kinds in ``IN_COLUMNS``."""

    one_by_one: Mapping[str, Family]
    in_columns: SparseVectorFamily

    def family(self, kind: str) -> Family | SparseVectorFamily:
        """Return the family that answers a kind of mechanism."""
        return self.in_columns if kind in IN_COLUMNS else self.one_by_one[kind]

    def forget_stream(self, kind: str, slot: int) -> None:
        """Forget a retired stream of this kind."""
        if isinstance(family := self.one_by_one.get(kind), RestorableFamily):
            family.forget_stream(slot)


def create_families(context: Context) -> Families:
    """Create the families of a partition."""
    return Families(
        one_by_one={
            "laplace": LaplaceFamily(context),
            "randomized_response": RandomizedResponseFamily(context),
            "noisy_max": NoisyMaxFamily(context),
            "exponential": ExponentialFamily(context),
            "histogram": HistogramFamily(context),
            STANDING_HISTOGRAM: StandingHistogramFamily(context),
            WINDOW_QUANTILES: WindowQuantilesFamily(context),
            "lazy_histogram": LazyHistogramFamily(context),
            "sparse_project": SparseProjectFamily(context),
            "running_count": RunningCountFamily(context),
            RUNNING_TEXTS: RunningTextsFamily(context),
            "unknown_groups": UnknownGroupsFamily(context),
            "pmw": EstimateFamily(context),
            HYPOTHESIS: HypothesisFamily(context),
        },
        in_columns=SparseVectorFamily(context),
    )
