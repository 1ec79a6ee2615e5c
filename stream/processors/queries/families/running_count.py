"""Running counts: the exact sums of nodes come with the question, and each node's noise belongs to its place.

Nothing of a count is stored: what was published of a node is published again, noise and all, with every answer that the node is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from schemas import EventsSource, RunningCountCalibration, StandingQuery, Window, moment_ms, written_moment
from stream.accounting.counting_trees import CountingTree, Node
from stream.accounting.running_counts import answer_alpha, node_law, tree_of
from stream.mechanisms.grid import shown
from stream.mechanisms.running_count import node_name, window_number
from stream.noise import Role, cell_noise
from stream.processors.queries.families.base import (
    Asked,
    Context,
    Reply,
    Stateless,
    form_for,
    stream_by_stream,
    within_grants,
)
from stream.processors.queries.terms import Terms
from stream.processors.rejections import Rejection
from stream.processors.written import values_of


@dataclass(frozen=True, slots=True)
class _Horizon:
    """What streams of the same terms count by."""

    calibration: RunningCountCalibration
    tree: CountingTree
    first: int
    step: int
    size: int


@dataclass(frozen=True, slots=True)
class _Question:
    """The place of a group, the nodes of its windows so far, and their trusted sums as doubles."""

    group: int
    nodes: tuple[Node, ...]
    sums: tuple[float, ...]


class RunningCountFamily(Stateless):
    """Streams of kind ``running_count``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._horizons: dict[int, _Horizon] = {}

    def admit(self, slot: int, query: Any) -> _Question:
        """Find the nodes of a question: its window tells how many windows there are so far. Nothing private decides."""
        form_for(query, "values")
        horizon = self._horizon(slot)
        group = self._context.streams.terms_at(slot).groups.place(query.group)
        windows = _windows(horizon, query.window)
        nodes = horizon.tree.nodes(windows)
        if len(query.values) != len(nodes):
            raise Rejection(
                "malformed",
                f"values: {len(query.values)} of them, and the number so far after {windows} windows is the sum of {len(nodes)}; "
                "send the sums of these nodes, in the order of their windows",
            )
        return _Question(group, nodes, query.values)

    def answer(self, questions: Sequence[Asked]) -> list[Reply | None]:
        """Noise for all nodes of a stream's questions at once."""
        paid = within_grants(self._context.streams, questions)
        replies = iter(
            stream_by_stream([one for one, pays in zip(questions, paid, strict=True) if pays], self._replies)
        )
        return [next(replies) if pays else None for pays in paid]

    def _replies(self, slot: int, asked: Sequence[Asked]) -> list[Reply | None]:
        horizon = self._horizon(slot)
        subkey = self._context.streams.noise.subkey(slot, Role.NODES)
        names = [node_name(one.content.group, node) for one in asked for node in one.content.nodes]
        noise = iter(cell_noise(node_law(horizon.calibration), subkey, names).tolist())
        grid = self._context.streams.terms_at(slot).grid
        replies: list[Reply | None] = []
        for one in asked:
            question: _Question = one.content
            exact = grid.private(question.sums, values_of(one.payload)).tolist()
            noisy = sum(exact) + sum(islice(noise, len(exact)))
            replies.append(
                Reply(
                    charged=True,
                    estimate=shown([noisy], horizon.calibration.grid)[0],
                    basis="noisy",
                    alpha=answer_alpha(horizon.calibration, len(question.nodes)),
                )
            )
        return replies

    def _horizon(self, slot: int) -> _Horizon:
        number = int(self._context.streams.columns.terms_of[slot])
        if (known := self._horizons.get(number)) is None:
            known = self._horizons[number] = _horizon_of(self._context.streams.terms[number])
        return known


def _horizon_of(terms: Terms) -> _Horizon:
    calibration, standing, source = terms.calibration, terms.standing, terms.source
    if not isinstance(calibration, RunningCountCalibration) or not isinstance(source, EventsSource):
        raise TypeError("a stream of running_count has a calibration of its own and a source of events")
    if standing is None or standing.begins is None:
        raise TypeError("a stream of running_count is standing, and its first window is known")
    return _Horizon(
        calibration,
        tree_of(calibration),
        _first(standing, standing.begins),
        standing.window.every_ms,
        standing.window.size_ms,
    )


def _first(standing: StandingQuery, begins: str) -> int:
    return standing.window.first_from(moment_ms(begins))


def _windows(horizon: _Horizon, window: Window | None) -> int:
    """How many windows of the horizon are over with a question's own."""
    if window is None:
        raise Rejection("malformed", "window: the windows ask this stream; a question by hand is not answered")
    try:
        start, end = moment_ms(window.start), moment_ms(window.end)
    except ValueError as error:
        raise Rejection("malformed", f"window: {error}") from None
    found = window_number(start, horizon.first, horizon.step)
    if not found or end - start != horizon.size:
        raise Rejection(
            "malformed",
            f"window: it is none of the stream's, the first of which begins at {written_moment(horizon.first)}",
        )
    if found > horizon.tree.steps:
        raise Rejection(
            "malformed",
            f"window: it is number {found} of the stream's, whose horizon is {horizon.tree.steps} windows; open another stream",
        )
    return found
