"""Keyed, exact, vectorised noise on the integers."""

from stream.noise.discrete_gaussian import Gaussian
from stream.noise.geometric import DELTA_PER_DRAW, Geometric, NoiseScaleError, TwoSidedGeometric
from stream.noise.keys import NoiseKey, NoiseKeyError
from stream.noise.samplers import Sampler, Symmetric, cell_noise, gaussian, sampler
from stream.noise.words import (
    SUBKEY_BYTES,
    Role,
    block_words,
    cell_words,
    event_words,
    round_words,
    stream_subkey,
    stream_subkeys,
)
from stream.scales import MAX_DIGITS

__all__ = [
    "DELTA_PER_DRAW",
    "MAX_DIGITS",
    "SUBKEY_BYTES",
    "Gaussian",
    "Geometric",
    "NoiseKey",
    "NoiseKeyError",
    "NoiseScaleError",
    "Role",
    "Sampler",
    "Symmetric",
    "TwoSidedGeometric",
    "block_words",
    "cell_noise",
    "cell_words",
    "event_words",
    "gaussian",
    "round_words",
    "sampler",
    "stream_subkey",
    "stream_subkeys",
]
