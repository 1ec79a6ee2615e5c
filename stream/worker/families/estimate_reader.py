"""Resolves questions to streams with an estimate, to sums over cells of the named attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import chain
from typing import Any, Final

import numpy as np

from schemas import MAX_CATEGORIES, MAX_UNIVERSE, Numeric, TableSource, Term
from schemas import Integers as IntegerDomain
from stream.caches import RecentCache
from stream.privacy.accuracy.rate_intervals import NUMBERS_PER_VARIANCE, person_sensitivities
from stream.privacy.mechanisms.estimate_questions import (
    Box,
    CellGroups,
    LinearQuestion,
    MeanQuestion,
    Ranks,
    Rates,
    ResolvedQuestion,
    ShareQuestion,
    SingleNumber,
    Spreads,
)
from stream.privacy.mechanisms.releases import is_cheap_to_cumulate
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.processing.dead_letters import malformed_rejection
from stream.tables.counted_table import cell_mask
from stream.tables.expressions import attributes_of
from stream.tables.sensitivity import restrict_domain, sum_sensitivity
from stream.tables.store import TableStore
from stream.tables.table_errors import quote_name, quote_names
from stream.worker.families.context import describe_attribute, list_declared
from stream.worker.families.statistics import Statistic, TopGroups, parse_top
from stream.worker.families.tensors import (
    canonical_text,
    corners_of_predicate,
    corners_of_values,
    corners_of_weights,
    extent_of_predicate,
    extent_of_weights,
    parse_predicate_on,
    parse_terms,
    require_unit_weights,
    values_of_cells,
)


@dataclass(frozen=True, slots=True)
class _BoxTemplate:
    """Values that are the same for all boxes on the same attributes.

    ``order`` has, for each axis, the index of its name in the predicate. ``key`` is the canonical text of the
    predicate with ``%d`` in place of the ends of ranges.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    key: str


_KEPT_TEMPLATES: Final = 256


@dataclass(eq=False)
class BoxReader:
    """Reads predicates that are boxes: one range per attribute.

    ``sizes`` has the sizes of the stream's attributes, in their order.
    """

    source: TableSource
    tables: TableStore
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        self._templates: RecentCache[tuple[str, ...], _BoxTemplate] = RecentCache(_KEPT_TEMPLATES)

    def parse_box(self, where: str) -> Box | None:
        """Return the question for the count of a box; None if the predicate is not recognized as a box."""
        ranges = self.tables.ranges(self.source, where)
        if not ranges:
            return None
        names, _, lows, highs = zip(*ranges, strict=True)
        if (template := self._templates.get(names)) is None:
            if (template := self._build_template(names)) is None:
                return None
            self._templates.put(names, template)
        key = template.key % tuple(chain.from_iterable(zip(lows, highs, strict=True)))
        low, high = [lows[place] for place in template.order], [highs[place] for place in template.order]
        return Box(template.axes, key.encode(), low, high, template.shape)

    def _build_template(self, names: tuple[str, ...]) -> _BoxTemplate | None:
        """Build a template; None if an attribute is not the stream's, or if there are too many cells."""
        sizes = {name: (axis, size) for axis, (name, size) in enumerate(self.sizes.items()) if name in names}
        shape = tuple(size for _, size in sizes.values())
        if len(sizes) < len(names) or math.prod(shape) > MAX_UNIVERSE or not is_cheap_to_cumulate(shape):
            return None
        leaves = [f"[{json.dumps(name)}, ".replace("%", "%%") + "%d, %d]" for name in names]
        return _BoxTemplate(
            axes=tuple(axis for axis, _ in sizes.values()),
            shape=shape,
            order=tuple(names.index(name) for name in sizes),
            key=json.dumps([[reduce(lambda left, right: f"({left}&{right})", leaves), WEIGHT_STEPS]]),
        )


@dataclass(slots=True, eq=False)
class ReadQuestion:
    """A resolved question, with the fields that the changelog records if its numbers are published.

    Numbers and errors are multiplied by ``unit``, the step of a summed attribute. ``last_answer`` caches the
    estimator's last answer with its reply. ``number_fits`` is False if a ⊤ would publish a number whose
    noise is too wide.
    """

    question: ResolvedQuestion
    form: str
    predicates: tuple[tuple[str, float], ...] = ()
    sum: str | None = None
    group_by: tuple[str, ...] = ()
    unit: Fraction = Fraction(1)
    last_answer: tuple[Any, Any] | None = None
    number_fits: bool = True
    grouped: bool = False
    top: TopGroups | None = None
    statistic: Statistic | None = None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The weighted predicates."""
        return tuple(Term(where=where, weight=weight) for where, weight in self.predicates)


class QuestionReader:
    """Reads the questions to one stream, and checks the weights that they give to cells."""

    def __init__(
        self, source: TableSource, tables: TableStore, attributes: Sequence[str], *, rows_are_public: bool = True
    ) -> None:
        self._rows_are_public = rows_are_public
        self._source = source
        self._tables = tables
        self.attributes = tuple(attributes)
        self.sizes = {name: source.attributes[name].size for name in attributes}
        self._axis = {name: axis for axis, name in enumerate(attributes)}
        self._boxes = BoxReader(source, tables, self.sizes)
        self._predicate = partial(parse_predicate_on, self.sizes, tables, source)
        self._smallest = min(self.sizes, key=lambda name: (self.sizes[name], self._axis[name]))

    def parse_question(self, form: str, query: Any) -> ReadQuestion:
        """Resolve a question, or raise Rejection."""
        match form:
            case "count" | "fraction":
                counted = self._boxes.parse_box(query.where) or self.resolve_linear((Term(where=query.where),))
                share = form == "fraction" and not self._rows_are_public
                question = self._resolve_share(counted, query.where) if share else counted
                return ReadQuestion(question, form, ((query.where, 1.0),))
            case "terms":
                texts = tuple((term.where, term.weight) for term in query.terms)
                return ReadQuestion(self.resolve_linear(query.terms), form, texts)
            case "mean":
                return ReadQuestion(
                    self._resolve_mean(query.mean, query.where), form, unit=self._value_step(query.mean)
                )
            case "rate":
                return ReadQuestion(self._resolve_rates(query), form, grouped=query.group_by is not None)
            case _:
                texts = ((query.where, 1.0),) if query.where is not None else ()
                where = [Term(where=text) for text, _ in texts]
                if form == "sum":
                    total = self.resolve_total(query.sum, where)
                    return ReadQuestion(total, form, texts, query.sum, unit=self._value_step(query.sum))
                group_by = tuple(query.group_by)
                top = parse_top(self._source, query)
                return ReadQuestion(self.resolve_groups(group_by, where), form, texts, group_by=group_by, top=top)

    def resolve_linear(self, terms: Sequence[Any]) -> LinearQuestion:
        """Resolve a count or a weighted sum of predicates."""
        weights = parse_terms(terms, self._predicate)
        sizes = self._sizes_of_named(weights.attributes, "where" if len(terms) == 1 else "terms")
        require_unit_weights(weights, sizes)
        return LinearQuestion(
            axes=self._axes(sizes),
            key=weights.key,
            parts=((1, corners_of_weights(weights, sizes)),) if weights.parts else (),
            weights=lambda: weights.cell_weights(sizes).astype(np.int64).reshape(tuple(sizes.values())),
            extent=lambda: extent_of_weights(weights, sizes),
            unit=WEIGHT_STEPS,
            width=WEIGHT_STEPS,
            full_weights=[weight for _, weight in weights.parts] == [WEIGHT_STEPS],
        )

    def resolve_total(self, attribute: str, terms: Sequence[Term], *, narrow: bool = True) -> LinearQuestion:
        """Resolve the sum of an attribute over the rows of a term, or over all rows.

        If ``narrow`` is True, the noise is scaled to the values that the predicate admits. Otherwise it is
        scaled to all values of the attribute, as in changelogs of earlier versions of Sotto.
        """
        domain = self._summable_domain(attribute, "sum")
        predicate = self._predicate(terms[0].where if terms else "TRUE", "where")
        sizes = self._sizes_of_named(attributes_of(predicate) | {attribute}, "sum")
        above, counted = corners_of_values(predicate, sizes, attribute), corners_of_predicate(predicate, sizes)
        minimum = domain.minimum
        left = restrict_domain(domain, attribute, predicate) if narrow else domain
        # A sum with another noise scale needs another key, because equal keys draw equal random words.
        name = "sum" if left == domain else "sum within"
        return LinearQuestion(
            axes=self._axes(sizes),
            key=json.dumps([name, attribute, canonical_text(predicate)]).encode(),
            parts=((1, above), (minimum, counted)),
            weights=lambda: values_of_cells(predicate, sizes, attribute, minimum),
            extent=lambda: extent_of_predicate(predicate, sizes),
            unit=1,
            width=max(1, sum_sensitivity(left, self._source.neighbors)),
            full_weights=False,
        )

    def _resolve_mean(self, attribute: str, where: str | None) -> MeanQuestion:
        declared_range = self._summable_domain(attribute, "mean")
        predicate = self._predicate("TRUE" if where is None else where, "where")
        domain = restrict_domain(declared_range, attribute, predicate)
        first = domain.minimum - declared_range.minimum
        sizes = self._sizes_of_named(attributes_of(predicate) | {attribute}, "mean")
        key = json.dumps(["mean", attribute, canonical_text(predicate)]).encode()
        axes, counted = self._axes(sizes), corners_of_predicate(predicate, sizes)
        count = LinearQuestion(
            axes,
            key,
            ((WEIGHT_STEPS, counted),),
            lambda: cell_mask(predicate, sizes).astype(np.int64) * WEIGHT_STEPS,
            lambda: extent_of_predicate(predicate, sizes),
            WEIGHT_STEPS,
            WEIGHT_STEPS,
            full_weights=True,
        )
        above = LinearQuestion(
            axes,
            key,
            ((1, corners_of_values(predicate, sizes, attribute)), *(((-first, counted),) if first else ())),
            lambda: values_of_cells(predicate, sizes, attribute, -first),
            lambda: extent_of_predicate(predicate, sizes),
            1,
            max(1, domain.size - 1),
            full_weights=False,
        )
        return MeanQuestion(count, above, key, domain.minimum, domain.size - 1)

    def resolve_groups(self, group_by: Sequence[str], terms: Sequence[Term]) -> CellGroups:
        """Resolve the counts of groups over the rows of a term, or over all rows."""
        predicate = self._predicate(terms[0].where if terms else "TRUE", "where")
        sizes = self._sizes_of_groups(group_by, attributes_of(predicate), "group_by")
        names = list(sizes)
        return CellGroups(
            axes=self._axes(sizes),
            key=json.dumps(["groups", list(group_by), canonical_text(predicate)]).encode(),
            mask=cell_mask(predicate, sizes),
            grouped=tuple(names.index(name) for name in group_by),
        )

    def _resolve_share(self, counted: SingleNumber, where: str) -> ShareQuestion:
        """Resolve the share of the rows that a predicate selects, if the number of rows is private."""
        predicate = self._predicate(where, "where")
        sizes = self._sizes_of_groups((), attributes_of(predicate), "where")
        everyone = np.ones(tuple(sizes.values()), dtype=np.bool_)
        return ShareQuestion(
            axes=self._axes(sizes),
            key=json.dumps(["share", canonical_text(predicate)]).encode(),
            mask=everyone,
            grouped=(),
            hits=cell_mask(predicate, sizes),
            counted=counted,
        )

    def _resolve_rates(self, query: Any) -> Rates:
        where = self._predicate("TRUE" if query.where is None else query.where, "where")
        hit = self._predicate(query.rate, "rate")
        group_by = tuple(query.group_by or ())
        sizes = self._sizes_of_groups(group_by, attributes_of(where) | attributes_of(hit), "rate")
        names = list(sizes)
        return Rates(
            axes=self._axes(sizes),
            key=json.dumps(["rate", list(group_by), canonical_text(where), canonical_text(hit)]).encode(),
            mask=cell_mask(where, sizes),
            grouped=tuple(names.index(name) for name in group_by),
            hits=cell_mask(hit, sizes),
        )

    def _sizes_of_groups(self, group_by: Sequence[str], others: frozenset[str], field: str) -> dict[str, int]:
        """Return the sizes of the grouped attributes and of ``others``, or raise Rejection."""
        if len(set(group_by)) != len(group_by):
            raise malformed_rejection("group_by: an attribute is named twice; name it once")
        for name in group_by:
            self._require_attribute(name, "group_by")
        if math.prod(self.sizes[name] for name in group_by) > MAX_CATEGORIES:
            raise malformed_rejection(
                f"group_by: more than {MAX_CATEGORIES} cells; group by fewer or smaller attributes"
            )
        return self._sizes_of_named(others | set(group_by), field)

    def resolve_statistic(self, statistic: Statistic) -> ReadQuestion:
        """Resolve a quantile to cumulative counts, or a variance to sums, in each group."""
        numbers = statistic.groups * (NUMBERS_PER_VARIANCE if statistic.uses_moments else statistic.values.size)
        if numbers > MAX_CATEGORIES:
            raise malformed_rejection(
                f"{statistic.form}: {numbers:,} numbers would be compared with the table, and {MAX_CATEGORIES:,} is the most; declare the "
                "attribute in coarser bins, group by fewer attributes, or ask a stream of laplace"
            )
        sizes = self._sizes_of_named(
            attributes_of(statistic.predicate) | {*statistic.group_by, statistic.attribute}, statistic.form
        )
        names = list(sizes)
        axes, mask = self._axes(sizes), cell_mask(statistic.predicate, sizes)
        grouped = tuple(names.index(name) for name in statistic.group_by)
        ordered = names.index(statistic.attribute)
        named = [statistic.attribute, list(statistic.group_by), canonical_text(statistic.predicate)]
        question: Ranks | Spreads
        if statistic.uses_moments:
            key = json.dumps(["spreads", *named]).encode()
            moves = person_sensitivities(statistic.size, replaced=self._source.neighbors == "replace")
            question = Spreads(axes, key, mask, grouped, ordered, statistic.first, statistic.end, moves)
        else:
            question = Ranks(axes, json.dumps(["ranks", *named]).encode(), mask, grouped, ordered=ordered)
        return ReadQuestion(question, statistic.form, statistic=statistic)

    def _axes(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(self._axis[name] for name in sizes)

    def _sizes_of_named(self, named: frozenset[str] | set[str], field: str) -> dict[str, int]:
        """Return the sizes of the named attributes; if none is named, the size of the smallest attribute."""
        sizes = {name: size for name, size in self.sizes.items() if name in named}
        if math.prod(sizes.values()) > MAX_UNIVERSE:
            raise malformed_rejection(
                f"{field}: the attributes named have more than {MAX_UNIVERSE} cells together; ask about fewer of them, or "
                "smaller ones"
            )
        return sizes or {self._smallest: self.sizes[self._smallest]}

    def _require_attribute(self, name: str, field: str) -> None:
        if name not in self.sizes:
            raise malformed_rejection(
                f"{field}: {describe_attribute(name, self._source.attributes)} is not in the stream's mechanism.attributes, which are {quote_names(self.sizes)}"
            )

    def _summable_domain(self, name: str, field: str) -> IntegerDomain:
        self._require_attribute(name, field)
        domain = self._source.attributes[name]
        if not isinstance(domain, Numeric):
            numeric = [one for one in self.sizes if isinstance(self._source.attributes[one], Numeric)]
            raise malformed_rejection(
                f"{field}: attribute {quote_name(name)} has neither integers nor decimals; {list_declared(numeric)}"
            )
        return domain.in_steps

    def _value_step(self, name: str) -> Fraction:
        domain = self._source.attributes[name]
        return domain.unit if isinstance(domain, Numeric) else Fraction(1)
