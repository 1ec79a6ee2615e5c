"""Releases (noisy cells, projections and counts of texts), and exact sums over a table's cells.

All numbers are integers. The noise of a cell is derived from the stream and the cell alone, so a cell has the
same noise alone as in the whole release. The noise of a text also depends on the question's position.
Privacy: docs/proofs/histogram.md, docs/proofs/sparse-project.md and docs/proofs/unknown-groups.md.

Sums over the cells of a *tensor* (one axis for each attribute) are exact: true counts, noisy counts, and an estimate's
shares are integers. A weighting gives each cell a weight. It is stored as its differences along all axes, its
*corners*: a weighting that is 1 in a box and 0 outside has 2ⁿ corners for n axes, and its sum needs only 2ⁿ entries of
the cumulative sums. If cumulative sums or corners need much more memory than the tensor, the weights of the cells are
stored instead. A 64-bit sum is exact if its result fits 63 bits, even if a partial sum overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import MAX_KEY_BYTES, MAX_KEYS
from stream.privacy.noise.samplers import IntegerArray, Words
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

_CODE_DTYPE = ">u4"


def cell_bytes(codes: npt.ArrayLike) -> list[bytes]:
    """Return the canonical bytes of cells; ``codes`` has the shape (cells, attributes), with codes below 2³²."""
    array = np.ascontiguousarray(codes, dtype=_CODE_DTYPE)
    width = array.itemsize * array.shape[1]
    data = array.tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]


def weighted_sum(steps: Sequence[int], values: Sequence[int], divisor: int = 1) -> float:
    """Return Σ weight·value / ``divisor``, rounded once; the weights are given in ``steps``."""
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
"""Maximum number of bits whose sum fits into one byte."""


def matrix_seed(incarnation: str) -> bytes:
    """Return the 32 bytes from which a stream's matrix is derived; they are not secret."""
    return blake3(incarnation.encode(), derive_key_context=_CONTEXT).digest()


def matrix_columns(seed: bytes, cells: Sequence[bytes], projections: int) -> Bits:
    """Return the matrix columns of cells, as bits of shape (cells, projections); the bit 0 means −1."""
    width = -(-projections // 8)
    data = b"".join([blake3(cell, key=seed).digest(width) for cell in cells])
    packed = np.frombuffer(data, dtype=np.uint8).reshape(len(cells), width)
    return np.unpackbits(packed, axis=1, count=projections, bitorder="little")


def project(seed: bytes, private_codes: npt.NDArray[np.integer], projections: int) -> IntegerArray:
    """Return u, the sum of the matrix columns of all rows' cells; it is exact and private.

    Rows in the same cell are not merged, because the running time would reveal their number.
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


_NUMBERS_PER_GROUP: Final = 3
"""A group has three numbers in an answer: its count and the two ends of its interval."""
_EXTRA_CHARACTERS: Final = 4
"""Maximum number of characters by which such a number is longer than the count: a digit, a sign, punctuation."""
_NUMBERS_BYTES_PER_TEXT: Final = 64
"""Bytes reserved in an answer for the numbers of a running count's text, which grow with each answer."""


class ReleasedGroup(NamedTuple):
    """A released text with its noisy count; with declared attributes, the text names the whole group."""

    text: bytes
    rows: int


def release_groups(
    texts: Sequence[bytes], counts: IntegerArray, noise: IntegerArray, threshold: int
) -> list[ReleasedGroup]:
    """Return the texts whose noisy count is at least ``threshold``, the largest first.

    A text without a row is never released, whatever its noise. Groups with equal counts are sorted by text,
    so that the order depends on the released groups alone.
    """
    noisy = counts + noise
    found = np.flatnonzero((counts > 0) & (noisy >= threshold)).tolist()
    return sorted((ReleasedGroup(texts[place], int(noisy[place])) for place in found), key=_sort_key)


def json_size(text: bytes) -> int:
    """Return the size of a text as JSON, in bytes."""
    return len(msgspec.json.encode(text.decode()))


def count_fitting_groups(groups: Sequence[ReleasedGroup], size_of: Callable[[bytes], int] = json_size) -> int:
    """Return how many of the released groups fit into an answer; the number depends on these groups alone."""
    size = 0
    for place, group in enumerate(groups[:MAX_KEYS]):
        number = len(str(group.rows)) + _EXTRA_CHARACTERS
        size += size_of(group.text) + 1 + _NUMBERS_PER_GROUP * number
        if size > MAX_KEY_BYTES:
            return place
    return min(len(groups), MAX_KEYS)


@dataclass(slots=True)
class RunningRelease:
    """The texts that a running count has released, and their ``size`` in an answer, in bytes.

    A released text stays released. ``ended`` is True if the count has ended because its texts are too large.
    """

    texts: set[bytes] = field(default_factory=set)
    size: int = 0
    ended: bool = False

    def admit(self, text: bytes) -> bool:
        """Release a text unless answers are full, which depends on the released texts alone."""
        size = self.size + json_size(text) + _NUMBERS_BYTES_PER_TEXT
        if len(self.texts) == MAX_KEYS or size > MAX_KEY_BYTES:
            return False
        self.texts.add(text)
        self.size = size
        return True

    def release(
        self, texts: Sequence[bytes], counts: IntegerArray, noise: IntegerArray, threshold: int
    ) -> tuple[list[bytes], list[ReleasedGroup]]:
        """Return the newly released texts, and all released texts with their noisy counts."""
        reached = release_groups(texts, counts, noise, threshold)
        new = [group.text for group in reached if group.text not in self.texts and self.admit(group.text)]
        noisy = zip(texts, (counts + noise).tolist(), strict=True)
        return new, sorted((ReleasedGroup(*one) for one in noisy if one[0] in self.texts), key=_sort_key)


def release_keys(names: Sequence[bytes], people: IntegerArray, words: Words, rule: Words) -> list[bytes]:
    """Return the sorted names that ``rule`` releases without counts.

    ``words`` has a uniform word for each name. ``rule`` has, for each number of people, the number of words
    out of 2⁶³ that release a name. A name without people is never released, because its entry is 0.
    """
    chance = rule[np.minimum(people, len(rule) - 1)]
    return sorted(names[place] for place in np.flatnonzero((words >> np.uint64(1)) < chance).tolist())


def _sort_key(group: ReleasedGroup) -> tuple[int, bytes]:
    return -group.rows, group.text


MAX_CUMULATED_ENTRIES: Final = 1 << 17
"""Cumulative sums with at most this many entries are cheap for any number of cells."""
MAX_CUMULATED_ENTRIES_PER_CELL: Final = 3
"""Cumulative sums with at most this many entries per cell are cheap too."""


class TensorCells:
    """Integers on the cells of a tensor: true counts, noisy counts, or an estimate's shares."""

    def __init__(self, tensor: IntegerArray) -> None:
        self.tensor = tensor

    @cached_property
    def cumulated(self) -> IntegerArray:
        """Flat cumulative sums, with one entry more than cells on each axis."""
        padded = np.zeros([size + 1 for size in self.tensor.shape], dtype=np.int64)
        padded[tuple(slice(1, None) for _ in self.tensor.shape)] = self.tensor
        for axis in range(padded.ndim):
            np.cumsum(padded, axis=axis, out=padded)
        return padded.reshape(-1)

    @property
    def flat(self) -> IntegerArray:
        """The cells in row-major order."""
        return self.tensor.reshape(-1)

    @cached_property
    def total(self) -> int:
        """The sum of all cells."""
        return int(self.tensor.sum())

    @property
    def nbytes(self) -> int:
        """Upper bound of the memory with cumulative sums, in bytes."""
        return 4 * self.tensor.nbytes


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weights of some entries of the cumulative sums, or of some cells; all others have weight 0."""

    indexes: IntegerArray
    weights: IntegerArray
    indexes_cumulative_sums: bool = True
    """True if ``indexes`` are indexes of cumulative sums, False if they are indexes of cells."""

    def weighted_sum(self, cells: TensorCells) -> int:
        """Return the exact weighted sum."""
        sums = cells.cumulated if self.indexes_cumulative_sums else cells.flat
        return int((sums[self.indexes] * self.weights).sum())


def weighted_sums(weightings: Sequence[Weighting], cells: TensorCells) -> IntegerArray:
    """Return the exact weighted sum of the cells for each weighting."""
    lengths = [len(one.indexes) for one in weightings]
    if len(lengths) < 2 or 0 in lengths or not all(one.indexes_cumulative_sums for one in weightings):
        return np.array([one.weighted_sum(cells) for one in weightings], dtype=np.int64)
    products = cells.cumulated[np.concatenate([one.indexes for one in weightings])]
    products *= np.concatenate([one.weights for one in weightings])
    return np.add.reduceat(products, np.cumsum([0, *lengths[:-1]]))


def box_sums(lows: IntegerArray, highs: IntegerArray, cells: TensorCells) -> IntegerArray:
    """Return the sum of each box; the rows of ``lows`` and ``highs`` are the ends of the boxes."""
    shape = cells.tensor.shape
    total = np.zeros(len(lows), dtype=np.int64)
    corners = [(total, 1)]
    for axis, size in enumerate(shape):
        corners = [
            (index * (size + 1) + ends[:, axis], sign * side)
            for index, sign in corners
            for ends, side in ((highs, 1), (lows, -1))
        ]
    for index, sign in corners:
        total = total + cells.cumulated[index] if sign > 0 else total - cells.cumulated[index]
    return total


def is_cheap_to_cumulate(shape: Sequence[int]) -> bool:
    """Return True if a tensor's cumulative sums need little more memory than the tensor."""
    entries = math.prod(size + 1 for size in shape)
    return entries <= max(MAX_CUMULATED_ENTRIES, MAX_CUMULATED_ENTRIES_PER_CELL * math.prod(shape))


def cheapest_weighting(weights: IntegerArray) -> Weighting:
    """Convert the weights of all cells to corners or, if there are too many corners, to weights of cells."""
    if math.prod(size + 2 for size in weights.shape) <= MAX_CUMULATED_ENTRIES:
        return corner_weighting(weights)
    flat = weights.reshape(-1)
    indexes = np.flatnonzero(flat)
    return Weighting(indexes, flat[indexes], indexes_cumulative_sums=False)


def corner_weighting(weights: IntegerArray) -> Weighting:
    """Convert the weights of all cells to corners."""
    padded = np.pad(weights, 1)
    for axis in range(padded.ndim):
        padded = -np.diff(padded, axis=axis)
    flat = padded.reshape(-1)
    indexes = np.flatnonzero(flat)
    return Weighting(indexes, flat[indexes])


def count_corners(factors: Sequence[IntegerArray]) -> int:
    """Return the number of corners of a product of one weighting per axis."""
    return math.prod(int(np.count_nonzero(np.diff(factor, prepend=0, append=0))) for factor in factors)


def product_weighting(factors: Sequence[IntegerArray]) -> Weighting:
    """Return the product of one weighting per axis, as corners."""
    indexes, weights = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for factor in factors:
        padded = np.pad(factor, 1)
        edges = padded[:-1] - padded[1:]
        kept = np.flatnonzero(edges)
        indexes = (indexes[:, None] * len(edges) + kept).reshape(-1)
        weights = (weights[:, None] * edges[kept]).reshape(-1)
    return Weighting(indexes, weights)


def combine_weightings(terms: Sequence[tuple[int, Weighting]]) -> Weighting:
    """Return the sum of weightings, each times a factor; all weightings must be stored as corners."""
    indexes, where = np.unique(np.concatenate([one.indexes for _, one in terms]), return_inverse=True)
    weights = np.zeros(len(indexes), dtype=np.int64)
    np.add.at(weights, where, np.concatenate([factor * one.weights for factor, one in terms]))
    kept = weights != 0
    return Weighting(indexes[kept], weights[kept])
