"""Mechanisms with one release: the stream is charged once, and its answers are post-processing.

A release is not stored: its noise is derived again from the names of its cells or projection rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import MAX_CATEGORIES, Histogram, Interval, LazyHistogram, ReleaseCalibration, SparseProject
from schemas.queries import STATISTICS
from stream.privacy.accuracy.intervals import MISS, half_width, interval_within, weighted_half_width
from stream.privacy.accuracy.rank_accuracy import edge_reaches, located, misfits_reach, sums_reach
from stream.privacy.accuracy.release_accuracy import (
    SUMS_SHARE,
    histogram_alpha,
    lazy_alpha,
    projection_alpha,
    release_law,
    released_norm,
)
from stream.privacy.mechanisms.grid import shown_interval
from stream.privacy.mechanisms.releases import (
    cell_names,
    columns,
    inner_products,
    marginal,
    matrix_seed,
    project,
    weighted_sum,
)
from stream.privacy.mechanisms.sparse_weights import CellQuestion
from stream.privacy.mechanisms.spreads import moments, variance_of, widths
from stream.privacy.noise import DrawRole, cell_noise
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.processing.dead_letters import Rejection
from stream.tables import PredicateError, PrivateTable, cells
from stream.tables.cache import BoundedCache
from stream.tables.table_errors import no_attribute
from stream.worker.families.family import (
    AdmittedQuestion,
    Context,
    Family,
    NoisyRate,
    Reply,
    form_for,
    rates_reply,
    stream_by_stream,
)
from stream.worker.families.sparse_cells import NamedCells
from stream.worker.families.statistics import Found, Statistic, read_statistic, statistic_form
from stream.worker.families.top_groups import Top, largest_groups, top_of

RELEASE_CACHE_BYTES: Final = 128 << 20
"""Cache of releases per partition; evicted ones are recomputed."""

BASIS: Final = "release"

Integers = npt.NDArray[np.int64]


class _Release(Family):
    """Base of the families with one release."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._kept: BoundedCache[str, Integers] = BoundedCache(RELEASE_CACHE_BYTES, lambda release: release.nbytes)
        self._cells_of: dict[int, NamedCells] = {}

    def _calibration(self, slot: int) -> ReleaseCalibration:
        return self._context.calibration(slot, ReleaseCalibration)

    def _cells_asked(
        self, slot: int, query: Any, kind: type[LazyHistogram | SparseProject]
    ) -> tuple[PrivateTable, CellQuestion]:
        """Resolve a question to at most ``sparsity`` single cells."""
        form_for(query, "cells")
        mechanism = self._context.mechanism(slot, kind)
        question = self._cells(slot, mechanism.attributes).question(query.cells, mechanism.sparsity)
        return self._context.table(slot), question

    def _cells(self, slot: int, attributes: Sequence[str]) -> NamedCells:
        """Return the cells of a stream's attributes; streams of equal terms share one object."""
        terms = int(self._streams.columns.terms_of[slot])
        if (known := self._cells_of.get(terms)) is None:
            known = self._cells_of[terms] = NamedCells(self._context.source_table(slot), attributes)
        return known

    def _release(self, slot: int, table: PrivateTable) -> Integers:
        """Return a stream's release, from the cache or computed again."""
        incarnation = self._streams.incarnations[slot]
        if (known := self._kept.get(incarnation)) is None:
            known = self._computed(slot, table)
            self._kept.put(incarnation, known)
        return known

    def _computed(self, slot: int, table: PrivateTable) -> Integers:
        raise NotImplementedError

    def _interval(self, slot: int, question: CellQuestion, estimate: float) -> Interval:
        """Return the confidence interval of a weighted sum of cells, from 0 to all rows in one cell."""
        half = weighted_half_width(release_law(self._calibration(slot)), question.steps) / WEIGHT_STEPS
        most = self._most_rows(slot)
        ends = (max(0.0, estimate - half), max(0.0, estimate + half))
        if most is None:
            return ends
        limit = most * max(question.steps) / WEIGHT_STEPS
        return min(ends[0], limit), min(ends[1], limit)

    def _most_rows(self, slot: int) -> float | None:
        """Return the number of rows as a limit of counts, if it is public."""
        rows = self._context.public_rows(slot)
        return None if rows is None else float(rows)

    def _noise(self, slot: int, names: Sequence[bytes]) -> Integers:
        """Derive the noise of the cells or rows with these names."""
        subkey = self._streams.noise.subkey(slot, DrawRole.RELEASE)
        return cell_noise(release_law(self._calibration(slot)), subkey, names)


@dataclass(frozen=True, slots=True)
class _Marginal:
    """Sums of the cells in ``mask`` for each cell of ``axes``, divided by ``rows``.

    With ``hits``, the share of these sums that is in the cells of ``hits``; with ``top`` only the
    largest sums are published.
    """

    mask: npt.NDArray[np.bool_]
    axes: tuple[int, ...]
    rows: int = 1
    hits: npt.NDArray[np.bool_] | None = None
    top: Top | None = None


@dataclass(frozen=True, slots=True)
class _ReadStatistic:
    """A statistic of the cells in ``mask``; ``axes`` are those of its groups and its attribute."""

    asked: Statistic
    mask: npt.NDArray[np.bool_]
    axes: tuple[int, ...]


class HistogramFamily(_Release):
    """Streams of kind ``histogram``."""

    def admit(self, slot: int, query: Any) -> tuple[PrivateTable, _Marginal | _ReadStatistic | CellQuestion]:
        """Resolve a question to cells of the release."""
        form = form_for(query, "count", "fraction", "groups", "cells", "rate", *STATISTICS)
        mechanism = self._context.mechanism(slot, Histogram)
        space = self._cells(slot, mechanism.attributes)
        table = self._context.table(slot)
        if form == "cells":
            return table, space.question(query.cells, len(query.cells))
        mask = self._mask(slot, query.where, space, "where")
        if form == "rate":
            axes = () if query.group_by is None else self._axes(query.group_by, space)
            return table, _Marginal(mask, axes, hits=mask & self._mask(slot, query.rate, space, "rate"))
        if (statistic := statistic_form(query)) is not None:
            asked = read_statistic(self._context, slot, query, statistic, space.attributes)
            named = (*asked.group_by, asked.attribute)
            return table, _ReadStatistic(asked, mask, tuple(space.attributes.index(name) for name in named))
        if form == "groups":
            axes = self._axes(query.group_by, space)
            return table, _Marginal(mask, axes, top=top_of(self._context.source_table(slot), query))
        rows = self._context.public_rows(slot) if form == "fraction" else 1
        if rows is None:
            # The number of rows is private: the share is a rate of all cells.
            return table, _Marginal(np.ones_like(mask), (), hits=mask)
        return table, _Marginal(mask, (), max(1, rows))

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions from their streams' releases."""
        return [self._reply(one) for one in questions]

    def _mask(self, slot: int, where: str | None, space: NamedCells, field: str) -> npt.NDArray[np.bool_]:
        """Return the cells that satisfy a predicate."""
        try:
            predicate = self._context.predicate(slot, where, field)
            return cells(predicate, dict(zip(space.attributes, space.shape, strict=True)))
        except PredicateError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def _axes(self, group_by: Sequence[str], space: NamedCells) -> tuple[int, ...]:
        if len(set(group_by)) != len(group_by):
            raise Rejection("malformed", "group_by: an attribute is named twice; name it once")
        for place, name in enumerate(group_by):
            if name not in space.attributes:
                lacking = no_attribute(place, name, space.attributes, "the stream's histogram, which has")
                raise Rejection("malformed", f"group_by: {lacking}")
        axes = tuple(space.attributes.index(name) for name in group_by)
        if math.prod(space.shape[axis] for axis in axes) > MAX_CATEGORIES:
            raise Rejection(
                "malformed", f"group_by: more than {MAX_CATEGORIES} cells; group by fewer or smaller attributes"
            )
        return axes

    def _reply(self, one: AdmittedQuestion) -> Reply:
        table, question = one.content
        release = self._release(one.slot, table)
        calibration = self._calibration(one.slot)
        if isinstance(question, _ReadStatistic):
            return _statistic_of(question, release, calibration)
        if isinstance(question, CellQuestion):
            estimate = weighted_sum(question.steps, [int(release[cell]) for cell in question.cells])
            alpha = histogram_alpha(calibration, release.size, len(question.cells), whole=_whole(question))
            interval = self._interval(one.slot, question, estimate)
            return Reply(charged=False, estimate=estimate, basis=BASIS, alpha=alpha, interval=interval)
        if question.hits is not None:
            return _rates(calibration, release, question, question.hits)
        numbers = marginal(np.where(question.mask, release, 0), question.axes)
        summed = marginal(question.mask.astype(np.int64), question.axes)
        alpha = histogram_alpha(calibration, release.size, int(summed.max()), numbers.size)
        law, most = release_law(calibration), self._most_rows(one.slot)
        intervals = tuple(
            shown_interval(number, half_width(law, terms), 1.0, question.rows, low=0.0, high=high)
            for number, terms, high in zip(
                numbers.ravel().tolist(),
                summed.ravel().tolist(),
                repeat(None if most is None else most / question.rows),
                strict=False,
            )
        )
        if question.axes:
            estimates = tuple(map(float, numbers.ravel().tolist()))
            reply = Reply(charged=False, estimates=estimates, basis=BASIS, alpha=alpha, intervals=intervals)
            return reply if question.top is None else largest_groups(reply, question.top)
        estimate = int(numbers) / question.rows
        return Reply(
            charged=False, estimate=estimate, basis=BASIS, alpha=alpha / question.rows, interval=intervals[0]
        )

    def _computed(self, slot: int, table: PrivateTable) -> Integers:
        """Compute the noisy histogram over the attributes' axes."""
        space = self._cells(slot, self._context.mechanism(slot, Histogram).attributes)
        counts = table.group_counts(space.attributes, self._context.predicate(slot, None))
        names = cell_names(np.indices(space.shape).reshape(len(space.shape), -1).T)
        return counts + self._noise(slot, names).reshape(space.shape)


def _rates(
    calibration: ReleaseCalibration, release: Integers, question: _Marginal, hits: npt.NDArray[np.bool_]
) -> Reply:
    """Return the share of hits among the cells of each group."""
    parts = (hits, question.mask & ~hits)
    terms = [marginal(part.astype(np.int64), question.axes).ravel() for part in parts]
    hit, missed = (marginal(np.where(part, release, 0), question.axes).ravel().tolist() for part in parts)
    most = max(1, *(int(one.max()) for one in terms))
    reach = histogram_alpha(calibration, release.size, most, 2 * len(hit))
    law = release_law(calibration)
    # |(1 − p)·X − p·Y| ≤ max(|X|, |Y|): each of both noises may miss with half of the probability.
    halves = [max(half_width(law, int(m), MISS / 2) for m in pair) for pair in zip(*terms, strict=True)]
    rates = [
        NoisyRate(h, m, reach, interval_within(h, m, half)) for h, m, half in zip(hit, missed, halves, strict=True)
    ]
    return rates_reply(rates, grouped=bool(question.axes), charged=False, basis=BASIS)


def _statistic_of(question: _ReadStatistic, release: Integers, calibration: ReleaseCalibration) -> Reply:
    """Read a statistic off the noisy counts of an attribute's values in each group."""
    asked = question.asked
    shape, codes = (asked.groups, asked.values.size), slice(asked.first, asked.end)
    noisy = marginal(np.where(question.mask, release, 0), question.axes).reshape(shape)[:, codes]
    draws = marginal(question.mask.astype(np.int64), question.axes).reshape(shape)[:, codes]
    numbers = max(1, asked.groups * max(1, len(asked.parts)))
    failure = SUMS_SHARE * calibration.beta / (calibration.expected_queries * numbers)
    law, size = release_law(calibration), asked.size
    edges = np.arange(size + 1, dtype=np.int64)
    found: list[Found] = []
    alpha = 0.0
    for counts, summed in zip(noisy, draws, strict=True):
        total = int(summed.sum())
        if asked.is_squared:
            values = [float(number) for number in moments(counts)]
            own, every = (
                [sums_reach(law, total, each / len(values)) * width for width in widths(size)]
                for each in (MISS, failure)
            )
            one = asked.of_variance(*variance_of(values, own, size))
            _, low, high = variance_of(values, every, size)
            alpha = max(alpha, asked.alpha_of_variance(one, low, high))
            found.append(one)
            continue
        below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        left = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(summed)])
        quantiles = []
        for part in map(float, asked.parts):
            reaches = edge_reaches(law, left, part, asked.failure)
            quantiles.append(located(edges, below - part * float(below[-1]), reaches))
            alpha = max(alpha, misfits_reach(law, max(1, total), 2 * size, part, failure))
        found += asked.of_codes(quantiles)
    return asked.reply(found, charged=False, basis=BASIS, alpha=alpha)


class LazyHistogramFamily(_Release):
    """Streams of kind ``lazy_histogram``."""

    def admit(self, slot: int, query: Any) -> tuple[PrivateTable, CellQuestion]:
        """Resolve a question to single cells."""
        return self._cells_asked(slot, query, LazyHistogram)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions; the noise of all cells of a stream is drawn at once."""
        return stream_by_stream(questions, self._replies)

    def _replies(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        table: PrivateTable = asked[0].content[0]
        questions: list[CellQuestion] = [one.content[1] for one in asked]
        space = self._cells(slot, self._context.mechanism(slot, LazyHistogram).attributes)
        calibration = self._calibration(slot)
        named = [cell for question in questions for cell in question.cells]
        noisy = iter((table.cell_counts(space.attributes, named) + self._noise(slot, cell_names(named))).tolist())
        replies: list[Reply | None] = []
        for question in questions:
            values = list(islice(noisy, len(question.cells)))
            alpha = lazy_alpha(calibration, len(values), whole=_whole(question))
            estimate = weighted_sum(question.steps, values)
            interval = self._interval(slot, question, estimate)
            replies.append(Reply(charged=False, estimate=estimate, basis=BASIS, alpha=alpha, interval=interval))
        return replies


class SparseProjectFamily(_Release):
    """Streams of kind ``sparse_project``."""

    def admit(self, slot: int, query: Any) -> tuple[PrivateTable, CellQuestion]:
        """Resolve a question to single cells."""
        return self._cells_asked(slot, query, SparseProject)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer with inner products; the error bound follows from the noisy projection."""
        return [self._reply(one) for one in questions]

    def _reply(self, one: AdmittedQuestion) -> Reply:
        table, question = one.content
        release = self._release(one.slot, table)
        seed = matrix_seed(self._streams.incarnations[one.slot])
        products = inner_products(columns(seed, cell_names(question.cells), len(release)), release)
        calibration = self._calibration(one.slot)
        doubles = release.astype(np.float64)
        norm = released_norm(calibration, float(doubles @ doubles), self._context.public_rows(one.slot))
        alpha = projection_alpha(calibration, len(question.cells), norm)
        return Reply(
            charged=False,
            estimate=weighted_sum(question.steps, products, len(release)),
            basis=BASIS,
            alpha=alpha if math.isfinite(alpha) else None,
        )

    def _computed(self, slot: int, table: PrivateTable) -> Integers:
        """Compute the noisy projection u + v, with noise v."""
        mechanism = self._context.mechanism(slot, SparseProject)
        codes = np.stack([table.private_codes[name] for name in mechanism.attributes], axis=1)
        exact = project(matrix_seed(self._streams.incarnations[slot]), codes, mechanism.projections)
        return exact + self._noise(slot, cell_names(np.arange(mechanism.projections)[:, None]))


def _whole(question: CellQuestion) -> bool:
    return set(question.steps) == {WEIGHT_STEPS}
