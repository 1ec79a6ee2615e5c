"""Keyed, exact, vectorised noise on the integers.

Its names are imported on first use: keys are made and ledgers are verified without NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stream.noise.cells import cell_noise
    from stream.noise.discrete_gaussian import Gaussian
    from stream.noise.geometric import DELTA_PER_DRAW, Geometric, NoiseScaleError, TwoSidedGeometric
    from stream.noise.keys import NoiseKey, NoiseKeyError
    from stream.noise.samplers import Sampler, Symmetric, gaussian, sampler
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

_HOMES: Final = {
    "stream.noise.cells": ("cell_noise",),
    "stream.noise.discrete_gaussian": ("Gaussian",),
    "stream.noise.geometric": ("DELTA_PER_DRAW", "Geometric", "NoiseScaleError", "TwoSidedGeometric"),
    "stream.noise.keys": ("NoiseKey", "NoiseKeyError"),
    "stream.noise.samplers": ("Sampler", "Symmetric", "gaussian", "sampler"),
    "stream.noise.words": (
        "SUBKEY_BYTES",
        "Role",
        "block_words",
        "cell_words",
        "event_words",
        "round_words",
        "stream_subkey",
        "stream_subkeys",
    ),
    "stream.scales": ("MAX_DIGITS",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stream.noise' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
