"""Releases that are charged once: noisy cells and random projections of a histogram.

The noise of a cell is derived from the cell alone. So a cell that is computed separately, at any time,
equals this cell in the whole release. Privacy: docs/proofs/histogram.md,
docs/proofs/lazy-histogram.md and docs/proofs/sparse-project.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

IntegerArray = npt.NDArray[np.int64]

_CODE_DTYPE = ">u4"


def cell_bytes(codes: npt.ArrayLike) -> list[bytes]:
    """Return the canonical bytes of cells, from codes below 2³² of shape (cells, attributes)."""
    array = np.ascontiguousarray(codes, dtype=_CODE_DTYPE)
    width = array.itemsize * array.shape[1]
    data = array.tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]


def weighted_sum(steps: Sequence[int], values: Sequence[int], divisor: int = 1) -> float:
    """Return Σ weight·value / ``divisor``, with weights in steps, rounded once."""
    total = sum(step * value for step, value in zip(steps, values, strict=True))
    return total / (WEIGHT_STEPS * divisor)


def sum_to_marginal(release: IntegerArray, axes: Sequence[int]) -> IntegerArray:
    """Sum the release over all other axes; the result has ``axes`` in the given order."""
    others = tuple(axis for axis in range(release.ndim) if axis not in axes)
    summed: IntegerArray = release.sum(axis=others, dtype=np.int64)
    kept = sorted(axes)
    return summed.transpose([kept.index(axis) for axis in axes])


Bits = npt.NDArray[np.uint8]

_CONTEXT = "sotto 2026 projection matrix v1"
_ROWS_AT_ONCE = 255
"""Maximum number of bits whose sum fits one byte."""


def matrix_seed(incarnation: str) -> bytes:
    """Return the 32 bytes from which a stream's matrix is derived; they are not secret."""
    return blake3(incarnation.encode(), derive_key_context=_CONTEXT).digest()


def matrix_columns(seed: bytes, cells: Sequence[bytes], projections: int) -> Bits:
    """Return the matrix columns of cells, as bits of shape (cells, projections); 0 is −1."""
    width = -(-projections // 8)
    data = b"".join([blake3(cell, key=seed).digest(width) for cell in cells])
    packed = np.frombuffer(data, dtype=np.uint8).reshape(len(cells), width)
    return np.unpackbits(packed, axis=1, count=projections, bitorder="little")


def project(seed: bytes, private_codes: npt.NDArray[np.integer], projections: int) -> IntegerArray:
    """Return u, the sum of the matrix columns of all rows' cells; it is exact and private.

    Rows with equal cells are not merged, because the time would reveal their number.
    """
    ones = np.zeros(projections, dtype=np.int64)
    for start in range(0, len(private_codes), _ROWS_AT_ONCE):
        cells = cell_bytes(private_codes[start : start + _ROWS_AT_ONCE])
        ones += matrix_columns(seed, cells, projections).sum(axis=0, dtype=np.uint8)
    return 2 * ones - len(private_codes)


def inner_products(bits: Bits, release: IntegerArray) -> list[int]:
    """Return ⟨column, u + v⟩ for each column; ``release`` is u plus noise v."""
    total = int(release.sum())
    return [2 * int(release[column.view(np.bool_)].sum()) - total for column in bits]
