"""Chooses the mechanism of a stream that is opened with ``auto``, and refuses useless promises.

Both depend on public facts alone. The opened stream's definition has the chosen mechanism, so
workers and replays know nothing of the choice; the receipt lists the compared mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas import Auto, Calibration, ComparedMechanism, OpeningSpec, Pmw, Source, StreamSpec, TableSource
from stream.budget.openings import facts_for_plan
from stream.formatting import format_error_bound
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.planning.promises import NOT_INFORMATIVE, describe_uninformative
from stream.privacy.planning.workload_choices import (
    StreamFigures,
    WorkloadChoice,
    compare_mechanisms,
    is_informative,
    mean_count,
)

_MOST_ATTRIBUTES: Final = 64


@dataclass(frozen=True, slots=True)
class ChosenStream:
    """A stream's specification with its mechanism.

    ``compared`` lists the compared mechanisms; it is empty if the request named one. ``mean_count`` is the
    mean count of a cell of the workload, or None if no public number of rows is known.
    """

    spec: StreamSpec
    compared: tuple[ComparedMechanism, ...] = ()
    mean_count: float | None = None

    @property
    def warning(self) -> str | None:
        """A warning if counts of the workload are expected to err by more than a third of their mean."""
        error = self.compared[0].error if self.compared else None
        if error is None or self.mean_count is None or is_informative(error, self.mean_count):
            return None
        shown = format_error_bound(error, grouped=True)
        return (
            f"{NOT_INFORMATIVE}: the expected error of a count of the workload is {shown} rows, and the mean count {self.mean_count:,.3g}; "
            "give a larger epsilon, fewer or smaller attributes, or fewer expected_queries"
        )


def choose_mechanism(
    asked: OpeningSpec, source: Source, table_rows: Callable[[], int] | None = None
) -> ChosenStream:
    """Return the stream to open; ``auto`` is replaced by the best mechanism for its workload.

    Raises:
        RefusedError: the source is not a table, a field does not fit it, or no mechanism applies.
        PlanError: no set of the workload can be counted.
    """
    auto = asked.mechanism
    if not isinstance(auto, Auto):
        return ChosenStream(_with_mechanism(asked, auto))
    if not isinstance(source, TableSource):
        raise RefusedError(
            f"mechanism.kind: auto chooses a mechanism for a table, and the source is of kind '{source.kind}'; name a mechanism"
        )
    if asked.calibration != "best":
        raise RefusedError("calibration: auto always takes the best; leave it out, or name a mechanism")
    names = tuple(source.attributes) if auto.attributes is None else auto.attributes
    if not 0 < len(names) <= _MOST_ATTRIBUTES:
        raise RefusedError(
            f"mechanism.attributes: the table has {len(names)}; name from 1 to {_MOST_ATTRIBUTES} of them"
        )
    over = _with_mechanism(asked, Pmw(kind="pmw", attributes=names, rows=auto.rows))
    facts = facts_for_plan(over, source, table_rows)
    figures = StreamFigures(asked.epsilon, asked.delta, asked.beta, asked.expected_queries, asked.expected_queries)
    found = compare_mechanisms(facts, names, figures, auto.workload)
    best = found[0]
    if best.error is None:
        reasons = "; ".join(f"{one.kind}: {one.why}" for one in found)
        raise RefusedError(
            f"mechanism.kind: no mechanism fits the workload; name one, or fewer attributes ({reasons})"[:1024]
        )
    return ChosenStream(
        spec=_with_mechanism(asked, best.mechanism),
        compared=tuple(map(_compared, found)),
        mean_count=mean_count(facts, names, auto.workload),
    )


def describe_opening(
    chosen: ChosenStream,
    calibration: Calibration,
    source: Source,
    table_rows: Callable[[], int] | None = None,
    *,
    about_rows: int | None = None,
    expected: float | None = None,
) -> str | None:
    """Return a warning with its remedy if the promise of an opening is not informative, else None.

    ``about_rows`` and ``expected`` are public guesses: of the number of rows, and of an answer.
    """
    if chosen.warning is not None:
        return chosen.warning
    facts = facts_for_plan(chosen.spec, source, table_rows)
    if facts.rows is None:
        facts = replace(facts, rows=about_rows)
    return describe_uninformative(chosen.spec, calibration, facts, source, expected)


def require_informative(
    chosen: ChosenStream, calibration: Calibration, source: Source, table_rows: Callable[[], int]
) -> None:
    """Raise RefusedError if the promise of an opening is not informative."""
    warning = describe_opening(chosen, calibration, source, table_rows)
    if warning is not None:
        raise RefusedError(f"promise: {warning}; to open the stream anyway, acknowledge it (--force)")


def _with_mechanism(asked: OpeningSpec, mechanism: Any) -> StreamSpec:
    return StreamSpec.model_validate({**dict(asked), "mechanism": mechanism})


def _compared(choice: WorkloadChoice) -> ComparedMechanism:
    return ComparedMechanism(kind=choice.kind, error=choice.error, why=choice.why[:256])
