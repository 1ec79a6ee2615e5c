"""Releases that are charged once: noisy cells and random projections of a histogram.

Each cell's noise is derived from words of that cell, so that a single cell equals the one of the
whole release at any time. Privacy: docs/proofs/histogram.md, docs/proofs/lazy-histogram.md and
docs/proofs/sparse-project.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

Integers = npt.NDArray[np.int64]

_CODE = ">u4"


def cell_names(codes: npt.ArrayLike) -> list[bytes]:
    """Return the canonical bytes of cells, from codes below 2³² of shape (cells, attributes)."""
    array = np.ascontiguousarray(codes, dtype=_CODE)
    width = array.itemsize * array.shape[1]
    data = array.tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]


def weighted_sum(steps: Sequence[int], values: Sequence[int], divisor: int = 1) -> float:
    """Return Σ w·value / divisor for weights in steps, rounded once."""
    total = sum(step * value for step, value in zip(steps, values, strict=True))
    return total / (WEIGHT_STEPS * divisor)


def marginal(release: Integers, axes: Sequence[int]) -> Integers:
    """Sum the release over all other axes; the result has ``axes`` in the given order."""
    others = tuple(axis for axis in range(release.ndim) if axis not in axes)
    summed: Integers = release.sum(axis=others, dtype=np.int64)
    kept = sorted(axes)
    return summed.transpose([kept.index(axis) for axis in axes])


Bits = npt.NDArray[np.uint8]

_CONTEXT = "sotto 2026 projection matrix v1"
_ROWS_AT_ONCE = 255
"""Number of bits whose sum fits one byte."""


def matrix_seed(incarnation: str) -> bytes:
    """Return the 32 bytes of a stream's matrix, public once the incarnation is known."""
    return blake3(incarnation.encode(), derive_key_context=_CONTEXT).digest()


def columns(seed: bytes, cells: Sequence[bytes], projections: int) -> Bits:
    """Return the matrix's columns of cells, (cells, projections): 1 is +1 and 0 is −1."""
    width = -(-projections // 8)
    data = b"".join([blake3(cell, key=seed).digest(width) for cell in cells])
    packed = np.frombuffer(data, dtype=np.uint8).reshape(len(cells), width)
    return np.unpackbits(packed, axis=1, count=projections, bitorder="little")


def project(seed: bytes, private_codes: npt.NDArray[np.integer], projections: int) -> Integers:
    """Return u exactly, from every row's cell, of shape (projections,); private.

    Rows of equal cells are not merged: the time would reveal their number.
    """
    ones = np.zeros(projections, dtype=np.int64)
    for start in range(0, len(private_codes), _ROWS_AT_ONCE):
        cells = cell_names(private_codes[start : start + _ROWS_AT_ONCE])
        ones += columns(seed, cells, projections).sum(axis=0, dtype=np.uint8)
    return 2 * ones - len(private_codes)


def inner_products(bits: Bits, release: Integers) -> list[int]:
    """Return ⟨column, u + v⟩ for each column."""
    everything = int(release.sum())
    return [2 * int(release[column.view(np.bool_)].sum()) - everything for column in bits]
