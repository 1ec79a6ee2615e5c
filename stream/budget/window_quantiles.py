"""Checks the quantiles of a standing stream, and collects the public facts that plan them."""

from __future__ import annotations

from schemas import MAX_GROUPS, EventsSource, Histogram, Laplace, Mechanism, StandingQuery
from schemas.queries import MAX_VALUES
from stream.privacy.accuracy.source_facts import QuantileFacts
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.planning.quantile_plans import parse_quantiles
from stream.tables.expressions import TRUE
from stream.tables.ordered_values import ordered_values
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import codes_within


def quantile_facts(
    mechanism: Mechanism, source: EventsSource, standing: StandingQuery, group_count: int
) -> QuantileFacts:
    """Return the public facts by which a standing stream's quantiles are planned.

    Each question carries one count per value of the attribute. ``group_count`` is the number of groups
    in a window. RefusedError if mechanism, attribute and limits do not fit.
    """
    quantile = standing.quantile or ""
    together = isinstance(mechanism, Histogram)
    if not isinstance(mechanism, Laplace | Histogram):
        raise RefusedError(
            f"mechanism.kind: {mechanism.kind} answers no quantiles; use laplace, or histogram for all groups of a window at once"
        )
    ordered = {name: one.size for name, one in source.attributes.items() if ordered_values(one) is not None}
    if quantile not in ordered:
        declared = f"the source declares {', '.join(sorted(ordered))}" if ordered else "the source declares none"
        raise RefusedError(
            f"standing.quantile: must name an ordered attribute (numbers, bins, dates or ordered categories); {declared}"
        )
    if quantile in standing.by:
        raise RefusedError(
            "standing.by: must not name the attribute of the quantile, which would be the same in all events of a group; remove it"
        )
    try:
        quantiles = parse_quantiles(0.5 if standing.q is None else standing.q)
    except ValueError as error:
        raise RefusedError(f"standing.q: {error}") from None
    if together and isinstance(standing.q, tuple):
        raise RefusedError(
            "standing.q: must be one number, because an answer of a histogram has one number per group; give one, or use laplace"
        )
    predicate = TRUE if standing.where is None else PredicateParser(source.attributes).parse(standing.where)
    first, end = codes_within(ordered[quantile], quantile, predicate)
    if (counts_per_window := ordered[quantile] * group_count) > MAX_GROUPS:
        raise RefusedError(
            f"standing.quantile: '{quantile}' has {ordered[quantile]:,} values in {group_count:,} groups, so a window would have "
            f"{counts_per_window:,} counts, and at most {MAX_GROUPS:,} are allowed; declare it with bins, a larger step or a smaller "
            "range, or group by fewer or smaller attributes"
        )
    counts = (end - first) * (group_count if together else 1)
    if counts > MAX_VALUES:
        raise RefusedError(
            f"standing.quantile: a question would carry {counts:,} counts (one per value of '{quantile}' allowed by where"
            f"{', in each group' if together else ''}), and at most {MAX_VALUES:,} are allowed; declare it with bins or a larger step, "
            f"allow fewer values in where{', or use laplace, which asks a question per group' if together else ''}"
        )
    return QuantileFacts(
        quantiles,
        end - first,
        group_count if together else 1,
        source.contribution,
        source.neighbors == "replace",
        grouped=together,
    )
