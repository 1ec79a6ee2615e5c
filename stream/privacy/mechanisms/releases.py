"""Releases that are charged once: noisy cells of a histogram, whole or on demand, and what is read off them.

Every cell has its own discrete Laplace noise, derived from words that belong to the cell, so that a cell asked for alone
is that of the whole release, at any time. Privacy: docs/proofs/histogram.md and docs/proofs/lazy-histogram.md. What is computed from
noisy cells is post-processing.
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
    """The canonical bytes of cells, given as codes of shape (cells, attributes), each code below 2³²."""
    array = np.ascontiguousarray(codes, dtype=_CODE)
    width = array.itemsize * array.shape[1]
    data = array.tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]


def weighted_sum(steps: Sequence[int], values: Sequence[int], divisor: int = 1) -> float:
    """Σ w·value / divisor for weights in steps, exact until it is rounded to a double once."""
    total = sum(step * value for step, value in zip(steps, values, strict=True))
    return total / (WEIGHT_STEPS * divisor)


def marginal(release: Integers, axes: Sequence[int]) -> Integers:
    """The release summed over all axes but those given, which stand in the order given."""
    others = tuple(axis for axis in range(release.ndim) if axis not in axes)
    summed: Integers = release.sum(axis=others, dtype=np.int64)
    kept = sorted(axes)
    return summed.transpose([kept.index(axis) for axis in axes])


Bits = npt.NDArray[np.uint8]

_CONTEXT = "sotto 2026 projection matrix v1"
_ROWS_AT_ONCE = 255
"""So many bits add up within one byte."""


def matrix_seed(incarnation: str) -> bytes:
    """The public 32 bytes that a stream's matrix is made from; whoever knows the incarnation can compute them."""
    return blake3(incarnation.encode(), derive_key_context=_CONTEXT).digest()


def columns(seed: bytes, cells: Sequence[bytes], projections: int) -> Bits:
    """The matrix's columns of some cells, of shape (cells, projections): 1 stands for +1 and 0 for −1."""
    width = -(-projections // 8)
    data = b"".join([blake3(cell, key=seed).digest(width) for cell in cells])
    packed = np.frombuffer(data, dtype=np.uint8).reshape(len(cells), width)
    return np.unpackbits(packed, axis=1, count=projections, bitorder="little")


def project(seed: bytes, private_codes: npt.NDArray[np.integer], projections: int) -> Integers:
    """u, exactly, from every row's cell; of shape (projections,), and private.

    Rows of equal cells are not joined: how many there are would show in the time that this takes.
    """
    ones = np.zeros(projections, dtype=np.int64)
    for start in range(0, len(private_codes), _ROWS_AT_ONCE):
        cells = cell_names(private_codes[start : start + _ROWS_AT_ONCE])
        ones += columns(seed, cells, projections).sum(axis=0, dtype=np.uint8)
    return 2 * ones - len(private_codes)


def inner_products(bits: Bits, release: Integers) -> list[int]:
    """⟨column, u + v⟩ for each of some columns."""
    everything = int(release.sum())
    return [2 * int(release[column.view(np.bool_)].sum()) - everything for column in bits]
