"""How the comparisons of a stream with an estimate are planned: the threshold, and the division of ε between its noise and theirs."""

from __future__ import annotations

import math
from dataclasses import dataclass

THRESHOLD_PART = 0.5
"""The part of β that the threshold may be further off than said with."""

_FALSE_SHARE = 0.2
"""About so many of the ⊤s may be spent on questions that the estimate answers well."""
_WIDE_RARITY = 2.75
"""Where pairs were measured, the noise of wide sums of their cells is let off but for one question in e^2.75, about 16."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The public parameters of a stream's comparisons, in rows.

    ``slack`` is the error that the estimate may have on every question. ``wide`` is the standard deviation of the noisiest sums of
    the opening's cells, where pairs were measured and the threshold goes by that, else None.
    """

    updates: int
    queries: int
    beta: float
    slack: float
    wide: float | None = None

    @property
    def rarity(self) -> float:
        """ln of how many questions there are for each ⊤ that may be raised for nothing."""
        return math.log(max(2.0, self.queries / (_FALSE_SHARE * self.updates)))

    def raised(self, query: float) -> float:
        """The threshold, in rows: for all questions at the slack, and for the seldom ones that sum many noisy cells."""
        scale = 2.0 * self.updates / query
        plain = self.slack + scale * self.rarity
        return plain if self.wide is None else max(plain, self.wide + scale * _WIDE_RARITY)

    def divided(self, rest: float) -> tuple[float, float, float]:
        """(ε₁, ε₂) of the part ``rest`` of ε for comparisons, and the error of ⊥s that is then least.

        Slack + a/ε₂ + b/ε₁ with ε₁ + ε₂ = D is least where ε₁/D = √b/(√a + √b); the larger of two such sums is least at one of
        these points, or where both are equal.
        """
        least = -math.log(THRESHOLD_PART * self.beta)

        def query_at(rarity: float) -> float:
            return rest / (1.0 + math.sqrt(least / (2.0 * self.updates * rarity)))

        queries = [query_at(self.rarity)]
        if self.wide is not None:
            queries.append(query_at(_WIDE_RARITY))
            apart = self.wide - self.slack
            if apart > 0.0 and self.rarity > _WIDE_RARITY:
                queries.append(min(2.0 * self.updates * (self.rarity - _WIDE_RARITY) / apart, queries[0]))

        def error(query: float) -> float:
            return self.raised(query) + least / (rest - query)

        query = min(queries, key=error)
        return rest - query, query, error(query)
