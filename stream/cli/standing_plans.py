"""``sotto plan --standing``: computes a standing stream's error bounds and cost before it is opened."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from schemas import (
    Amount,
    Calibration,
    EstimateCalibration,
    EventsSource,
    Histogram,
    Laplace,
    RunningCount,
    RunningCountCalibration,
    StreamSpec,
    UnknownGroups,
    span_ms,
)
from stream.budget.openings import facts_for_plan
from stream.budget.standing_streams import complete_spec, groups_per_window, promised_windows
from stream.cli.output import CommandError, format_amount, parse_document, say, show_json, show_table
from stream.cli.plan_output import describe_noise
from stream.cli.simulate_command import read_source
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts, groups_by_text
from stream.privacy.composition.costs import PARTS_PER_CHARGE, RefusedError, stream_cost, to_amount
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, count_price, epsilon_of, name_of, plan_calibrations
from stream.privacy.planning.promises import promises
from stream.questions.first_windows import warn_about_past_windows
from stream.questions.stream_watch import describe_live_topic, describe_standing_query, describe_window_count

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class StandingPlan:
    """The plan of a standing stream. Its α holds for ``windows`` windows, which take ``days``.

    ``begins`` is the given start of the first window; if it is None, the opening sets it. If the source has a
    ``period``, all figures are for one period.
    """

    spec: StreamSpec
    begins: str | None
    calibrations: tuple[Calibration, ...]
    chosen: Calibration
    cost: Amount
    groups: int
    windows: int
    days: float
    period: str | None

    @property
    def given_spec(self) -> StreamSpec:
        """The stream with the groups of its standing query, and the first window's start as given."""
        standing = self.spec.standing and self.spec.standing.model_copy(update={"begins": self.begins})
        return self.spec.model_copy(update={"standing": standing})

    @property
    def cost_per_day(self) -> float:
        """Return the stream's ε per day."""
        return self.cost.epsilon / (self.days if self.period is None else span_ms(self.period) / _DAY_MS)


def show_standing(stream: str, source: str | None, *, as_json: bool) -> None:
    """Plan a stream on a source, both given as JSON documents, and print the plan."""
    if source is None:
        raise CommandError("--standing: needs a live topic; give it with --source")
    declared = read_source(source)
    spec = parse_document(TypeAdapter(StreamSpec), stream)
    if not isinstance(declared, EventsSource):
        raise CommandError(
            f"--source: is of kind '{declared.kind}'; standing streams need a live topic, of kind 'events'"
        )
    if spec.source != declared.source:
        raise CommandError(
            f"--standing: its source is '{spec.source}', but --source defines '{declared.source}'; use one name"
        )
    try:
        plan = plan_standing(spec, declared)
    except (RefusedError, PlanError) as error:
        raise CommandError(str(error)) from None
    alternative = _plan_alternative(plan, declared)
    if as_json:
        show_json(_plan_json(plan, alternative))
    else:
        _print_plan(plan, alternative, declared)


def plan_standing(spec: StreamSpec, source: EventsSource) -> StandingPlan:
    """Plan a stream.

    Raises:
        RefusedError: the stream's fields contradict each other or the source.
        PlanError: no calibration fits.
    """
    begins = None if spec.standing is None else spec.standing.begins
    spec = complete_spec(spec, source, clock=0)
    facts: SourceFacts = facts_for_plan(spec, source)
    chosen = choose_calibration(spec, facts)
    groups, windows = groups_per_window(spec, source), promised_windows(spec, source)
    if spec.standing is None or groups is None or windows is None:
        raise TypeError("a completed stream of a live topic is standing")
    cost = to_amount(stream_cost(chosen, source.accountant), source)
    days = windows * spec.standing.window.every_ms / _DAY_MS
    return StandingPlan(
        spec, begins, plan_calibrations(spec, facts), chosen, cost, groups, windows, days, source.period
    )


def _plan_alternative(plan: StandingPlan, source: EventsSource) -> StandingPlan | str:
    """Plan a running count in place of independent noise for each window, or the reverse; or say why it fails."""
    spec, standing = plan.given_spec, plan.spec.standing
    if standing is None:
        raise TypeError("a planned stream is standing")
    alternative: RunningCount | Histogram | Laplace | UnknownGroups
    if not isinstance(spec.mechanism, RunningCount):
        alternative = RunningCount(kind="running_count", steps=max(2, plan.windows))
    elif groups_by_text(source, standing):
        alternative = UnknownGroups(kind="unknown_groups", answers=plan.windows)
    elif standing.by:
        alternative = Histogram(kind="histogram", attributes=standing.by, answers=plan.windows)
    else:
        alternative = Laplace(kind="laplace", answers=plan.windows)
    questions = max(spec.expected_queries, plan.windows * plan.groups)
    try:
        return plan_standing(
            spec.model_copy(update={"mechanism": alternative, "expected_queries": questions}), source
        )
    except (RefusedError, PlanError, ValueError) as error:
        return str(error)


def _plan_json(plan: StandingPlan, alternative: StandingPlan | str) -> dict[str, Any]:
    return {
        **_plan_figures(plan),
        "promises": [asdict(one) for one in promises(plan.spec, plan.chosen)],
        "calibrations": list(plan.calibrations),
        "instead": {"refused": alternative} if isinstance(alternative, str) else _plan_figures(alternative),
    }


def _plan_figures(plan: StandingPlan) -> dict[str, Any]:
    return {
        "spec": plan.given_spec,
        "choice": plan.chosen.method,
        "alpha": plan.chosen.alpha,
        **{name: getattr(plan, name) for name in ("groups", "windows", "days", "period", "cost", "cost_per_day")},
    }


def _print_plan(plan: StandingPlan, alternative: StandingPlan | str, source: EventsSource) -> None:
    spec, chosen = plan.spec, plan.chosen
    by_text = spec.standing is not None and groups_by_text(source, spec.standing)
    groups = "unknown" if by_text else f"{plan.groups:,}"
    show_table(
        f"{spec.stream}: {spec.mechanism.kind}, ε {spec.epsilon:g}, δ {spec.delta:g}, β {spec.beta:g}, {groups} groups a window",
        ["", "calibration", "α", "noise"],
        [
            [
                "→" if one == chosen else "",
                name_of(one),
                format_error_bound(one.alpha, grouped=True),
                describe_noise(one),
            ]
            for one in plan.calibrations
        ],
    )
    say(describe_standing_query(plan.given_spec, source), soft_wrap=True)
    if (missed := warn_about_past_windows(plan.given_spec, source, time.time())) is not None:
        say(missed, soft_wrap=True)
    say(describe_live_topic(source), soft_wrap=True)
    for promise in promises(spec, chosen):
        say(f"{promise}", soft_wrap=True)
    say(describe_window_count(plan.windows, plan.period, plan.chosen, format_days(plan.days)), soft_wrap=True)
    when = f"in each period of {plan.period}, "
    if plan.period is None:
        when = "in all; if another stream follows whenever the promise ends, "
    say(f"cost {format_amount(plan.cost)} {when}ε {plan.cost_per_day:.4g} a day", soft_wrap=True)
    say(_describe_alternative(plan, alternative), soft_wrap=True)


def format_days(days: float) -> str:
    """Format a number of days in the largest unit of which it has one or more."""
    units = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))
    unit, size = next((one for one in units if round(days * one[1], 9) >= 1.0), units[-1])
    number = days * size
    shown = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}"


def _describe_alternative(plan: StandingPlan, alternative: StandingPlan | str) -> str:
    running = isinstance(plan.chosen, RunningCountCalibration)
    name = "independent noise for each window" if running else "a running count"
    if isinstance(alternative, str):
        return f"{name} for the same ε: none ({alternative})"
    what = "each window's numbers" if running else "the numbers so far"
    kind = "" if alternative.spec.mechanism.kind == "running_count" else f" ({alternative.spec.mechanism.kind})"
    return f"{name} for the same ε{kind}: {what} within ±{format_error_bound(alternative.chosen.alpha, grouped=True)} over {alternative.windows:,} windows"


@dataclass(frozen=True, slots=True)
class QuestionCharge:
    """The charge of one count with a requested ``alpha``: ``charges`` times an ordinary charge.

    If ``tested``, the estimate may already be within ``alpha``, and only a measurement costs ``epsilon``.
    If ``affordable``, an unspent grant can pay for the count.
    """

    alpha: float
    epsilon: float
    charges: float
    tested: bool
    affordable: bool

    def __str__(self) -> str:
        asked = f"in this stream a count of a table's rows with an alpha of {self.alpha:g}"
        if self.tested:
            return f"{asked} is charged nothing, or ε {self.epsilon:.4g} with a measurement"
        if not self.affordable:
            return f"{asked} is refused: its price is ε {self.epsilon:.4g}"
        return f"{asked} is charged ε {self.epsilon:.4g}, as much as {self.charges:.3g} ordinary charges"


def question_charge(spec: StreamSpec, calibration: Calibration, alpha: float) -> QuestionCharge | None:
    """Return the charge of a count with a requested error; None if the stream accepts no requested error."""
    price = count_price(spec.mechanism, calibration, alpha) if 0.0 < alpha < math.inf else None
    if price is None:
        return None
    tested = isinstance(calibration, EstimateCalibration) and alpha >= calibration.alpha
    parts = PARTS_PER_CHARGE if tested else price.parts
    return QuestionCharge(
        alpha=alpha,
        epsilon=epsilon_of(calibration, parts),
        charges=parts / PARTS_PER_CHARGE,
        tested=tested,
        affordable=parts <= calibration.cutoff * PARTS_PER_CHARGE,
    )
