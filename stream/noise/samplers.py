"""All laws of noise, by name; the same object for the same law, so that a batch can be grouped by it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, overload

import numpy as np

from stream.noise.discrete_gaussian import Gaussian
from stream.noise.geometric import Geometric, Integers, TwoSidedGeometric
from stream.noise.words import cell_words

_CELLS_AT_ONCE: Final = 1 << 15

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
    """The sampler of geometric noise, or of discrete Laplace noise."""
    return _geometric(rate) if noise == "one_sided" else _two_sided(rate)


@lru_cache(maxsize=4096)
def gaussian(variance: Fraction) -> Gaussian:
    """The sampler of discrete Gaussian noise."""
    return Gaussian(variance)


_geometric = lru_cache(maxsize=4096)(Geometric)
_two_sided = lru_cache(maxsize=4096)(TwoSidedGeometric)


def cell_noise(law: Sampler, subkey: bytes, cells: Sequence[bytes]) -> Integers:
    """The noise that belongs to cells of these names, whoever asks for it and when; so many at once that memory is bounded."""
    some = [cells[start : start + _CELLS_AT_ONCE] for start in range(0, len(cells), _CELLS_AT_ONCE)]
    drawn = [law.draw(*cell_words(subkey, names, law.words)) for names in some]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])
