"""AboveThreshold and NumericSparse: whole batches over thousands of streams in whole-array operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.wire import encode
from stream.mechanisms.above_threshold import ABOVE, Decisions, decide
from stream.mechanisms.above_threshold import HALTED as QUERY_HALTED
from stream.mechanisms.grid import shown, written
from stream.noise import Role, Sampler, event_words
from stream.processors.base import Message, Outputs
from stream.processors.queries.admission import Batch
from stream.processors.queries.families.base import Context, form_for, on_values
from stream.processors.queries.families.rounds import Rounds
from stream.processors.queries.life import EXHAUSTED
from stream.processors.queries.replies import Replies, WireAnswer
from stream.processors.queries.terms import Terms
from stream.processors.written import value_of

Integers = npt.NDArray[np.int64]
Groups = list[tuple[Terms, npt.NDArray[np.intp]]]

_OUTCOMES = ("below", "above", "halted")
_NO_NUMBERS: dict[int, tuple[float, str, float]] = {}


class SparseVectors:
    """The sparse vectors of one partition."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self._context = context
        self._streams = context.streams
        self._replies = replies
        self._rounds = Rounds(context.streams)

    def answer(self, batch: Batch, answers: list[Message | None], outputs: Outputs) -> None:
        """Answer a batch, and write what must outlive this worker."""
        streams, rounds = self._streams, self._rounds
        slots = np.array(batch.slots, dtype=np.intp)
        rows, row_of = np.unique(slots, return_inverse=True)
        open_rows = streams.life.answering(rows)
        rounds.prepare(rows)
        tops_before = streams.columns.tops[rows]
        groups = self._by_terms(slots)
        values, thresholds = self._values(batch, slots, groups)
        margins = values - thresholds + self._noise(batch, groups)
        decisions = decide(
            margins,
            row_of,
            rounds.barrier[rows],
            np.where(open_rows, streams.columns.tops_left(rows), 0),
            lambda row, tops: streams.barrier_of_round(int(rows[row]), int(tops_before[row]) + tops),
            rounds.fresh[rows],
        )
        numbers = self._numbers(batch, slots, row_of, rows, decisions, values, thresholds, margins)
        self._write_answers(batch, row_of, rows, open_rows, decisions, numbers, answers)
        self._install(batch, row_of, rows, open_rows, decisions, outputs)

    def _values(self, batch: Batch, slots: npt.NDArray[np.intp], groups: Groups) -> tuple[Integers, Integers]:
        """f and T in steps."""
        values = np.array(batch.values, dtype=np.float64)
        steps = np.empty(len(slots), dtype=np.int64)
        asked = np.array(batch.thresholds, dtype=np.float64)
        thresholds = self._rounds.threshold[slots]
        for terms, members in groups:
            own = ~np.isnan(asked[members])
            thresholds[members[own]] = terms.grid.public(asked[members[own]])
            steps[members] = terms.grid.private(values[members], _as_written(terms, batch, values, members))
        return steps, thresholds

    def _noise(self, batch: Batch, groups: Groups) -> Integers:
        """ν of every query, with all noise of one law drawn at once."""
        noise = np.empty(len(batch.slots), dtype=np.int64)
        laws: dict[Sampler, list[npt.NDArray[np.intp]]] = {}
        for terms, members in groups:
            laws.setdefault(terms.query_noise, []).append(members)
        query_keys = [self._rounds.query_keys[slot] for slot in batch.slots]
        for law, parts in laws.items():
            members = np.sort(np.concatenate(parts))
            noise[members] = self._draws(law, batch, query_keys, members)
        return noise

    def _draws(
        self, law: Sampler, batch: Batch, subkeys: Sequence[bytes], members: npt.NDArray[np.intp]
    ) -> Integers:
        words, low = event_words(
            _picked(subkeys, members),
            self._context.topic,
            self._context.partition,
            _picked(batch.offsets, members),
            _picked(batch.payloads, members),
            law.words,
        )
        return law.draw(words, low)

    def _by_terms(self, slots: npt.NDArray[np.intp]) -> Groups:
        """Which places of a batch go by the same terms."""
        terms_of = self._streams.columns.terms_of[slots]
        return [
            (self._streams.terms[index], np.flatnonzero(terms_of == index))
            for index in np.unique(terms_of).tolist()
        ]

    def _numbers(
        self,
        batch: Batch,
        slots: npt.NDArray[np.intp],
        row_of: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        decisions: Decisions,
        values: Integers,
        thresholds: Integers,
        margins: Integers,
    ) -> dict[int, tuple[float, str, float]]:
        """The number, its basis and its error bound for each ⊤ of a stream that publishes numbers, by query."""
        tops = np.flatnonzero(decisions.codes == ABOVE)
        if not len(tops):
            return _NO_NUMBERS
        numbers: dict[int, tuple[float, str, float]] = {}
        for terms, chosen in self._by_terms(slots[tops]):
            calibration = terms.sparse_vector
            members = tops[chosen]
            if calibration.numbers == "none":
                continue
            if calibration.numbers == "fresh":
                subkeys = [b""] * len(slots)
                for member in members.tolist():
                    subkeys[member] = self._streams.noise.subkey(int(slots[member]), Role.ANSWER)
                steps = values[members] + self._draws(terms.answer_noise, batch, subkeys, members)
            else:
                before = self._streams.columns.tops[rows[row_of[members]]] + decisions.tops_before[members]
                barriers = [
                    self._streams.barrier_of_round(slot, tops_before)
                    for slot, tops_before in zip(slots[members].tolist(), before.tolist(), strict=True)
                ]
                gaps = margins[members] - np.array(barriers, dtype=np.int64)
                steps = thresholds[members] + gaps
            for member, number in zip(members.tolist(), shown(steps.tolist(), calibration.grid), strict=True):
                numbers[member] = (number, calibration.numbers, calibration.answer_alpha)
        return numbers

    def _write_answers(
        self,
        batch: Batch,
        row_of: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        open_rows: npt.NDArray[np.bool_],
        decisions: Decisions,
        numbers: dict[int, tuple[float, str, float]],
        answers: list[Message | None],
    ) -> None:
        streams = self._streams
        tops_after = streams.columns.tops[rows][row_of] + decisions.tops_before + (decisions.codes == ABOVE)
        index = streams.columns.answered[rows][row_of] + np.where(open_rows[row_of], decisions.place, 0)
        cutoff = streams.columns.cutoff[rows][row_of]
        columns = (decisions.codes, index, tops_after, cutoff - tops_after, streams.columns.terms_of[rows][row_of])
        keys, names, terms = streams.keys, streams.names, streams.terms
        for where, query_id, slot, code, place, tops, left, index_of_terms in zip(
            batch.places,
            batch.ids,
            batch.slots,
            *(column.tolist() for column in columns),
            strict=True,
        ):
            if code == QUERY_HALTED:
                spent = terms[index_of_terms].spent(place, tops)
                answer = WireAnswer(
                    query_id, names[slot], "halted", None, None, None, streams.reason(slot), spent, left
                )
            else:
                spent = terms[index_of_terms].spent(place + 1, tops)
                answer = WireAnswer(query_id, names[slot], _OUTCOMES[code], place, None, None, None, spent, left)
            answers[where] = (keys[slot], encode(answer), ())
        if numbers:
            self._write_numbers(batch, columns, numbers, answers)

    def _write_numbers(
        self,
        batch: Batch,
        columns: tuple[Any, ...],
        numbers: dict[int, tuple[float, str, float]],
        answers: list[Message | None],
    ) -> None:
        streams = self._streams
        _, index, tops_after, left, terms_of = columns
        for member, (estimate, basis, alpha) in numbers.items():
            slot, place = batch.slots[member], int(index[member])
            spent = streams.terms[terms_of[member]].spent(place + 1, int(tops_after[member]))
            answer = WireAnswer(
                batch.ids[member],
                streams.names[slot],
                "above",
                place,
                estimate,
                basis,
                None,
                spent,
                int(left[member]),
                alpha=alpha,
            )
            answers[batch.places[member]] = (streams.keys[slot], encode(answer), ())

    def _install(
        self,
        batch: Batch,
        row_of: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        open_rows: npt.NDArray[np.bool_],
        decisions: Decisions,
        outputs: Outputs,
    ) -> None:
        """Move the columns on and write what must outlive this worker."""
        streams = self._streams
        answers = decisions.codes != QUERY_HALTED
        answered = np.bincount(row_of[answers], minlength=len(rows))
        last = np.full(len(rows), -1, dtype=np.int64)
        np.maximum.at(last, row_of[answers], np.array(batch.offsets, dtype=np.int64)[answers])
        shown = np.where(open_rows, streams.columns.tops_left(rows) - decisions.tops_left, 0)
        first = (streams.columns.answered[rows] == 0) & (answered > 0)
        streams.columns.answered[rows] += answered
        streams.columns.tops[rows] += shown
        streams.columns.last_offset[rows[answered > 0]] = last[answered > 0]
        ended = open_rows & (streams.columns.tops_left(rows) == 0)
        streams.columns.state[rows[ended]] = EXHAUSTED
        streams.columns.changed[rows[(answered > 0) | ended]] = True
        self._replies.checkpoints(outputs, rows[(answered > 0) | ended])
        # A stream's first answer costs the threshold's share, each ⊤ one more; ⊥s after the first cost nothing.
        self._replies.charges(outputs, rows[first | (shown > 0) | ended])


def private_number(context: Context, slot: int, query: Any) -> float:
    """The private number that a sparse vector is asked about: a trusted value, or a table's count or sum."""
    if on_values(context.streams, slot):
        form_for(query, "value")
        return float(query.value)
    if form_for(query, "count", "sum") == "count":
        return float(context.count(slot, query.where))
    context.allow_sum(slot, query.sum)
    return float(context.total(slot, query.sum, query.where))


def _as_written(
    terms: Terms, batch: Batch, values: npt.NDArray[np.float64], members: npt.NDArray[np.intp]
) -> Callable[[int], Decimal]:
    """The exact number of each of some queries: a trusted value stands in its event, a count is whole."""
    if terms.source.kind == "values":
        return lambda place: value_of(batch.payloads[members[place]])
    return lambda place: written(float(values[members[place]]))


def _picked(column: Sequence[Any], members: npt.NDArray[np.intp]) -> Sequence[Any]:
    """A column's members, in rising order; the column itself where that is all of it, as when there is one law."""
    return column if len(members) == len(column) else [column[place] for place in members.tolist()]
