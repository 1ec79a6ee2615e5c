"""Random questions, each a box: a range of codes for every attribute that it names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from schemas import Categories, Domain, Integers

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Range = tuple[int, int]


@dataclass(frozen=True)
class Boxes:
    """Many questions: for each attribute a lowest and a highest code, and whether the attribute is named."""

    sizes: tuple[int, ...]
    lows: Codes
    highs: Codes
    named: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """How many questions there are."""
        return len(self.lows)

    @classmethod
    def of(cls, sizes: Sequence[int], questions: Sequence[dict[int, Range]]) -> Boxes:
        """Make boxes from ranges by attribute."""
        lows = np.zeros((len(questions), len(sizes)), dtype=np.int64)
        highs = np.tile(np.array(sizes, dtype=np.int64) - 1, (len(questions), 1))
        named = np.zeros((len(questions), len(sizes)), dtype=np.bool_)
        for place, question in enumerate(questions):
            for axis, (low, high) in question.items():
                lows[place, axis], highs[place, axis], named[place, axis] = low, high, True
        return cls(tuple(sizes), lows, highs, named)

    def by_axes(self) -> Iterator[tuple[tuple[int, ...], Codes]]:
        """The sets of attributes that are named together, and the questions that name just these."""
        sets, which = np.unique(self.named, axis=0, return_inverse=True)
        for number, flags in enumerate(sets):
            yield tuple(np.flatnonzero(flags).tolist()), np.flatnonzero(which.ravel() == number)

    def sums(self, marginal: Callable[[tuple[int, ...]], npt.NDArray[np.generic]]) -> Floats:
        """Every question's sum over the marginal on its attributes."""
        found = np.empty(len(self))
        for axes, places in self.by_axes():
            table = np.asarray(marginal(axes), dtype=np.float64)
            for axis in range(table.ndim):
                table = np.cumsum(table, axis=axis)
            padded = np.pad(table, [(1, 0)] * table.ndim)
            total = np.zeros(len(places))
            for upper in product((0, 1), repeat=len(axes)):
                corner = tuple(
                    self.highs[places, axis] + 1 if high else self.lows[places, axis]
                    for axis, high in zip(axes, upper, strict=True)
                )
                total += (-1) ** (len(axes) - sum(upper)) * padded[corner]
            found[places] = total
        return found

    def slices(self, place: int) -> tuple[slice, ...]:
        """One question's cells in a tensor of all attributes."""
        return tuple(
            slice(int(low), int(high) + 1) for low, high in zip(self.lows[place], self.highs[place], strict=True)
        )


def marginal_of(codes: Codes, sizes: Sequence[int]) -> Callable[[tuple[int, ...]], Codes]:
    """The exact marginals of a table."""

    def marginal(axes: tuple[int, ...]) -> Codes:
        shape = [sizes[axis] for axis in axes]
        flat = np.ravel_multi_index([codes[:, axis] for axis in axes], shape)
        return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)

    return marginal


def where(domains: Sequence[tuple[str, Domain]], question: dict[int, Range]) -> str:
    """The question as text."""
    return " AND ".join(_part(*domains[axis], *ends) for axis, ends in question.items())


def _part(name: str, domain: Domain, low: int, high: int) -> str:
    match domain:
        case Integers(minimum=minimum):
            if low == high:
                return f'"{name}" = {minimum + low}'
            return f'"{name}" BETWEEN {minimum + low} AND {minimum + high}'
        case Categories(values=values):
            return f"\"{name}\" = '{values[low]}'"
        case other:
            raise TypeError(f"no questions about {other.kind}")


def few(generator: random.Random, sizes: Sequence[int], ordered: Sequence[int]) -> dict[int, Range]:
    """One cell of a marginal of one to three attributes, or a range of one attribute within such a cell."""
    named = generator.sample(range(len(sizes)), generator.randint(1, 3))
    ranged = generator.choice(ordered) if generator.random() < 0.5 else None
    question = {axis: _equal(generator, sizes[axis]) for axis in named if axis != ranged}
    if ranged is not None:
        question[ranged] = _between(generator, sizes[ranged])
    return question


def deep(generator: random.Random, sizes: Sequence[int], ordered: Sequence[int]) -> dict[int, Range]:
    """Ranges of all ordered attributes, within a cell of one to three of the others."""
    others = [axis for axis in range(len(sizes)) if axis not in ordered]
    chosen = generator.sample(others, generator.randint(1, 3))
    question = {axis: _equal(generator, sizes[axis]) for axis in chosen}
    return question | {axis: _between(generator, sizes[axis]) for axis in ordered}


def wide(generator: random.Random, sizes: Sequence[int], ordered: Sequence[int]) -> dict[int, Range]:
    """One to three of all attributes, in half of the questions a range of one that has an order."""
    named = generator.sample(range(len(sizes)), generator.randint(1, 3))
    ranged = generator.choice(ordered) if generator.random() < 0.5 else None
    if ranged is not None and ranged not in named:
        named[generator.randrange(len(named))] = ranged
    return {axis: (_between if axis == ranged else _equal)(generator, sizes[axis]) for axis in named}


def _equal(generator: random.Random, size: int) -> Range:
    code = generator.randrange(size)
    return code, code


def _between(generator: random.Random, size: int) -> Range:
    low, high = sorted(generator.randrange(size) for _ in range(2))
    return low, high
