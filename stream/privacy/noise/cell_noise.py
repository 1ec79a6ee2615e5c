"""The noise of named cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stream.privacy.noise.geometric import Integers
from stream.privacy.noise.samplers import Sampler
from stream.privacy.noise.words import cell_words

_CELLS_AT_ONCE: Final = 1 << 15


def cell_noise(law: Sampler, subkey: bytes, cells: Sequence[bytes]) -> Integers:
    """Return the noise of named cells, drawn in parts of bounded memory.

    It depends on the stream and the cell alone, never on the question or its time.
    """
    some = [cells[start : start + _CELLS_AT_ONCE] for start in range(0, len(cells), _CELLS_AT_ONCE)]
    drawn = [law.draw(*cell_words(subkey, names, law.words)) for names in some]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])
