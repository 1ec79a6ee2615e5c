"""The largest loss of numbers with independent noise that one person moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from stream.privacy.noise.samplers import Sampler
from tests.privacy.exact import law_of


def loss(law: Sampler, moved: Sequence[int]) -> float:
    """Return the largest loss of numbers with these moves; it is exact except for the cut tail and a logarithm."""
    return sum(_loss(law, abs(step)) for step in moved)


@cache
def _loss(law: Sampler, step: int) -> float:
    exact = law_of(law)
    near = range(-step - 2, step + 3)
    return max(math.log(exact.probability(one) / exact.probability(one - step)) for one in near) if step else 0.0


def worst(law: Sampler, seen: Iterable[Sequence[int]]) -> float:
    """Return the largest loss over all moves."""
    return max(loss(law, moved) for moved in seen)
