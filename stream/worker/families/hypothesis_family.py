"""Private multiplicative weights: answers from a public hypothesis, corrected by noisy answers.

Noise is derived from the number of updates so far and the question, not from an event. So a repeated
question has the same answer for free until the next update. docs/proofs/pmw-weights.md proves that this is
sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Cell as CellWeight
from schemas import HypothesisCalibration, HypothesisUpdate, Pmw, SparsePmw, Term
from stream.caches import ENTRY_BYTES, BoundedCache, weigh_array
from stream.privacy.accuracy.intervals import half_width
from stream.privacy.mechanisms.multiplicative_weights import (
    Hypothesis,
    HypothesisAnswer,
    SparseCorrection,
    TensorCorrection,
    answer_questions,
)
from stream.privacy.mechanisms.private_values import published_interval
from stream.privacy.noise.keyed_noise import DrawRole, cell_words
from stream.privacy.noise.samplers import Sampler
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, hypothesis_reach
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.families.family import Reply, RestorableFamily, require_form
from stream.worker.families.statistics import share_alpha, share_interval
from stream.worker.families.tensors import WEIGHT_CACHE_BYTES, CellSpace, TensorSpace, WeightCache

HYPOTHESIS_CACHE_BYTES: Final = 256 << 20
"""Maximum size in bytes of a partition's cached hypotheses; others are built again from their updates."""

_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class _AdmittedHypothesisQuestion:
    """An admitted question, with its terms or cells in the form of changelog records."""

    question: Any
    terms: tuple[Term, ...]
    cells: tuple[CellWeight, ...]
    is_fraction: bool


@dataclass(slots=True)
class _HypothesisState:
    """The state of a stream: its cells, its public or noisy number of rows, and its updates."""

    space: TensorSpace | CellSpace
    rows: int
    updates: list[Any]


class HypothesisFamily(RestorableFamily[_HypothesisState]):
    """Answers ``pmw`` that is textbook or ``worst_case``, with all cells in memory, and ``sparse_pmw``, over any cells."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, "hypothesis states")
        self._weight_cache: WeightCache = BoundedCache(WEIGHT_CACHE_BYTES, weigh_array, "weights")
        self._hypothesis_cache: BoundedCache[tuple[int, str], Hypothesis] = BoundedCache(
            HYPOTHESIS_CACHE_BYTES, weigh_array, "hypotheses"
        )

    def admit(self, slot: int, query: Any) -> _AdmittedHypothesisQuestion:
        """Resolve a question, or raise Rejection."""
        sparse = isinstance(self._streams.terms_at(slot).mechanism, SparsePmw)
        form = require_form(query, *(("cells",) if sparse else ("count", "fraction", "terms")))
        terms = tuple(Term(where=term.where, weight=term.weight) for term in query.terms or ())
        if query.where is not None:
            terms = (Term(where=query.where),)
        cells = tuple(CellWeight(at=cell.at, weight=cell.weight) for cell in query.cells or ())
        return _AdmittedHypothesisQuestion(
            self._state(slot).space.parse_question(terms or cells), terms, cells, form == "fraction"
        )

    def _answer_stream(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions to one stream; the answer is None after the cutoff if the stream ends there."""
        contents: list[_AdmittedHypothesisQuestion] = [one.content for one in asked]
        current = self._state(slot)
        before = len(current.updates)
        calibration = self._context.calibration(slot, HypothesisCalibration)
        questions = [content.question for content in contents]
        hypothesis = self._hypothesis(slot, current)
        answers = answer_questions(
            hypothesis,
            questions,
            current.space.exact_values(questions),
            _KeyedNoise(self._context, slot, [question.key for question in questions]),
            rows=current.rows,
            threshold=calibration.threshold,
            tops=len(current.updates),
            cutoff=int(self._streams.columns.cutoff[slot]),
            correction=correction_rule(calibration, current.rows),
            beyond=not self._streams.terms_at(slot).ends_at_cutoff,
        )
        replies: list[Reply | None] = [None] * len(contents)
        for place, (answer, content) in enumerate(zip(answers, contents, strict=False)):
            update = None
            if answer.above:
                update = HypothesisUpdate(
                    incarnation=self._streams.incarnations[slot],
                    number=len(current.updates),
                    up=answer.up,
                    times=answer.times,
                    terms=content.terms,
                    cells=content.cells,
                )
                current.updates.append(update)
            half = half_width(self._streams.terms_at(slot).answer_noise) if answer.above else None
            replies[place] = _reply(
                answer, calibration, current.rows, update, is_fraction=content.is_fraction, half=half
            )
        self._keep_state(slot, current, current.updates[before:])
        self._hypothesis_cache.put((slot, self._streams.incarnations[slot]), hypothesis)
        return replies

    @staticmethod
    def _weigh_state(state: _HypothesisState) -> int:
        # An update keeps its question's terms or cells; each takes about as much memory as an entry of the cache.
        items = sum(len(update.terms) + len(update.cells) for update in state.updates)
        return ENTRY_BYTES * (4 + len(state.updates) + items)

    def _hypothesis(self, slot: int, current: _HypothesisState) -> Hypothesis:
        key = (slot, self._streams.incarnations[slot])
        if (hypothesis := self._hypothesis_cache.get(key)) is None:
            hypothesis = current.space.uniform_hypothesis()
            for update in current.updates:
                question: Any = current.space.parse_question(update.terms or update.cells)
                hypothesis.update(question, up=update.up, times=update.times)
            self._hypothesis_cache.put(key, hypothesis)
        return hypothesis

    def _build_state(self, slot: int, updates: Sequence[Any]) -> _HypothesisState:
        calibration = self._context.calibration(slot, HypothesisCalibration)
        # If the plan has no ε for the number of rows, this number is public.
        rows = self._context.noisy_rows(slot, calibration) if calibration.epsilon_rows else calibration.rows
        return _HypothesisState(self._space(slot, calibration), rows, list(updates))

    def _space(self, slot: int, calibration: HypothesisCalibration) -> TensorSpace | CellSpace:
        source, table = self._context.source_table(slot), partial(self._context.table, slot)
        rate = calibration.learning_rate
        if calibration.places is not None:
            return CellSpace(source, table, self._context.mechanism(slot, SparsePmw), rate, calibration.places)
        mechanism = self._context.mechanism(slot, Pmw)
        return TensorSpace(source, table, self._context.tables, mechanism, rate, self._weight_cache)


class _KeyedNoise:
    """Draws a stream's noise from its keys, the number of updates and the questions' canonical bytes."""

    def __init__(self, context: Context, slot: int, keys: Sequence[bytes]) -> None:
        terms = context.streams.terms_at(slot)
        self._streams = context.streams
        self._slot = slot
        self._keys = keys
        self._query = (context.streams.noise.subkey(slot, DrawRole.QUERY), terms.query_noise)
        self._answer = (context.streams.noise.subkey(slot, DrawRole.ANSWER), terms.answer_noise)

    def barrier(self, tops: int) -> int:
        """Return the threshold's noise plus the shift after ``tops`` ⊤s."""
        return self._streams.barrier_of_round(self._slot, tops)

    def query_noise(self, tops: int, places: range) -> npt.NDArray[np.int64]:
        """Draw the comparison noise ν of the questions at these places, after ``tops`` ⊤s."""
        return self._draw(*self._query, tops, places)

    def answer_noise(self, tops: int, place: int) -> int:
        """Draw the noise of the number that a ⊤ publishes."""
        return int(self._draw(*self._answer, tops, range(place, place + 1))[0])

    def _draw(self, subkey: bytes, law: Sampler, tops: int, places: range) -> npt.NDArray[np.int64]:
        number = tops.to_bytes(_NUMBER_BYTES, "big")
        words, low_words = cell_words(subkey, [number + self._keys[place] for place in places], law.words)
        return law.draw(words, low_words)


def correction_rule(calibration: HypothesisCalibration, rows: int) -> TensorCorrection | SparseCorrection:
    """Return the rule for the strength of corrections; the textbook's strength is constant."""
    if calibration.method == "textbook":
        return TensorCorrection()
    least_error = calibration.learning_rate / 4.0 * calibration.rows
    reach = calibration.sparse_vector.answer_alpha + hypothesis_reach(calibration)
    gap_steps, reach_steps = math.ceil(least_error / calibration.grid), math.ceil(reach / calibration.grid)
    if calibration.places is None:
        return TensorCorrection(gap_steps, reach_steps)
    max_rows = max(rows, calibration.rows) * WEIGHT_STEPS
    return SparseCorrection(gap_steps, reach_steps, rows * WEIGHT_STEPS, max_rows, calibration.learning_rate)


def _reply(
    answer: HypothesisAnswer,
    calibration: HypothesisCalibration,
    rows: int,
    update: HypothesisUpdate | None,
    *,
    is_fraction: bool,
    half: int | None,
) -> Reply:
    estimate = answer.value * calibration.grid
    interval = None if half is None else published_interval(answer.value, half, calibration.grid)
    alpha: float | None = calibration.sparse_vector.answer_alpha if answer.above else calibration.alpha
    if not answer.promised:
        alpha = None
    if is_fraction:
        alpha = None if alpha is None else share_alpha(calibration, rows, estimate, alpha)
        estimate /= rows
        interval = None if interval is None else share_interval(calibration, rows, interval)
    return Reply(
        charged=answer.above,
        estimate=estimate,
        basis="noisy" if answer.above else "hypothesis",
        alpha=alpha,
        update=update,
        interval=interval,
    )
