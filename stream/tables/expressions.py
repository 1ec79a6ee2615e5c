"""Predicates in normal form: a small immutable tree over sets of attribute codes.

NOT is pushed down into the leaves, AND and OR are flattened, sorted and freed of repeats, and leaves of one
attribute under the same AND or OR are merged. So most ways of writing one predicate give the same tree, and
with it the same cache entry. (Two trees that differ may still mean the same; that costs a recount, no more.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

Cuts = tuple[int, ...]
"""A set of codes as the increasing ends of half-open ranges: (a, b, c, d) is [a, b) ∪ [c, d)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Every row or no row."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Codes:
    """The rows whose code of one attribute, out of 0 … size − 1, lies in ``cuts``; neither none nor all codes."""

    attribute: str
    size: int
    cuts: Cuts


@dataclass(frozen=True, slots=True)
class AllOf:
    """The rows of which every part is true; at least two parts, no two of them leaves of one attribute."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The rows of which some part is true; at least two parts, no two of them leaves of one attribute."""

    parts: tuple[Predicate, ...]


Predicate = Constant | Codes | AllOf | AnyOf
"""A predicate in normal form; equal trees are equal and hash alike."""

TRUE = Constant(holds=True)
FALSE = Constant(holds=False)

Result = TypeVar("Result")


def codes(attribute: str, size: int, cuts: Iterable[int]) -> Predicate:
    """The rows whose code lies in ``cuts``, where ends are clipped to 0 … size and meeting ranges are joined."""
    kept: set[int] = set()
    for cut in cuts:
        kept ^= {min(max(cut, 0), size)}
    if not kept:
        return FALSE
    return TRUE if kept == {0, size} else Codes(attribute, size, tuple(sorted(kept)))


def negation(predicate: Predicate) -> Predicate:
    """The rows of which the predicate is false."""
    match predicate:
        case Constant(holds):
            return Constant(not holds)
        case Codes(attribute, size, cuts):
            return codes(attribute, size, (*cuts, 0, size))
        case AllOf(parts):
            return disjunction(negation(part) for part in parts)
        case AnyOf(parts):
            return conjunction(negation(part) for part in parts)


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """The rows of which every part is true; all rows if there is no part."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, AllOf) else (part,))]
    kept = _merged(flat, lambda leaves: leaves)
    if FALSE in kept:
        return FALSE
    kept.discard(TRUE)
    if len(kept) < 2:
        return kept.pop() if kept else TRUE
    return AllOf(tuple(sorted(kept, key=_order)))


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """The rows of which some part is true; no row if there is no part."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, AnyOf) else (part,))]
    kept = _merged(flat, lambda _: 1)
    if TRUE in kept:
        return TRUE
    kept.discard(FALSE)
    if len(kept) < 2:
        return kept.pop() if kept else FALSE
    return AnyOf(tuple(sorted(kept, key=_order)))


def evaluate(
    predicate: Predicate,
    constant: Callable[[bool], Result],
    leaf: Callable[[Codes], Result],
    both: Callable[[Result, Result], Result],
    either: Callable[[Result, Result], Result],
) -> Result:
    """Fold a predicate from its leaves up. Every leaf is visited, whatever the others gave."""
    match predicate:
        case Constant(holds):
            return constant(holds)
        case Codes():
            return leaf(predicate)
        case AllOf(parts):
            return reduce(both, [evaluate(part, constant, leaf, both, either) for part in parts])
        case AnyOf(parts):
            return reduce(either, [evaluate(part, constant, leaf, both, either) for part in parts])


def attributes_of(predicate: Predicate) -> frozenset[str]:
    """The attributes that the predicate depends on."""
    return evaluate(
        predicate,
        lambda _: frozenset[str](),
        lambda leaf: frozenset((leaf.attribute,)),
        frozenset.union,
        frozenset.union,
    )


def _merged(parts: Iterable[Predicate], needed: Callable[[int], int]) -> set[Predicate]:
    """The parts without repeats; of an attribute's n leaves, one that holds where ``needed(n)`` of them do."""
    merged: set[Predicate] = set()
    leaves: dict[str, list[Codes]] = {}
    for part in parts:
        if isinstance(part, Codes):
            leaves.setdefault(part.attribute, []).append(part)
        else:
            merged.add(part)
    for attribute, same in leaves.items():
        merged.add(same[0] if len(same) == 1 else codes(attribute, same[0].size, _sweep(same, needed(len(same)))))
    return merged


def _sweep(leaves: Iterable[Codes], needed: int) -> Iterable[int]:
    """The ends of the ranges that lie in at least ``needed`` of the leaves."""
    steps: Counter[int] = Counter()
    for leaf in leaves:
        steps.update(leaf.cuts[::2])
        steps.subtract(leaf.cuts[1::2])
    depth = 0
    for cut in sorted(steps):
        was, depth = depth, depth + steps[cut]
        if (was >= needed) != (depth >= needed):
            yield cut


def _order(predicate: Predicate) -> tuple[Any, ...]:
    match predicate:
        case Codes(attribute, size, cuts):
            return (0, attribute, (size, *cuts), ())
        case AllOf(parts):
            return (1, "", (), tuple(map(_order, parts)))
        case AnyOf(parts):
            return (2, "", (), tuple(map(_order, parts)))
        case Constant(holds):
            return (3, "", (int(holds),), ())
