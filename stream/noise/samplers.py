"""All laws of noise, by name."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Literal

from stream.noise.gaussian import Gaussian
from stream.noise.geometric import Geometric, TwoSidedGeometric

Symmetric = TwoSidedGeometric | Gaussian
"""Noise that is added to a number."""
Sampler = Geometric | Symmetric


@lru_cache(maxsize=4096)
def sampler(noise: Literal["one_sided", "two_sided"], rate: Fraction) -> Geometric | TwoSidedGeometric:
    """The sampler of a law; the same object for the same law, so that a batch can be grouped by it."""
    return Geometric(rate) if noise == "one_sided" else TwoSidedGeometric(rate)


@lru_cache(maxsize=4096)
def gaussian(variance: Fraction) -> Gaussian:
    """The sampler of discrete Gaussian noise; the same object for the same variance."""
    return Gaussian(variance)
