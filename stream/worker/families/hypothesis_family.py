"""Private multiplicative weights: answers from a public hypothesis, corrected by noisy answers.

Noise belongs to (number of updates so far, question) and not to an event, so a repeated question
has the same answer until the next update, for free. docs/proofs/pmw-weights.md proves that this is
sound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from schemas import Cell as CellWeight
from schemas import HypothesisCalibration, HypothesisUpdate, Pmw, SparsePmw, Term
from stream.privacy.mechanisms.multiplicative_weights import (
    Aim,
    Correction,
    Hypothesis,
    HypothesisAnswer,
    Strength,
    run,
)
from stream.privacy.noise import DrawRole, Sampler, cell_words, round_words, sampler
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, hypothesis_reach, rows_rate, rows_reach
from stream.tables.cache import BoundedCache
from stream.worker.families.family import AdmittedQuestion, Context, Reply, form_for, stream_by_stream
from stream.worker.families.sparse_cells import CellSpace
from stream.worker.families.tensors import TensorSpace, VectorCache

HYPOTHESIS_CACHE_BYTES: Final = 256 << 20
"""Cache of hypotheses per partition; evicted ones are rebuilt from their updates."""

_NUMBER_BYTES: Final = 8


class Space(Protocol):
    """A universe of cells: resolves and evaluates questions, and creates hypotheses."""

    def read(self, terms: Sequence[Any], cells: Sequence[Any]) -> Any:
        """Resolve a question, or the question of an update, or raise Rejection."""

    def key(self, question: Any) -> bytes:
        """Return canonical bytes, equal for equivalent questions."""

    def private(self, questions: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the exact value of each question in steps: private."""

    def fresh(self) -> Hypothesis[Any]:
        """Return the uniform hypothesis."""


@dataclass(frozen=True, slots=True)
class _Content:
    """An admitted question: resolved, as written, and whether it asks for a fraction."""

    question: Any
    terms: tuple[Term, ...]
    cells: tuple[CellWeight, ...]
    fraction: bool


@dataclass(slots=True)
class _HypothesisState:
    """The state of a stream: universe, (noisy) number of rows, and updates."""

    incarnation: str
    space: Space
    rows: int
    updates: list[HypothesisUpdate]


class _HypothesisFamily(ABC):
    """Base of both families, which differ in their universe."""

    forms: ClassVar[tuple[str, ...]]

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = context.streams
        self._updates: dict[int, tuple[str, list[HypothesisUpdate]]] = {}
        self._runs: dict[int, _HypothesisState] = {}
        self._built: BoundedCache[tuple[int, str], Hypothesis[Any]] = BoundedCache(
            HYPOTHESIS_CACHE_BYTES, lambda hypothesis: hypothesis.nbytes
        )

    def admit(self, slot: int, query: Any) -> _Content:
        """Resolve a question, or raise Rejection."""
        form = form_for(query, *self.forms)
        terms = tuple(Term(where=term.where, weight=term.weight) for term in query.terms or ())
        if query.where is not None:
            terms = (Term(where=query.where),)
        cells = tuple(CellWeight(at=cell.at, weight=cell.weight) for cell in query.cells or ())
        return _Content(self._run(slot).space.read(terms, cells), terms, cells, form == "fraction")

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions in order, grouped by stream."""
        return stream_by_stream(questions, self._answer)

    def resume(self, slot: int, updates: Sequence[Any]) -> None:
        """Restore a stream's hypothesis updates in order."""
        self._runs.pop(slot, None)
        self._updates[slot] = (self._streams.incarnations[slot], list(updates))

    @abstractmethod
    def _space(self, slot: int) -> Space:
        """Create the universe of a stream."""

    def _answer(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions of one stream; None after the cutoff."""
        contents: list[_Content] = [one.content for one in asked]
        current = self._run(slot)
        calibration = self._calibration(slot)
        questions = [content.question for content in contents]
        hypothesis = self._hypothesis(slot, current)
        before = len(current.updates)
        steps = run(
            hypothesis,
            questions,
            current.space.private(questions),
            _KeyedNoise(self._context, slot, [current.space.key(question) for question in questions]),
            rows=current.rows,
            threshold=calibration.threshold,
            tops=before,
            cutoff=int(self._streams.columns.cutoff[slot]),
            strength=strength_of(calibration, current.rows),
        )
        replies: list[Reply | None] = [None] * len(contents)
        for place, (step, content) in enumerate(zip(steps, contents, strict=False)):
            update = None
            if step.above:
                update = HypothesisUpdate(
                    incarnation=current.incarnation,
                    number=len(current.updates),
                    up=step.up,
                    times=step.times,
                    terms=content.terms,
                    cells=content.cells,
                )
                current.updates.append(update)
            replies[place] = _reply(step, calibration, current.rows, update, fraction=content.fraction)
        return replies

    def _hypothesis(self, slot: int, current: _HypothesisState) -> Hypothesis[Any]:
        key = (slot, current.incarnation)
        hypothesis = self._built.get(key)
        if hypothesis is None:
            hypothesis = current.space.fresh()
            for update in current.updates:
                question = current.space.read(update.terms, update.cells)
                hypothesis.update(question, up=update.up, times=update.times)
            self._built.put(key, hypothesis)
        return hypothesis

    def _run(self, slot: int) -> _HypothesisState:
        incarnation = self._streams.incarnations[slot]
        current = self._runs.get(slot)
        if current is None or current.incarnation != incarnation:
            of, updates = self._updates.pop(slot, (incarnation, []))
            current = _HypothesisState(
                incarnation, self._space(slot), self._rows(slot), updates if of == incarnation else []
            )
            self._runs[slot] = current
        return current

    def _rows(self, slot: int) -> int:
        """Return the number of rows, with noise drawn once per stream if it is private."""
        calibration = self._calibration(slot)
        if calibration.epsilon_rows == 0.0:
            return calibration.rows
        law = rows_sampler(calibration)
        words, low = round_words([self._streams.noise.subkey(slot, DrawRole.ROWS)], [0], law.words)
        return max(1, self._context.table(slot).private_row_count + int(law.draw(words, low)[0]))

    def _calibration(self, slot: int) -> HypothesisCalibration:
        calibration = self._streams.terms_at(slot).calibration
        if not isinstance(calibration, HypothesisCalibration):
            raise TypeError(f"stream '{self._streams.names[slot]}' keeps no hypothesis")
        return calibration


class TensorFamily(_HypothesisFamily):
    """Hypotheses over a tensor: textbook and worst-case ``pmw``, and earlier versions."""

    forms = ("count", "fraction", "terms")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._written = VectorCache()

    def _space(self, slot: int) -> TensorSpace:
        mechanism = self._streams.terms_at(slot).mechanism
        if not isinstance(mechanism, Pmw):
            raise TypeError(f"stream '{self._streams.names[slot]}' is no pmw")
        return TensorSpace(
            self._context.source_table(slot),
            partial(self._context.table, slot),
            self._context.tables,
            mechanism,
            self._calibration(slot).learning_rate,
            self._written,
        )


class SparsePmwFamily(_HypothesisFamily):
    """Hypotheses over a universe of any size; questions name single cells."""

    forms = ("cells",)

    def _space(self, slot: int) -> CellSpace:
        mechanism = self._streams.terms_at(slot).mechanism
        if not isinstance(mechanism, SparsePmw):
            raise TypeError(f"stream '{self._streams.names[slot]}' is no sparse_pmw")
        calibration = self._calibration(slot)
        return CellSpace(
            self._context.source_table(slot),
            partial(self._context.table, slot),
            mechanism,
            calibration.learning_rate,
            # Earlier versions did not store places: they had as many as the updates can name.
            calibration.places or mechanism.sparsity * calibration.cutoff + 1,
        )


class _KeyedNoise:
    """A stream's noise, keyed by its number of updates and questions' canonical bytes."""

    def __init__(self, context: Context, slot: int, keys: Sequence[bytes]) -> None:
        terms = context.streams.terms_at(slot)
        self._streams = context.streams
        self._slot = slot
        self._keys = keys
        self._query = (context.streams.noise.subkey(slot, DrawRole.QUERY), terms.query_noise)
        self._answer = (context.streams.noise.subkey(slot, DrawRole.ANSWER), terms.answer_noise)

    def barrier(self, tops: int) -> int:
        """Return ρ + s of the round after ``tops`` ⊤s."""
        return self._streams.barrier_of_round(self._slot, tops)

    def queries(self, tops: int, places: range) -> npt.NDArray[np.int64]:
        """Draw ν of the questions at these places after ``tops`` ⊤s."""
        return self._draw(*self._query, tops, places)

    def answer(self, tops: int, place: int) -> int:
        """Draw the noise of the number of a ⊤."""
        return int(self._draw(*self._answer, tops, range(place, place + 1))[0])

    def _draw(self, subkey: bytes, law: Sampler, tops: int, places: range) -> npt.NDArray[np.int64]:
        number = tops.to_bytes(_NUMBER_BYTES, "big")
        words, low = cell_words(subkey, [number + self._keys[place] for place in places], law.words)
        return law.draw(words, low)


def rows_sampler(calibration: HypothesisCalibration) -> Sampler:
    """Return the noise distribution of the number of rows."""
    return sampler("two_sided", rows_rate(calibration))


def strength_of(calibration: HypothesisCalibration, rows: int) -> Correction:
    """Return how strongly answers correct a hypothesis; constant for the textbook method."""
    if calibration.method == "textbook":
        return Strength()
    gap = calibration.learning_rate / 4.0 * calibration.rows
    reach = calibration.sparse_vector.answer_alpha + hypothesis_reach(calibration)
    gap_steps, reach_steps = math.ceil(gap / calibration.grid), math.ceil(reach / calibration.grid)
    if calibration.places is None:
        return Strength(gap_steps, reach_steps)
    most = max(rows, calibration.rows) * WEIGHT_STEPS
    return Aim(gap_steps, reach_steps, rows * WEIGHT_STEPS, most, calibration.learning_rate)


def _reply(
    step: HypothesisAnswer,
    calibration: HypothesisCalibration,
    rows: int,
    update: HypothesisUpdate | None,
    *,
    fraction: bool,
) -> Reply:
    estimate = step.value * calibration.grid
    alpha = calibration.sparse_vector.answer_alpha if step.above else calibration.alpha
    if fraction:
        # |a/n̂ − f/n| ≤ (|a − f| + |n̂ − n|) / n̂, because f ≤ n.
        estimate, alpha = estimate / rows, (alpha + rows_reach(calibration)) / rows
    return Reply(
        charged=step.above,
        estimate=estimate,
        basis="noisy" if step.above else "hypothesis",
        alpha=alpha,
        update=update,
    )
