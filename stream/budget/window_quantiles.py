"""Checks the quantiles that a standing stream asks for, and collects their facts for its plan."""

from __future__ import annotations

from schemas import MAX_GROUPS, EventsSource, Histogram, Laplace, Mechanism, StandingQuery
from schemas.queries import MAX_VALUES
from stream.privacy.accuracy.source_facts import QuantileFacts
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.planning.quantile_plans import quantile_parts
from stream.tables import PredicateParser
from stream.tables.expressions import TRUE
from stream.tables.ordered_values import ordered_values
from stream.tables.sensitivity import codes_within


def quantile_facts(
    mechanism: Mechanism, source: EventsSource, standing: StandingQuery, groups: int
) -> QuantileFacts:
    """Return the facts of a stream's quantiles, whose questions carry a count for each value.

    RefusedError if mechanism, attribute and limits do not fit. ``groups`` are those of a window.
    """
    quantile = standing.quantile or ""
    together = isinstance(mechanism, Histogram)
    if not isinstance(mechanism, Laplace | Histogram):
        raise RefusedError(
            f"mechanism.kind: {mechanism.kind} answers no quantiles; use laplace, or histogram for all groups of a window at once"
        )
    ordered = {name: one.size for name, one in source.attributes.items() if ordered_values(one) is not None}
    if quantile not in ordered:
        declared = f"declared are {', '.join(sorted(ordered))}" if ordered else "the source declares none"
        raise RefusedError(
            f"standing.quantile: names no attribute with an order, which numbers, bins, dates and ordered categories have; {declared}"
        )
    if quantile in standing.by:
        raise RefusedError(
            "standing.by: names the attribute of the quantile, which is the same in all events of a group; remove it"
        )
    try:
        parts = quantile_parts(0.5 if standing.q is None else standing.q)
    except ValueError as error:
        raise RefusedError(f"standing.q: {error}") from None
    if together and isinstance(standing.q, tuple):
        raise RefusedError(
            "standing.q: is a list, and an answer of a histogram has one number for each group; give one number, or use laplace"
        )
    predicate = TRUE if standing.where is None else PredicateParser(source.attributes).parse(standing.where)
    first, end = codes_within(ordered[quantile], quantile, predicate)
    if (cells := ordered[quantile] * groups) > MAX_GROUPS:
        raise RefusedError(
            f"standing.quantile: '{quantile}' has {ordered[quantile]:,} values, which are counted in each of {groups:,} groups, and a "
            f"window has at most {MAX_GROUPS:,} counts, not {cells:,}; declare it with bins, a larger step or a smaller range, or group "
            "by fewer or smaller attributes"
        )
    counts = (end - first) * (groups if together else 1)
    if counts > MAX_VALUES:
        raise RefusedError(
            f"standing.quantile: a question would carry {counts:,} counts, one for each value of '{quantile}' that where allows"
            f"{' in each group' if together else ''}, and the limit is {MAX_VALUES:,}; declare it with bins or a larger step, allow fewer "
            f"values in where{', or use laplace, which asks each group by itself' if together else ''}"
        )
    return QuantileFacts(
        parts,
        end - first,
        groups if together else 1,
        source.contribution,
        source.neighbors == "replace",
        grouped=together,
    )
