"""Questions of ``pmw`` as weights over the tensor of their attributes' cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Pmw, TableSource
from stream.privacy.mechanisms.multiplicative_weights import TensorHypothesis
from stream.privacy.mechanisms.sparse_weights import whole_steps
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.processing.dead_letters import Rejection
from stream.tables import Predicate, PrivateTable, TableStore, attributes_of, cells
from stream.tables.cache import BoundedCache
from stream.tables.expressions import evaluate

VECTOR_CACHE_BYTES: Final = 64 << 20
"""Cache of questions' weights per partition; evicted ones are recomputed."""

Steps = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WeightedPredicates:
    """A weighted sum of distinct predicates in canonical order; weights are in steps and not 0."""

    parts: tuple[tuple[Predicate, int], ...]

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes on which the question depends."""
        return frozenset[str]().union(*(attributes_of(predicate) for predicate, _ in self.parts))

    @property
    def key(self) -> bytes:
        """Canonical bytes, equal for equal weights."""
        return json.dumps([[canonical(predicate), weight] for predicate, weight in self.parts]).encode()

    def steps(self, sizes: Mapping[str, int]) -> Steps:
        """Return the weight of each cell of the tensor in steps, in row-major order."""
        total = np.zeros(tuple(sizes.values()), dtype=np.int32)
        for predicate, weight in self.parts:
            total += np.int32(weight) * cells(predicate, sizes)
        return total.reshape(-1)


def weighted(terms: Sequence[Any], parse: Callable[[str, str], Predicate]) -> WeightedPredicates:
    """Resolve the terms of a question; ``parse`` is called with each predicate's text and field."""
    alone = len(terms) == 1
    parts: dict[Predicate, int] = {}
    for place, term in enumerate(terms):
        predicate = parse(term.where, "where" if alone else f"terms[{place}].where")
        try:
            parts[predicate] = parts.get(predicate, 0) + whole_steps(term.weight)
        except ValueError as error:
            raise Rejection("malformed", f"terms[{place}].weight: {error}") from None
    kept = [(predicate, weight) for predicate, weight in parts.items() if weight]
    return WeightedPredicates(tuple(sorted(kept, key=lambda part: canonical(part[0]))))


class VectorCache(BoundedCache[tuple[tuple[str, ...], WeightedPredicates], Steps]):
    """A cache of questions' weights, shared by the streams of a partition."""

    def __init__(self) -> None:
        super().__init__(VECTOR_CACHE_BYTES, lambda steps: steps.nbytes)


@dataclass(frozen=True, eq=False)
class HypothesisQuestion:
    """A question to a hypothesis over a tensor; ``sizes`` has all attributes of the tensor."""

    sizes: Mapping[str, int]
    weights: WeightedPredicates
    written: VectorCache

    @cached_property
    def own_sizes(self) -> dict[str, int]:
        """The sizes of the attributes on which the question depends."""
        named = self.weights.attributes
        return {name: size for name, size in self.sizes.items() if name in named}

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes on which the question depends, in increasing order."""
        return tuple(axis for axis, name in enumerate(self.sizes) if name in self.own_sizes)

    @cached_property
    def key(self) -> bytes:
        """Canonical bytes, equal for equivalent questions."""
        return self.weights.key

    def steps(self) -> Steps:
        """Return q over the cells of these axes in row-major order, in steps."""
        # Predicates contain their attributes' sizes, so that names and weights are a full key.
        key = (tuple(self.own_sizes), self.weights)
        known = self.written.get(key)
        if known is None:
            known = self.weights.steps(self.own_sizes)
            known.setflags(write=False)
            self.written.put(key, known)
        return known


class TensorSpace:
    """The universe of ``pmw``, with all cells in memory."""

    def __init__(
        self,
        source: TableSource,
        table: Callable[[], PrivateTable],
        tables: TableStore,
        mechanism: Pmw,
        learning_rate: float,
        written: VectorCache,
    ) -> None:
        self._source = source
        self._table = table
        self._tables = tables
        self._sizes = {name: source.attributes[name].size for name in mechanism.attributes}
        self._written = written
        self._learning_rate = learning_rate

    def read(self, terms: Sequence[Any]) -> HypothesisQuestion:
        """Resolve the terms of a query or of an update, or raise Rejection.

        The weight of every cell must lie between 0 and 1, so that a row of any table has
        sensitivity 1.
        """
        weights = weighted(terms, partial(predicate_on, self._sizes, self._tables, self._source))
        question = HypothesisQuestion(self._sizes, weights, self._written)
        check_range(weights, question.own_sizes)
        return question

    def private(self, questions: Sequence[HypothesisQuestion]) -> npt.NDArray[np.int64]:
        """Return the exact value of each question in steps: private."""
        table = self._table()
        totals = [
            sum(weight * table.count(predicate) for predicate, weight in question.weights.parts)
            for question in questions
        ]
        return np.array(totals, dtype=np.int64)

    def fresh(self) -> TensorHypothesis:
        """Return the uniform hypothesis."""
        return TensorHypothesis(tuple(self._sizes.values()), self._learning_rate, WEIGHT_STEPS)


def predicate_on(
    attributes: Container[str], tables: TableStore, source: TableSource, where: str, field: str
) -> Predicate:
    """Parse a predicate; Rejection of ``field`` if it names other attributes."""
    try:
        predicate = tables.predicate(source, where)
    except ValueError as error:
        raise Rejection("predicate", f"{field}: {error}") from None
    for name in sorted(attributes_of(predicate)):
        if name not in attributes:
            raise Rejection(
                "predicate",
                f"{field}: attribute '{name}' is none of the stream's mechanism.attributes; ask about those alone",
            )
    return predicate


def canonical(predicate: Predicate) -> str:
    """Return a text that is equal for predicates with equal normal forms."""
    return evaluate(
        predicate,
        lambda holds: "1" if holds else "0",
        lambda leaf: json.dumps([leaf.attribute, *leaf.cuts]),
        lambda left, right: f"({left}&{right})",
        lambda left, right: f"({left}|{right})",
    )


def check_range(question: WeightedPredicates, sizes: Mapping[str, int]) -> None:
    """Reject a question that gives some row a weight below 0 or above 1."""
    weights = [weight for _, weight in question.parts]
    if min(weights, default=0) >= 0 and sum(weights) <= WEIGHT_STEPS:
        return
    steps = question.steps(sizes)
    lowest, highest = int(steps.min()), int(steps.max())
    if lowest < 0 or highest > WEIGHT_STEPS:
        raise Rejection(
            "malformed",
            "terms: some row's weights add up to less than 0 or more than 1; scale them, or add a term for all rows, so "
            "that every sum lies from 0 to 1",
        )
