"""Keyed, exact, vectorized noise on the integers.

Names are imported on first use, so that making keys and verifying ledgers need no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stream.privacy.noise.keyed_words import (
        SUBKEY_BYTES,
        DrawRole,
        block_words,
        cell_noise,
        cell_words,
        event_subkey,
        event_words,
        name_words,
        round_words,
        stream_subkey,
        stream_subkeys,
    )
    from stream.privacy.noise.keys import NoiseKey, NoiseKeyError
    from stream.privacy.noise.samplers import (
        DELTA_PER_DRAW,
        MAX_DIGITS,
        Gaussian,
        Geometric,
        NoiseScaleError,
        Sampler,
        Symmetric,
        TwoSidedGeometric,
        gaussian,
        sampler,
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
    "event_subkey",
    "event_words",
    "gaussian",
    "name_words",
    "round_words",
    "sampler",
    "stream_subkey",
    "stream_subkeys",
]

_KEYS: Final = frozenset({"NoiseKey", "NoiseKeyError"})
_WORDS: Final = frozenset(
    {"SUBKEY_BYTES", "DrawRole", "cell_noise", "event_subkey", "stream_subkey", "stream_subkeys"}
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stream.privacy.noise' has no attribute '{name}'")
    home = "keys" if name in _KEYS else "keyed_words" if name in _WORDS or name.endswith("_words") else "samplers"
    value = globals()[name] = getattr(import_module(f"stream.privacy.noise.{home}"), name)
    return value
