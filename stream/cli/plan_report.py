"""What ``sotto plan`` tells of one mechanism: its calibrations, its promises, and what a wanted error needs."""

from __future__ import annotations

from collections.abc import Callable

from schemas import Calibration, LazyHistogram, RunningCountCalibration, SparsePmw, SparseProject, StreamSpec
from stream.accounting.cutoffs import ANSWERED, cutoff_field
from stream.accounting.inverse import largest_cutoff, needed_epsilon, needed_rows
from stream.accounting.planner import PlanError
from stream.accounting.plans import choose, name_of, rank
from stream.accounting.promises import promises
from stream.accounting.setting import Setting
from stream.cli.calibrations import noise_in_words
from stream.cli.output import console, show_table
from stream.figures import bound


def _lazy_alpha(spec: StreamSpec, setting: Setting) -> float:
    """What the plainest mechanism for the same questions promises."""
    sparse = spec.mechanism.model_dump(include={"attributes", "sparsity"})
    lazy = LazyHistogram(kind="lazy_histogram", **sparse)
    return choose(spec.model_copy(update={"mechanism": lazy, "calibration": "best"}), setting).alpha


def print_plainest(spec: StreamSpec, setting: Setting) -> None:
    """For sparse questions: what the plainest mechanism that answers them keeps to."""
    if isinstance(spec.mechanism, SparsePmw | SparseProject):
        console.print(
            f"a lazy_histogram of the same ε keeps such questions within ±{bound(_lazy_alpha(spec, setting), grouped=True)}"
        )


def in_rows(spec: StreamSpec, setting: Setting, alpha: float) -> float:
    """A wanted error in rows; for multiplicative weights an α below 1 is a share of the rows."""
    share = "rows" in type(spec.mechanism).model_fields and alpha < 1.0
    return alpha * setting.rows if share and setting.rows is not None else alpha


def needs_of(spec: StreamSpec, setting: Setting, alpha: float) -> dict[str, str]:
    """What the wanted error needs, one parameter at a time and the others as given."""
    known = type(spec.mechanism).model_fields
    share = "rows" in known and alpha < 1.0
    wanted = in_rows(spec, setting, alpha)
    questions: list[tuple[str, Callable[[], float]]] = [("ε ≥", lambda: needed_epsilon(spec, setting, wanted))]
    if cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None) in ANSWERED:
        questions.append(("cutoff ≤", lambda: largest_cutoff(spec, setting, wanted)))
    if share:
        questions.append(("rows ≥", lambda: needed_rows(spec, setting, alpha)))
    needs: dict[str, str] = {}
    for name, question in questions:
        try:
            needs[name] = bound(question())
        except PlanError as error:
            needs[name] = f"(none: {error})"
    return needs


def print_plan(spec: StreamSpec, listed: tuple[Calibration, ...], chosen: Calibration) -> None:
    """Every calibration, which of them is taken and why, and what it promises."""
    mechanism = spec.mechanism.kind
    once = not chosen.cutoff or isinstance(chosen, RunningCountCalibration)
    cutoff = "charged once" if once else f"cutoff {chosen.cutoff}"
    show_table(
        f"{mechanism}: ε {spec.epsilon:g}, δ {spec.delta:g}, {cutoff}, β {spec.beta:g}",
        ["", "calibration", "α", "exact α", "noise"],
        [
            [
                "→" if one == chosen else "",
                name_of(one),
                f"{bound(one.alpha, grouped=True)}{' (vacuous)' if one.vacuous else ''}",
                bound(rank(one), grouped=True),
                noise_in_words(one),
            ]
            for one in listed
        ],
    )
    if spec.calibration == "textbook":
        console.print("→ asked for")
    elif rank(chosen) == min(rank(one) for one in listed):
        console.print("→ the least exact error")
    else:
        console.print("→ the simplest within a thousandth of the least exact error")
    for promise in promises(spec, chosen):
        console.print(f"{promise}.", soft_wrap=True)
