"""``sotto audit``: what the answers alone show about the privacy loss."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from stream.audit import FALSE_ALARM, AuditError, Finding, audit_all, cases_of
from stream.cli.output import AsJson, CommandError, show_json, show_table
from stream.garbage import look_rarely

RUNS = 5000
"""Runs per data set; all cases together then take three to four minutes of one processor."""

FEWEST_RUNS = 100

COLUMNS = ("mechanism", "method", "ε", "neighbours", "event", "seen", "ε at least", "verdict")


def audit(
    mechanism: Annotated[list[str] | None, typer.Option(help="Mechanisms to audit; all by default.")] = None,
    runs: Annotated[int, typer.Option(help="Runs on either data set of each case.", min=FEWEST_RUNS)] = RUNS,
    seed: Annotated[int, typer.Option(help="What the noise keys are derived from.")] = 0,
    false_alarm: Annotated[
        float, typer.Option(help="How probable it may be that a correct mechanism is flagged.")
    ] = FALSE_ALARM,
    as_json: AsJson = False,
) -> None:
    """Run the shipped mechanisms in memory and bound their privacy loss from below by their answers.

    Exit status 1 if any is shown to lose more than it claims.
    """
    if not 0.0 < false_alarm < 1.0:
        raise typer.BadParameter("give a probability between 0 and 1", param_hint="--false-alarm")
    look_rarely()
    progress = Console(stderr=True)
    findings = []
    try:
        cases = cases_of(mechanism or [])
        for finding in audit_all(cases, runs=runs, seed=seed, false_alarm=false_alarm):
            findings.append(finding)
            progress.print(
                f"· {len(findings)} of {len(cases)}: {finding.mechanism}, {finding.pair}", highlight=False
            )
    except AuditError as error:
        raise CommandError(str(error)) from None
    flagged = any(finding.flagged for finding in findings)
    if as_json:
        show_json(
            {
                "flagged": flagged,
                "runs": runs,
                "seed": seed,
                "false_alarm": false_alarm,
                "findings": [finding.to_json() for finding in findings],
            },
        )
    else:
        show_table(
            f"{runs:,} runs on either data set, false alarms at most {false_alarm:g} over all cases",
            COLUMNS,
            [_row(finding) for finding in findings],
        )
    if flagged:
        raise typer.Exit(1)


def _row(finding: Finding) -> list[str]:
    return [
        finding.mechanism,
        finding.method,
        f"{finding.epsilon:g}" + (f", δ {finding.delta:g}" if finding.delta else ""),
        finding.pair,
        finding.event,
        f"{finding.likely} : {finding.unlikely}",
        f"{finding.epsilon_at_least:.3f}",
        "FLAGGED" if finding.flagged else "not flagged",
    ]
