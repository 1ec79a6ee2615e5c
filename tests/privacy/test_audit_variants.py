"""The audit flags every broken variant of the sparse vector technique, run by the real processors, and nothing shipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from stream.audit import AuditError, Case, Finding, Side, audit_all, cases_of
from stream.audit.auditor import FALSE_ALARM
from stream.audit.bounds import epsilon_at_least
from stream.audit.runs import sample
from tests.privacy import audit_variants as variants
from tests.privacy import period_variants, standing_variants
from tests.privacy.audit_variants import Variant, broken

SEED = 20
CASES = {f"{case.pair}, {case.stream.get('calibration', 'best')}": case for case in cases_of(["above_threshold"])}

BROKEN: list[tuple[Variant, str, int, float, float]] = [
    (variants.lsl_3, "4 up, 2 down, best", 4800, 0.1852, 0.0),
    (variants.query_noise_released, "up, down above the shift, best", 1200, 0.3653, 0.0),
    (variants.lsl_4, "4 up, 4 down; cutoff 4, best", 3000, 0.188, 0.0007),
    (variants.lsl_5, "up, down, best", 900, 0.464, 0.0),
    (variants.lsl_6, "4 up, 4 down; cutoff 8, best", 3800, 0.2811, 0.0063),
    (variants.new_threshold_for_each_query, "6 up, best", 4300, 0.0795, 0.0005),
    (variants.noise_redrawn_at_restart, "up, down; redelivered, best", 2800, 0.492, 0.016),
    (variants.cutoff_forgotten_at_restart, "up, 5 down; cutoff 2, crashes, best", 3000, 0.1568, 0.0024),
    (variants.same_noise_for_other_data, "two streams, one up, best", 2300, 0.094, 0.0),
]
"""Each variant, a shipped case that shows what is wrong with it, and how many runs flag it in 999 of 1000 keys by an event that is as
likely on the two data sets, measured over some thousand runs on either. The search may settle on a lesser one: what it finds with
``SEED`` is tried."""

NAMES = [variant.__name__ for variant, *_ in BROKEN]
POWER = 0.999


def audited(case: Case, runs: int) -> Finding:
    return next(audit_all([case], runs=runs, seed=SEED))


def power(case: Case, runs: int, likely: float, unlikely: float) -> float:
    """How probably so many runs flag a case whose event has these probabilities on the two data sets."""
    tested, alpha = (runs // 2, FALSE_ALARM) if case.event is None else (runs, FALSE_ALARM / 2)
    seen = np.arange(tested + 1)
    bounds = epsilon_at_least(seen[:, None], seen[None, :], tested, delta=case.delta, alpha=alpha)
    chances = binom.pmf(seen, tested, likely)[:, None] * binom.pmf(seen, tested, unlikely)[None, :]
    return float(chances[bounds > case.epsilon].sum())


@pytest.mark.parametrize(("variant", "case", "runs", "likely", "unlikely"), BROKEN, ids=NAMES)
def test_the_runs_are_enough_to_flag_a_variant_with_nearly_any_key(
    variant: Variant, case: str, runs: int, likely: float, unlikely: float
) -> None:
    del variant
    assert power(CASES[case], runs, likely, unlikely) >= POWER
    assert power(CASES[case], runs // 2, likely, unlikely) < POWER


@pytest.mark.parametrize(("variant", "case", "runs"), [one[:3] for one in BROKEN], ids=NAMES)
def test_every_broken_variant_is_flagged(variant: Variant, case: str, runs: int) -> None:
    with broken(variant):
        found = audited(CASES[case], runs)
    assert found.flagged, found


@pytest.mark.parametrize("kind", ["pmw", "sparse_pmw"])
def test_a_hypothesis_that_is_broken_is_flagged(kind: str) -> None:
    case = cases_of([kind])[0]
    with broken(variants.questions_of_a_hypothesis_without_noise):
        found = audited(case, 1300)
    assert found.flagged, found


@pytest.mark.parametrize(
    ("variant", "pair"),
    [
        (variants.noise_of_a_node_for_each_answer, "one event more"),
        (variants.level_not_paid_for, "one event more; two levels"),
    ],
)
def test_a_running_count_that_is_broken_is_flagged(variant: Variant, pair: str) -> None:
    [case] = [case for case in cases_of(["running_count"]) if case.pair == pair]
    with broken(variant):
        found = audited(case, 800)
    assert found.flagged, found
    assert not audited(case, 200).flagged


@pytest.mark.parametrize(
    ("variant", "kind", "pair"),
    [
        (standing_variants.bound_for_each_batch, "laplace", "one person with 9 events more"),
        (standing_variants.bound_after_the_filter_of_another_stream, "laplace", "one person with 9 events more"),
        (standing_variants.watermark_of_event_times, "laplace", "one person ahead of the others more"),
        (standing_variants.empty_windows_left_out, "laplace", "one person in an empty window more"),
        (standing_variants.groups_only_when_seen, "histogram", "one person in both groups of a window more"),
        (period_variants.bound_for_each_window, "running_count", "one person's hour of 6 events more"),
    ],
)
def test_a_wrong_way_to_count_a_live_topic_is_flagged(variant: Variant, kind: str, pair: str) -> None:
    [case] = [case for case in cases_of([kind]) if case.pair == pair]
    with broken(variant):
        found = audited(case, 600)
    assert found.flagged, found
    assert not audited(case, 100).flagged


def test_decimals_that_are_rounded_as_doubles_are_flagged() -> None:
    [case] = [case for case in cases_of(["laplace"]) if case.pair == "0.1 up"]
    with broken(variants.decimals_rounded_as_doubles):
        found = audited(case, 1200)
    assert found.flagged, found
    assert not audited(case, 1200).flagged


def test_gaussian_noise_that_is_too_narrow_is_flagged() -> None:
    [case] = [case for case in cases_of(["laplace"]) if case.pair == "16 up"]
    with broken(variants.gaussian_noise_too_narrow):
        found = audited(case, 600)
    assert (found.method, found.flagged) == ("gaussian", True), found
    assert not audited(case, 600).flagged


def test_nothing_shipped_is_flagged() -> None:
    cases = cases_of()
    found = list(audit_all(cases, runs=300, seed=SEED))
    assert [finding.pair for finding in found] == [case.pair for case in cases]
    assert [finding for finding in found if finding.flagged] == []


def test_a_loss_of_exactly_epsilon_is_nearly_found_and_not_flagged() -> None:
    found = audited(CASES["up, down, best"], 2000)
    assert not found.flagged
    assert found.event == "below above"
    assert found.epsilon_at_least > 0.5 * found.epsilon


def test_an_event_known_beforehand_is_tested_on_all_runs_in_either_direction() -> None:
    case = CASES["up, down, best"]
    bounds = []
    for sides in (case.sides, case.sides[::-1]):
        known = replace(
            case, sides=sides, event=lambda transcript: [str(seen) for seen in transcript] == ["below", "above"]
        )
        found = audited(known, 1500)
        assert found.tested == 1500
        assert not found.flagged
        bounds.append(found.epsilon_at_least)
    assert min(bounds) > 0.5 * case.epsilon


def test_a_seed_says_everything() -> None:
    case = CASES["4 up, 2 down, textbook"]
    assert next(audit_all([case], runs=100, seed=1)) == next(audit_all([case], runs=100, seed=1))
    one, other = (sample(case, runs=100, seed=seed).transcripts for seed in (1, 2))
    assert one != other


def test_a_case_that_the_installation_rejects_says_why() -> None:
    sides = (Side([{"where": "age > 1"}]), Side([{"where": "age > 2"}]))
    with pytest.raises(AuditError, match="where"):
        audited(replace(CASES["up, down, best"], sides=sides), 10)
