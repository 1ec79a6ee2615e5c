"""Noise laws; equal laws are the same object, so that a batch can be grouped by law."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Literal, overload

from stream.privacy.noise.discrete_gaussian import Gaussian
from stream.privacy.noise.geometric import Geometric, TwoSidedGeometric

Symmetric = TwoSidedGeometric | Gaussian
"""Noise that is added to a number."""
Sampler = Geometric | Symmetric


@overload
def sampler(noise: Literal["one_sided"], rate: Fraction) -> Geometric: ...
@overload
def sampler(noise: Literal["two_sided"], rate: Fraction) -> TwoSidedGeometric: ...
@overload
def sampler(noise: Literal["one_sided", "two_sided"], rate: Fraction) -> Geometric | TwoSidedGeometric: ...
def sampler(noise: Literal["one_sided", "two_sided"], rate: Fraction) -> Geometric | TwoSidedGeometric:
    """Return the sampler of geometric noise or of discrete Laplace noise."""
    return _geometric(rate) if noise == "one_sided" else _two_sided(rate)


@lru_cache(maxsize=4096)
def gaussian(variance: Fraction) -> Gaussian:
    """Return the sampler of discrete Gaussian noise."""
    return Gaussian(variance)


_geometric = lru_cache(maxsize=4096)(Geometric)
_two_sided = lru_cache(maxsize=4096)(TwoSidedGeometric)
