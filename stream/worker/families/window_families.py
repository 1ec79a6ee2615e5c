"""Families of standing streams: running counts, histograms and quantiles of windows.

The question of a running count has the exact sums of its nodes (sums of windows, see
`stream.privacy.planning.release_plans`). The noise of a node depends only on its group and windows. So a node
has the same noisy sum in all answers, although no sum is stored.

If the groups are private texts, one question has the counts of all texts so far. The noise of a text's node
depends only on the text and the node. A released text stays released: updates record the first answer with
it (docs/proofs/unknown-groups.md).

The question about quantiles has the count of each value that the stream's predicate allows, for one group of
a window or for all groups one after the other. The answer is drawn as on tables (docs/proofs/quantiles.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import (
    TOO_MANY_TEXTS,
    AnswersCalibration,
    EventsSource,
    Histogram,
    ReleasedTexts,
    RunningCountCalibration,
    format_moment,
    moment_ms,
)
from schemas.queries import MAX_VALUE_COUNT
from stream.caches import ENTRY_BYTES
from stream.privacy.accuracy.intervals import half_width
from stream.privacy.accuracy.source_facts import counts_from_zero, window_sensitivity
from stream.privacy.mechanisms.private_values import (
    published_interval,
    published_numbers,
    values_of,
    window_text_size,
)
from stream.privacy.mechanisms.releases import RunningRelease
from stream.privacy.noise.keyed_noise import DrawRole, cell_noise
from stream.privacy.planning.answer_plans import alpha_for, answer_law
from stream.privacy.planning.release_plans import (
    CountingTree,
    Node,
    answer_alpha,
    node_law,
    node_name,
    text_node_names,
    tree_of,
    window_number,
)
from stream.privacy.planning.running_text_plans import running_size_law, text_interval, texts_are_too_large
from stream.processing.dead_letters import malformed_rejection
from stream.tables.texts import TextGroups
from stream.worker.families.context import AdmittedQuestion, Context, TermsCache
from stream.worker.families.family import PaidFamily, Reply, RestorableFamily, read_text_counts, require_form
from stream.worker.families.laplace_statistics import AnswerWords, LaplaceStatistic, draw_quantiles, plan_quantiles
from stream.worker.families.statistics import TopGroups, keep_largest_groups, window_statistic

_LIMIT_NAME: Final = b"limit"
"""Name for the noise of a running count's size limit; it differs from windows' names, which have 8 bytes."""


@dataclass(frozen=True, slots=True)
class _Horizon:
    """The windows of a running count and their tree; ``first`` (a start), ``step`` and ``size`` are in ms.

    ``lower_limit`` is the public lower limit of the counts; None if there is no limit.
    """

    calibration: RunningCountCalibration
    tree: CountingTree
    first: int
    step: int
    size: int
    lower_limit: float | None

    def number_of(self, window: Any) -> int:
        """Return the number (from 1) of a question's window; Rejection if it is not a window of the stream."""
        try:
            start, end = moment_ms(window.start), moment_ms(window.end)
        except ValueError as error:
            raise malformed_rejection(f"window: {error}") from None
        found = window_number(start, self.first, self.step)
        if not found or end - start != self.size:
            raise malformed_rejection(
                f"window: not a window of this stream, the first of which begins at {format_moment(self.first)}"
            )
        if found > self.tree.steps:
            raise malformed_rejection(
                f"window: number {found} of the stream, which counts only {self.tree.steps} windows; open another stream"
            )
        return found


def _build_horizon(context: Context, slot: int) -> _Horizon:
    calibration, standing = context.calibration(slot, RunningCountCalibration), context.standing_query(slot)
    if standing.begins is None:
        raise TypeError("a running_count stream needs standing.begins")
    window = standing.window
    first = window.first_start_from(moment_ms(standing.begins))
    lower_limit = 0.0 if counts_from_zero(context.source(slot, EventsSource), standing) else None
    return _Horizon(calibration, tree_of(calibration), first, window.every_ms, window.size_ms, lower_limit)


@dataclass(frozen=True, slots=True)
class _NodeQuestion:
    """A group's index, the nodes for its windows so far, and their exact sums as doubles."""

    group: int
    nodes: tuple[Node, ...]
    sums: tuple[float, ...]


class RunningCountFamily(PaidFamily):
    """Streams of kind ``running_count``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._horizons = TermsCache(context, _build_horizon)

    def admit(self, slot: int, query: Any) -> _NodeQuestion:
        """Resolve a question; its public window and group determine its nodes."""
        require_form(query, "values")
        horizon = self._horizons.find(slot)
        group = self._streams.terms_at(slot).groups.index_of(query.group)
        windows = horizon.number_of(query.window)
        nodes = horizon.tree.nodes(windows)
        if len(query.values) != len(nodes):
            raise malformed_rejection(
                f"values: {len(query.values)} values, and the count after {windows} windows is the sum of {len(nodes)} nodes; send "
                "the sum of each node, in the order of the windows"
            )
        return _NodeQuestion(group, nodes, query.values)

    def _replies(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply]:
        horizon = self._horizons.find(slot)
        subkey = self._streams.noise.subkey(slot, DrawRole.NODES)
        names = [node_name(one.content.group, node) for one in asked for node in one.content.nodes]
        noise = iter(cell_noise(node_law(horizon.calibration), subkey, names).tolist())
        grid = self._streams.terms_at(slot).grid
        replies: list[Reply] = []
        for one in asked:
            question: _NodeQuestion = one.content
            exact = grid.round_private(question.sums, values_of(one.payload)).tolist()
            noisy, nodes = sum(exact) + sum(islice(noise, len(exact))), len(question.nodes)
            half = half_width(node_law(horizon.calibration), nodes)
            replies.append(
                Reply(
                    charged=True,
                    estimate=published_numbers([noisy], horizon.calibration.grid)[0],
                    basis="noisy",
                    alpha=answer_alpha(horizon.calibration, nodes),
                    interval=published_interval(noisy, half, horizon.calibration.grid, low=horizon.lower_limit),
                )
            )
        return replies


class _RunningTexts(NamedTuple):
    """The counts of a running count's texts after ``number`` windows.

    ``is_too_large`` is True if the texts are missing because they exceed the limit.
    """

    number: int
    groups: TextGroups
    is_too_large: bool


class RunningTextsFamily(RestorableFamily[RunningRelease]):
    """Streams of kind ``running_count`` over private texts."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, "released texts")
        self._horizons = TermsCache(context, _build_horizon)

    def admit(self, slot: int, query: Any) -> _RunningTexts:
        """Resolve a question; its window is public, and the counts of its texts are private."""
        groups, is_too_large = read_text_counts(query)
        return _RunningTexts(self._horizons.find(slot).number_of(query.window), groups, is_too_large)

    def _build_state(self, slot: int, updates: Sequence[Any]) -> RunningRelease:
        del slot
        state = RunningRelease(ended=any(update.last for update in updates))
        for update in updates:
            for text in update.texts:
                state.admit(text.encode())
        return state

    def _answer_stream(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        affordable, tops = self._streams.answers_left(slot), int(self._streams.columns.tops[slot])
        state = self._state(slot)
        replies = [
            self._reply(slot, state, one.content, tops + place) if place < affordable else None
            for place, one in enumerate(asked)
        ]
        updates = [one.update for one in replies if one is not None and one.update is not None]
        self._keep_state(slot, state, updates)
        return replies

    @staticmethod
    def _weigh_state(state: RunningRelease) -> int:
        return ENTRY_BYTES * (4 + len(state.texts)) + state.size

    def _reply(self, slot: int, state: RunningRelease, asked: _RunningTexts, number: int) -> Reply:
        horizon = self._horizons.find(slot)
        calibration, incarnation = horizon.calibration, self._streams.incarnations[slot]
        if state.ended or self._are_too_large(slot, calibration, asked):
            update = ReleasedTexts(incarnation=incarnation, number=number, texts=(), last=not state.ended)
            state.ended = True
            return Reply(charged=True, estimates=(), keys=(), intervals=(), basis=TOO_MANY_TEXTS, update=update)
        nodes, texts = horizon.tree.nodes(asked.number), asked.groups.private_names()
        names = [name for text in texts for name in text_node_names(text, nodes)]
        noise = cell_noise(node_law(calibration), self._streams.noise.subkey(slot, DrawRole.NODES), names)
        noise = noise.reshape(len(texts), len(nodes)).sum(axis=1)
        new, shown = state.release(texts, asked.groups.private_counts, noise, calibration.threshold or 1)
        ends = (text_interval(calibration, len(nodes), group.rows) for group in shown)
        return Reply(
            charged=True,
            estimates=tuple(float(group.rows) for group in shown),
            intervals=tuple((float(low), float(high)) for low, high in ends),
            basis="noisy",
            alpha=answer_alpha(calibration, len(nodes)),
            keys=tuple(group.text.decode() for group in shown),
            update=ReleasedTexts(
                incarnation=incarnation, number=number, texts=tuple(text.decode() for text in new)
            ),
        )

    def _are_too_large(self, slot: int, calibration: RunningCountCalibration, asked: _RunningTexts) -> bool:
        """Return True if the noisy size of all texts so far exceeds the limit, whose noise is drawn once."""
        names = [_LIMIT_NAME, asked.number.to_bytes(8, "big")]
        subkey = self._streams.noise.subkey(slot, DrawRole.KEYS)
        limit_noise, noise = cell_noise(running_size_law(calibration), subkey, names).tolist()
        size = window_text_size(asked.groups.private_texts)
        return asked.is_too_large or texts_are_too_large(calibration, size, noise, limit_noise)


class StandingHistogramFamily(PaidFamily):
    """Streams of kind ``histogram`` on live topics."""

    def admit(self, slot: int, query: Any) -> tuple[float, ...]:
        """Return the numbers of all groups of a window, in row-major order."""
        require_form(query, "values")
        values: tuple[float, ...] = query.values
        if len(values) != (groups := self._groups(slot)):
            raise malformed_rejection(
                f"values: {len(values)} values for {groups} groups; send one value for each group"
            )
        return values

    def _replies(self, slot: int, questions: Sequence[AdmittedQuestion]) -> list[Reply]:
        calibration, groups = self._context.calibration(slot, AnswersCalibration), self._groups(slot)
        source, standing = self._context.source(slot, EventsSource), self._context.standing_query(slot)
        width, spread = calibration.sensitivity_steps, window_sensitivity(source, standing, groups).spread
        laws = (answer_law(calibration, width, spread),) * groups
        alpha, grid = alpha_for(calibration, width, groups, spread), self._streams.terms_at(slot).grid
        half = half_width(laws[0])
        lower_limit = 0.0 if counts_from_zero(source, standing) else None
        attributes = self._context.mechanism(slot, Histogram).attributes
        grouped = tuple((name, source.attributes[name]) for name in attributes)
        replies: list[Reply] = []
        for one, noise in zip(questions, self._context.answer_noise(questions, laws), strict=True):
            exact = grid.round_private(one.content, values_of(one.payload)).tolist()
            noisy = [number + drawn for number, drawn in zip(exact, noise, strict=True)]
            reply = Reply(
                charged=True,
                estimates=tuple(published_numbers(noisy, calibration.grid)),
                basis="noisy",
                alpha=alpha,
                intervals=tuple(
                    published_interval(number, half, calibration.grid, low=lower_limit) for number in noisy
                ),
            )
            top = standing.top
            replies.append(reply if top is None else keep_largest_groups(reply, TopGroups(top, grouped)))
        return replies

    def _groups(self, slot: int) -> int:
        """Return the number of groups of a window: the number of cells of the mechanism's attributes."""
        attributes = self._context.source(slot, EventsSource).attributes
        return math.prod(attributes[name].size for name in self._context.mechanism(slot, Histogram).attributes)


class WindowQuantilesFamily(PaidFamily):
    """Streams of live topics that ask for quantiles."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._questions = TermsCache(context, _plan_window_question)

    def admit(self, slot: int, query: Any) -> tuple[float, ...]:
        """Return the counts of a window's values."""
        require_form(query, "values")
        statistic = self._questions.find(slot).statistic
        groups, values = statistic.groups, statistic.size
        found: tuple[float, ...] = query.values
        if len(found) != groups * values:
            raise malformed_rejection(
                f"values: {len(found)} counts for {values} values in each of {groups} groups; send one count for each value"
            )
        return found

    def _reply(self, one: AdmittedQuestion) -> Reply:
        question = self._questions.find(one.slot)
        exact = self._streams.terms_at(one.slot).grid.round_private(one.content, values_of(one.payload))
        shape = question.statistic.groups, question.statistic.size
        counts: npt.NDArray[np.int64] = np.clip(exact, 0, MAX_VALUE_COUNT).reshape(shape)
        words = AnswerWords(*self._context.derive_words([one], question.words))
        return draw_quantiles(replace(question, counts=counts), words)


def _plan_window_question(context: Context, slot: int) -> LaplaceStatistic:
    """Return the question about a stream's windows, without counts."""
    source, standing = context.source(slot, EventsSource), context.standing_query(slot)
    together = isinstance(context.streams.terms_at(slot).mechanism, Histogram)
    statistic = window_statistic(source, standing, together=together)
    return plan_quantiles(statistic, context.calibration(slot, AnswersCalibration), source)
