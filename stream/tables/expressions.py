"""Predicates in normal form: small immutable trees over sets of attribute codes.

NOT is moved into the leaves. Nested ANDs and ORs are flattened, sorted and freed of repeated parts, and leaves of one
attribute under the same AND or OR are merged. So most spellings of a predicate have the same tree and the same cache
entry. Two different trees with the same meaning do no harm: their count is only computed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

from stream.caches import ENTRY_BYTES

Cuts = tuple[int, ...]
"""A set of codes, as the increasing ends of half-open ranges: (a, b, c, d) stands for [a, b) ∪ [c, d)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """All rows if it ``holds``, else no rows."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows whose code of an attribute is in ``cuts``, which is neither empty nor full."""

    attribute: str
    size: int
    cuts: Cuts


@dataclass(frozen=True, slots=True)
class AllOf:
    """Rows that satisfy all of two or more parts; no two ``Codes`` have the same attribute."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Rows that satisfy at least one of two or more parts; no two ``Codes`` have the same attribute."""

    parts: tuple[Predicate, ...]


Predicate = Constant | Codes | AllOf | AnyOf
"""A predicate in normal form."""

TRUE = Constant(holds=True)
FALSE = Constant(holds=False)

Result = TypeVar("Result")


def make_leaf(attribute: str, size: int, cuts: Iterable[int]) -> Predicate:
    """Return the leaf of these codes; ends are clipped to 0 … size, and adjacent ranges are joined."""
    kept: set[int] = set()
    for cut in cuts:
        kept ^= {min(max(cut, 0), size)}
    if not kept:
        return FALSE
    return TRUE if kept == {0, size} else Codes(attribute, size, tuple(sorted(kept)))


def negation(predicate: Predicate) -> Predicate:
    """Return the negation of a predicate."""
    match predicate:
        case Constant(holds):
            return Constant(not holds)
        case Codes(attribute, size, cuts):
            return make_leaf(attribute, size, (*cuts, 0, size))
        case AllOf(parts):
            return disjunction(negation(part) for part in parts)
        case AnyOf(parts):
            return conjunction(negation(part) for part in parts)


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the conjunction of the parts; without parts it holds for all rows."""
    return _combine(AllOf, parts, lambda leaves: leaves, neutral=TRUE)


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the disjunction of the parts; without parts it holds for no row."""
    return _combine(AnyOf, parts, lambda _: 1, neutral=FALSE)


def evaluate(
    predicate: Predicate,
    constant: Callable[[bool], Result],
    leaf: Callable[[Codes], Result],
    conjoin: Callable[[Result, Result], Result],
    disjoin: Callable[[Result, Result], Result],
) -> Result:
    """Compute a result from the leaves upwards: ``conjoin`` combines the parts of AND, ``disjoin`` those of OR."""
    match predicate:
        case Constant(holds):
            return constant(holds)
        case Codes():
            return leaf(predicate)
        case AllOf(parts):
            return reduce(conjoin, [evaluate(part, constant, leaf, conjoin, disjoin) for part in parts])
        case AnyOf(parts):
            return reduce(disjoin, [evaluate(part, constant, leaf, conjoin, disjoin) for part in parts])


def attributes_of(predicate: Predicate) -> frozenset[str]:
    """Return the attributes on which the predicate depends."""
    return evaluate(
        predicate,
        lambda _: frozenset[str](),
        lambda leaf: frozenset((leaf.attribute,)),
        frozenset.union,
        frozenset.union,
    )


def memory_of(predicate: Predicate) -> int:
    """Return the approximate memory of a predicate in a cache, in bytes."""
    size: int = evaluate(predicate, lambda _: 0, lambda leaf: 200 + 36 * len(leaf.cuts), add, add)
    return ENTRY_BYTES + size


def _combine(
    kind: type[AllOf | AnyOf], parts: Iterable[Predicate], needed: Callable[[int], int], neutral: Constant
) -> Predicate:
    """Combine parts without repeated ones, and with one leaf for each attribute.

    If an attribute has n leaves, the merged leaf has the codes that are in at least ``needed(n)`` of them.
    """
    merged: set[Predicate] = set()
    leaves: dict[str, list[Codes]] = {}
    for part in parts:
        for inner in part.parts if isinstance(part, kind) else (part,):
            if isinstance(inner, Codes):
                leaves.setdefault(inner.attribute, []).append(inner)
            else:
                merged.add(inner)
    for attribute, same in leaves.items():
        merged.add(
            same[0]
            if len(same) == 1
            else make_leaf(attribute, same[0].size, _find_range_ends(same, needed(len(same))))
        )
    if (dominant := negation(neutral)) in merged:
        return dominant
    merged.discard(neutral)
    if len(merged) < 2:
        return merged.pop() if merged else neutral
    return kind(tuple(sorted(merged, key=_sort_key)))


def _find_range_ends(leaves: Iterable[Codes], needed: int) -> Iterable[int]:
    """Yield the ends of the ranges that at least ``needed`` leaves contain."""
    steps: Counter[int] = Counter()
    for leaf in leaves:
        steps.update(leaf.cuts[::2])
        steps.subtract(leaf.cuts[1::2])
    depth = 0
    for cut in sorted(steps):
        was, depth = depth, depth + steps[cut]
        if (was >= needed) != (depth >= needed):
            yield cut


def _sort_key(predicate: Predicate) -> tuple[Any, ...]:
    match predicate:
        case Codes(attribute, size, cuts):
            return (0, attribute, (size, *cuts), ())
        case AllOf(parts):
            return (1, "", (), tuple(map(_sort_key, parts)))
        case AnyOf(parts):
            return (2, "", (), tuple(map(_sort_key, parts)))
        case Constant(holds):
            return (3, "", (int(holds),), ())
