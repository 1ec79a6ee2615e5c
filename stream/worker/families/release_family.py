"""Families with one release: the stream is charged once, and its answers are post-processing.

A release is not stored: its noise is derived again from the names of its cells or projection rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Interval, ReleaseCalibration, SparseProject
from schemas.queries import STATISTICS
from stream.caches import BoundedCache, weigh_array
from stream.privacy.accuracy.intervals import MISS_PROBABILITY, clip_interval, half_width, weighted_half_width
from stream.privacy.accuracy.rate_intervals import (
    code_variance,
    compute_moments,
    rate_bounds_of_sums,
    row_sensitivities,
)
from stream.privacy.accuracy.release_accuracy import (
    SUMS_PART,
    edge_reaches,
    histogram_alpha,
    lazy_alpha,
    locate_quantile,
    misfits_reach,
    projection_alpha,
    release_law,
    released_norm,
    sums_reach,
)
from stream.privacy.mechanisms.multiplicative_weights import CellQuestion
from stream.privacy.mechanisms.private_values import published_interval
from stream.privacy.mechanisms.releases import (
    cell_bytes,
    inner_products,
    matrix_columns,
    matrix_seed,
    project,
    sum_to_marginal,
    weighted_sum,
)
from stream.privacy.noise.keyed_noise import DrawRole, cell_noise
from stream.privacy.noise.samplers import IntegerArray
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.processing.dead_letters import Rejection, malformed_rejection
from stream.tables.counted_table import CountedTable, cell_mask
from stream.tables.table_errors import PredicateError, undeclared_name_message
from stream.worker.families import statistics
from stream.worker.families.context import AdmittedQuestion, Context, TermsCache
from stream.worker.families.family import Family, Reply, answer_by_stream, require_form
from stream.worker.families.tensors import AttributeCells

RELEASE_CACHE_BYTES: Final = 128 << 20
"""Maximum number of bytes of cached releases per partition; other releases are computed again."""

BASIS: Final = "release"


class _ReleaseFamily(Family):
    """Base of the families with one release."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._release_cache: BoundedCache[str, IntegerArray] = BoundedCache(
            RELEASE_CACHE_BYTES, weigh_array, "releases"
        )
        self._cells = TermsCache(context, _cells_of_mechanism)

    def _calibration(self, slot: int) -> ReleaseCalibration:
        return self._context.calibration(slot, ReleaseCalibration)

    def admit(self, slot: int, query: Any) -> Any:
        """Resolve a question to a table and at most ``mechanism.sparsity`` single cells."""
        require_form(query, "cells")
        mechanism: Any = self._streams.terms_at(slot).mechanism
        question = self._cells.find(slot).parse_question(query.cells, mechanism.sparsity)
        return self._context.table(slot), question

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions from their streams' releases."""
        return [self._reply(one) for one in questions]

    def _reply(self, one: AdmittedQuestion) -> Reply:
        raise NotImplementedError

    def _release(self, slot: int, table: CountedTable) -> IntegerArray:
        incarnation = self._streams.incarnations[slot]
        if (known := self._release_cache.get(incarnation)) is None:
            known = self._compute_release(slot, table)
            self._release_cache.put(incarnation, known)
        return known

    def _compute_release(self, slot: int, table: CountedTable) -> IntegerArray:
        raise NotImplementedError

    def _interval(self, slot: int, question: CellQuestion, estimate: float) -> Interval:
        """Return the confidence interval of a weighted sum of cells, within its public limits."""
        half = weighted_half_width(release_law(self._calibration(slot)), question.steps) / WEIGHT_STEPS
        most = self._context.count_limit(slot)
        limit = None if most is None else most * max(question.steps) / WEIGHT_STEPS
        return clip_interval((estimate - half, estimate + half), 0.0, limit)

    def _draw_noise(self, slot: int, names: Sequence[bytes]) -> IntegerArray:
        subkey = self._streams.noise.subkey(slot, DrawRole.RELEASE)
        return cell_noise(release_law(self._calibration(slot)), subkey, names)


def _cells_of_mechanism(context: Context, slot: int) -> AttributeCells:
    mechanism: Any = context.streams.terms_at(slot).mechanism
    return AttributeCells(context.source_table(slot), mechanism.attributes)


@dataclass(frozen=True, slots=True)
class _CellSums:
    """A question about sums of the cells in ``mask``: one sum for each group of the ``axes``.

    The sums are divided by ``divisor``. With ``hits``, the question is about the share of each sum that is in
    the cells of ``hits``. With ``top``, it is only about the largest sums.
    """

    mask: npt.NDArray[np.bool_]
    axes: tuple[int, ...]
    divisor: int = 1
    hits: npt.NDArray[np.bool_] | None = None
    top: statistics.TopGroups | None = None


@dataclass(frozen=True, slots=True)
class _CellStatistic:
    """A question about a statistic of the cells in ``mask``.

    ``axes`` has the axes of the question's groups and attribute.
    """

    asked: statistics.Statistic
    mask: npt.NDArray[np.bool_]
    axes: tuple[int, ...]


class HistogramFamily(_ReleaseFamily):
    """Streams of kind ``histogram``."""

    def admit(self, slot: int, query: Any) -> tuple[CountedTable, _CellSums | _CellStatistic | CellQuestion]:
        """Resolve a question to cells of the release."""
        form = require_form(query, "count", "fraction", "groups", "cells", "rate", *STATISTICS)
        space, table = self._cells.find(slot), self._context.table(slot)
        if form == "cells":
            return table, space.parse_question(query.cells, len(query.cells))
        mask = self._cells_satisfying(slot, query.where, space, "where")
        if form == "rate":
            axes = () if query.group_by is None else self._group_axes(query.group_by, space)
            hits = mask & self._cells_satisfying(slot, query.rate, space, "rate")
            return table, _CellSums(mask, axes, hits=hits)
        if (statistic := statistics.statistic_form(query)) is not None:
            asked = statistics.read_statistic(self._context, slot, query, statistic, space.attributes)
            named = (*asked.group_by, asked.attribute)
            return table, _CellStatistic(asked, mask, tuple(space.attributes.index(name) for name in named))
        if form == "groups":
            axes = self._group_axes(query.group_by, space)
            return table, _CellSums(mask, axes, top=statistics.parse_top(self._context.source_table(slot), query))
        rows = self._context.public_rows(slot) if form == "fraction" else 1
        if rows is None:
            # The number of rows is private, so the share is computed as a rate among all cells.
            return table, _CellSums(np.ones_like(mask), (), hits=mask)
        return table, _CellSums(mask, (), max(1, rows))

    def _cells_satisfying(
        self, slot: int, where: str | None, space: AttributeCells, field: str
    ) -> npt.NDArray[np.bool_]:
        try:
            predicate = self._context.predicate(slot, where, field)
            return cell_mask(predicate, dict(zip(space.attributes, space.shape, strict=True)))
        except PredicateError as error:
            raise Rejection("predicate", f"{field}: {error}") from None

    def _group_axes(self, group_by: Sequence[str], space: AttributeCells) -> tuple[int, ...]:
        if len(set(group_by)) != len(group_by):
            raise malformed_rejection("group_by: an attribute is named twice; name it once")
        for place, name in enumerate(group_by):
            if name not in space.attributes:
                owner = "the stream's histogram, which has"
                message = undeclared_name_message(place, name, space.attributes, owner)
                raise malformed_rejection(f"group_by: {message}")
        axes = tuple(space.attributes.index(name) for name in group_by)
        statistics.require_listable_groups([space.shape[axis] for axis in axes])
        return axes

    def _reply(self, one: AdmittedQuestion) -> Reply:
        table, question = one.content
        release = self._release(one.slot, table)
        calibration = self._calibration(one.slot)
        if isinstance(question, _CellStatistic):
            return _statistic_reply(question, release, calibration)
        if isinstance(question, CellQuestion):
            estimate = weighted_sum(question.steps, [int(release[cell]) for cell in question.cells])
            alpha = histogram_alpha(
                calibration, release.size, len(question.cells), full_weights=_has_full_weights(question)
            )
            interval = self._interval(one.slot, question, estimate)
            return Reply(charged=False, estimate=estimate, basis=BASIS, alpha=alpha, interval=interval)
        if question.hits is not None:
            return _rates_of_groups(calibration, release, question, question.hits)
        numbers = sum_to_marginal(np.where(question.mask, release, 0), question.axes)
        summed = sum_to_marginal(question.mask.astype(np.int64), question.axes)
        alpha = histogram_alpha(calibration, release.size, int(summed.max()), numbers.size)
        law, most = release_law(calibration), self._context.count_limit(one.slot)
        high = None if most is None else most / question.divisor
        intervals = tuple(
            published_interval(number, half_width(law, terms), 1.0, question.divisor, low=0.0, high=high)
            for number, terms in zip(numbers.ravel().tolist(), summed.ravel().tolist(), strict=True)
        )
        if question.axes:
            estimates = tuple(map(float, numbers.ravel().tolist()))
            reply = Reply(charged=False, estimates=estimates, basis=BASIS, alpha=alpha, intervals=intervals)
            return reply if question.top is None else statistics.keep_largest_groups(reply, question.top)
        estimate = int(numbers) / question.divisor
        return Reply(
            charged=False, estimate=estimate, basis=BASIS, alpha=alpha / question.divisor, interval=intervals[0]
        )

    def _compute_release(self, slot: int, table: CountedTable) -> IntegerArray:
        space = self._cells.find(slot)
        counts = table.group_counts(space.attributes, self._context.predicate(slot, None))
        names = cell_bytes(np.indices(space.shape).reshape(len(space.shape), -1).T)
        return counts + self._draw_noise(slot, names).reshape(space.shape)


def _rates_of_groups(
    calibration: ReleaseCalibration, release: IntegerArray, question: _CellSums, hits: npt.NDArray[np.bool_]
) -> Reply:
    parts = (hits, question.mask & ~hits)
    terms = [sum_to_marginal(part.astype(np.int64), question.axes).ravel() for part in parts]
    hit, missed = (sum_to_marginal(np.where(part, release, 0), question.axes).ravel().tolist() for part in parts)
    most = max(1, *(int(one.max()) for one in terms))
    draws = list(zip(*(one.tolist() for one in terms), strict=True))
    excluded = [place for place, pair in enumerate(draws) if not any(pair)]
    reach = histogram_alpha(calibration, release.size, most, max(1, 2 * (len(hit) - len(excluded))))
    law = release_law(calibration)
    rates = [
        statistics.NoisyRate(h, m, reach, rate_bounds_of_sums(h, m, law, pair))
        for h, m, pair in zip(hit, missed, draws, strict=True)
    ]
    return statistics.build_rates_reply(
        rates, grouped=bool(question.axes), excluded=excluded, charged=False, basis=BASIS
    )


def _statistic_reply(question: _CellStatistic, release: IntegerArray, calibration: ReleaseCalibration) -> Reply:
    asked = question.asked
    shape, codes = (asked.groups, asked.values.size), slice(asked.first, asked.end)
    noisy = sum_to_marginal(np.where(question.mask, release, 0), question.axes).reshape(shape)[:, codes]
    draws = sum_to_marginal(question.mask.astype(np.int64), question.axes).reshape(shape)[:, codes]
    numbers = max(1, asked.groups * max(1, len(asked.quantiles)))
    failure = SUMS_PART * calibration.beta / (calibration.expected_queries * numbers)
    law, size = release_law(calibration), asked.size
    edges = np.arange(size + 1, dtype=np.int64)
    found: list[statistics.StatisticNumber] = []
    alpha = 0.0
    for counts, summed in zip(noisy, draws, strict=True):
        total = int(summed.sum())
        if asked.uses_moments:
            values = [float(number) for number in compute_moments(counts)]
            single_reaches, joint_reaches = (
                [sums_reach(law, total, each / len(values)) * width for width in row_sensitivities(size)]
                for each in (MISS_PROBABILITY, failure)
            )
            one = asked.number_of_variance(*code_variance(values, single_reaches, size))
            _, low, high = code_variance(values, joint_reaches, size)
            alpha = max(alpha, asked.alpha_of_variance(one, low, high))
            found.append(one)
            continue
        below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        left = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(summed)])
        located = []
        for quantile in map(float, asked.quantiles):
            reaches = edge_reaches(law, left, quantile, asked.side_miss_probability)
            located.append(locate_quantile(edges, below - quantile * float(below[-1]), reaches))
            alpha = max(alpha, misfits_reach(law, max(1, total), 2 * size, quantile, failure))
        found += asked.numbers_of_quantiles(located)
    return asked.reply(found, charged=False, basis=BASIS, alpha=alpha)


class LazyHistogramFamily(_ReleaseFamily):
    """Streams of kind ``lazy_histogram``."""

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions; the noise of all cells of a stream is drawn at once."""
        return answer_by_stream(questions, self._replies)

    def _replies(self, slot: int, asked: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        table: CountedTable = asked[0].content[0]
        questions: list[CellQuestion] = [one.content[1] for one in asked]
        space = self._cells.find(slot)
        calibration = self._calibration(slot)
        named = [cell for question in questions for cell in question.cells]
        noisy = iter(
            (table.cell_counts(space.attributes, named) + self._draw_noise(slot, cell_bytes(named))).tolist()
        )
        replies: list[Reply | None] = []
        for question in questions:
            values = list(islice(noisy, len(question.cells)))
            alpha = lazy_alpha(calibration, len(values), full_weights=_has_full_weights(question))
            estimate = weighted_sum(question.steps, values)
            interval = self._interval(slot, question, estimate)
            replies.append(Reply(charged=False, estimate=estimate, basis=BASIS, alpha=alpha, interval=interval))
        return replies


class SparseProjectFamily(_ReleaseFamily):
    """Streams of kind ``sparse_project``."""

    def _reply(self, one: AdmittedQuestion) -> Reply:
        """Answer a question by inner products; the error bound follows from the noisy projection."""
        table, question = one.content
        release = self._release(one.slot, table)
        seed = matrix_seed(self._streams.incarnations[one.slot])
        products = inner_products(matrix_columns(seed, cell_bytes(question.cells), len(release)), release)
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

    def _compute_release(self, slot: int, table: CountedTable) -> IntegerArray:
        mechanism = self._context.mechanism(slot, SparseProject)
        seed = matrix_seed(self._streams.incarnations[slot])
        exact = np.zeros(mechanism.projections, dtype=np.int64)
        for columns in table.private_code_blocks(mechanism.attributes):
            exact += project(seed, np.stack(columns, axis=1), mechanism.projections)
        return exact + self._draw_noise(slot, cell_bytes(np.arange(mechanism.projections)[:, None]))


def _has_full_weights(question: CellQuestion) -> bool:
    return set(question.steps) == {WEIGHT_STEPS}
