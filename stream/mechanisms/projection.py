"""SparseProject: the table's histogram times a public random ±1 matrix, of which no entry is ever stored.

Blum & Roth 2011, as Tutunov describes it, on integers: u_i = Σ_x D[x]·A[i, x] and an answer is (1/T)·⟨Q̂, u + v⟩. The
matrix is no secret and its law does not matter for privacy: one row of the table moves every u_i by 1, whatever A is.
A cell's column is the output of BLAKE3, in place of a hash of limited independence; the accuracy takes it for random.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.mechanisms.releases import cell_names

Integers = npt.NDArray[np.int64]
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
