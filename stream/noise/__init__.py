"""Keyed, exact, vectorised noise on the integers."""

from stream.noise.geometric import (
    DELTA_PER_DRAW,
    MAX_DIGITS,
    Geometric,
    NoiseScaleError,
    Sampler,
    TwoSidedGeometric,
    sampler,
)
from stream.noise.keys import NoiseKey, NoiseKeyError
from stream.noise.words import Role, block_words, cell_words, event_words, round_words, stream_subkey

__all__ = [
    "DELTA_PER_DRAW",
    "MAX_DIGITS",
    "Geometric",
    "NoiseKey",
    "NoiseKeyError",
    "NoiseScaleError",
    "Role",
    "Sampler",
    "TwoSidedGeometric",
    "block_words",
    "cell_words",
    "event_words",
    "round_words",
    "sampler",
    "stream_subkey",
]
