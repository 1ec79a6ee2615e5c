"""Keyed, exact, vectorized noise on the integers.

Its names are imported on first use: keys are made and ledgers are verified without NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stream.privacy.noise.cell_noise import cell_noise
    from stream.privacy.noise.discrete_gaussian import Gaussian
    from stream.privacy.noise.geometric import DELTA_PER_DRAW, Geometric, NoiseScaleError, TwoSidedGeometric
    from stream.privacy.noise.keys import NoiseKey, NoiseKeyError
    from stream.privacy.noise.samplers import Sampler, Symmetric, gaussian, sampler
    from stream.privacy.noise.scales import MAX_DIGITS
    from stream.privacy.noise.words import (
        SUBKEY_BYTES,
        DrawRole,
        block_words,
        cell_words,
        event_words,
        round_words,
        stream_subkey,
        stream_subkeys,
    )

__all__ = [
    "DELTA_PER_DRAW",
    "MAX_DIGITS",
    "SUBKEY_BYTES",
    "DrawRole",
    "Gaussian",
    "Geometric",
    "NoiseKey",
    "NoiseKeyError",
    "NoiseScaleError",
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
    "stream.privacy.noise.cell_noise": ("cell_noise",),
    "stream.privacy.noise.discrete_gaussian": ("Gaussian",),
    "stream.privacy.noise.geometric": ("DELTA_PER_DRAW", "Geometric", "NoiseScaleError", "TwoSidedGeometric"),
    "stream.privacy.noise.keys": ("NoiseKey", "NoiseKeyError"),
    "stream.privacy.noise.samplers": ("Sampler", "Symmetric", "gaussian", "sampler"),
    "stream.privacy.noise.words": (
        "SUBKEY_BYTES",
        "DrawRole",
        "block_words",
        "cell_words",
        "event_words",
        "round_words",
        "stream_subkey",
        "stream_subkeys",
    ),
    "stream.privacy.noise.scales": ("MAX_DIGITS",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stream.privacy.noise' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
