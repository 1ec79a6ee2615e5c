"""What the demo claims, each claim checked against what consumers and the ledger show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from schemas import Answer, Calibration, GrantRecord, SourceRecord
from stream.demo.scenario import Asked

TOLERANCE = 1e-9
"""Budget figures are sums of printed doubles here; the ledger itself compares exact integers."""


@dataclass(frozen=True)
class Check:
    """One claim, what was seen, and whether it held."""

    claim: str
    seen: str
    held: bool


@dataclass(frozen=True)
class Report:
    """All checks and figures of one run."""

    checks: list[Check]
    figures: dict[str, Any]

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {"held": self.held, "checks": [asdict(check) for check in self.checks], **self.figures}


def check_answers(
    asked: Mapping[str, Asked],
    answers: Iterable[Answer],
    calibrations: Mapping[str, Calibration],
) -> tuple[list[Check], Counter[str]]:
    """Every query answered once; no ⊤ or ⊥ further than α from the truth; no stream past its cutoff."""
    times: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    tops: Counter[str] = Counter()
    after_end = 0
    wrong = 0
    halted: set[str] = set()
    indices: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        times[answer.id] += 1
        outcomes[answer.outcome] += 1
        if answer.outcome == "halted":
            halted.add(answer.stream)
            continue
        if answer.index is None:
            continue
        after_end += answer.stream in halted
        indices[answer.stream].append(answer.index)
        tops[answer.stream] += answer.outcome == "above"
        question, alpha = asked[answer.id], calibrations[answer.stream].alpha
        distance = question.truth - question.threshold
        wrong += distance < -alpha if answer.outcome == "above" else distance > alpha
    repeated = sum(count > 1 for count in times.values())
    missing = len(asked) - len(times)
    gaps = sum(sorted(seen) != list(range(len(seen))) for seen in indices.values())
    cutoffs = {name: calibration.cutoff for name, calibration in calibrations.items()}
    over = sum(tops[name] > cutoff for name, cutoff in cutoffs.items())
    judged = outcomes["above"] + outcomes["below"]
    checks = [
        Check(
            "every query is answered exactly once",
            f"{len(asked):,} asked, {len(times):,} answered, {missing} missing, {repeated} twice",
            not missing and not repeated and len(times) == len(asked),
        ),
        Check(
            "above and below are right within the promised α",
            f"{judged:,} judged ({outcomes['above']} above), {wrong} beyond α",
            wrong == 0 and judged > 0,
        ),
        Check(
            "no stream is above more often than its cutoff",
            f"most {max(tops.values(), default=0)} of {max(cutoffs.values())}, {over} over",
            over == 0 and outcomes["above"] > 0,
        ),
        Check(
            "a halted stream never answers again",
            f"{outcomes['halted']:,} answers 'halted', {after_end} answers after",
            after_end == 0,
        ),
        Check("each stream's answers are numbered without gap", f"{gaps} streams with gaps", gaps == 0),
    ]
    return checks, outcomes


def check_budget(
    record: SourceRecord,
    grants: Sequence[GrantRecord],
    dry: set[str],
) -> Check:
    """What is granted, spent, refunded and left adds up, and the ledger names the streams that ran dry."""
    total = record.source.epsilon
    granted, spent, refunded = record.granted.epsilon, record.spent.epsilon, record.refunded.epsilon
    ledger_dry = {grant.spec.stream for grant in grants if grant.tops == grant.calibration.cutoff}
    held = (
        granted - refunded <= total + TOLERANCE
        and abs(total - granted + refunded - record.left.epsilon) <= TOLERANCE
        and abs(sum(grant.spent.epsilon for grant in grants) - spent) <= TOLERANCE
        and abs(granted - refunded - spent) <= TOLERANCE
        and all(grant.spent.epsilon <= grant.cost.epsilon + TOLERANCE for grant in grants)
        and ledger_dry == dry
    )
    return Check(
        f"budget of {record.source.source} adds up (ε {total:g})",
        f"granted {granted:.4f}, spent {spent:.4f}, refunded {refunded:.4f}, left {record.left.epsilon:.4f}, "
        f"{len(ledger_dry)} streams ran dry",
        held,
    )
