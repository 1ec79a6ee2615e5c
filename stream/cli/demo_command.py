"""``sotto demo`` checks claims on a running job; ``sotto audit`` checks mechanisms in memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from stream.caches import reduce_gc_frequency
from stream.cli import monitor_commands
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.dev.audit_cases import AuditError
from stream.dev.auditor import FALSE_ALARM, Finding, audit_all
from stream.dev.demo_installation import DemoProgress, DemoReport, start_installation
from stream.dev.demo_run import run_demo, run_live_demo
from stream.dev.shipped_cases import cases_of
from stream.settings import MAX_PORT

MIN_QUERIES = 20_000
PIPED_WIDTH = 100
"""Width of the table of claims in a pipe or file."""


def demo(
    scene: Annotated[
        Literal["table", "live"],
        typer.Argument(help="Questions about a table, or a year of departures replayed as a live topic."),
    ] = "table",
    queries: Annotated[int, typer.Option(help="Number of queries.", min=1000)] = MIN_QUERIES,
    folder: Annotated[Path, typer.Option(help="Folder for the run's data.")] = Path(".sotto/demo"),
    port: Annotated[
        int, typer.Option(help="Port of the monitor's page; a free one if it is taken.", min=1, max=MAX_PORT)
    ] = 8080,
    stay: Annotated[bool, typer.Option(help="Keep everything running until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job on real data and check every claim; exit status 0 only if all hold.

    Set SOTTO_BOOTSTRAP to use that Kafka instead of a local one.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bar = DemoProgress()
    try:
        with ExitStack() as stack:
            live = scene == "live"
            running = stack.enter_context(
                start_installation(folder, bar, os.environ.get("SOTTO_BOOTSTRAP"), feed=live)
            )
            monitor = stack.enter_context(monitor_commands.run_monitor(running.settings, folder, port))
            bar.print_step(monitor.where)
            demo_run = run_live_demo(running.settings, bar) if live else run_demo(running, bar, queries=queries)
            report = asyncio.run(demo_run)
            bar.stop()
            if as_json:
                show_json(report.to_json())
            elif live:
                _show_departures(report)
            else:
                _show_report(report)
            if stay:
                with suppress(KeyboardInterrupt):
                    bar.print_step(f"{monitor.where}; Ctrl-C stops it")
                    signal.pause()
            else:
                bar.print_step(
                    f"the monitor's page at {monitor.address} ends with the demo; 'make demo ARGS=--stay' keeps it running"
                )
    finally:
        bar.stop()
    if not report.held:
        raise typer.Exit(1)


def _show_report(report: DemoReport) -> None:
    measured = report.measurements
    _show_checks(
        report,
        f"{measured['queries_asked']:,} queries, a worker killed half-way: {measured['queries_per_second']:,}/s with the "
        f"takeover; then {measured['backlog_answers_per_second']:,}/s on a backlog",
    )
    say(
        f"{measured['streams_halted']} of {measured['streams']} streams reached their cutoff and were halted; "
        f"{measured['above']:,} above, {measured['below']:,} below, {measured['halted_answers']:,} 'halted'"
    )


def _show_checks(report: DemoReport, title: str) -> None:
    show_table(
        title,
        ["claim", "seen", ""],
        [[check.claim, check.seen, "holds" if check.held else "FAILS"] for check in report.checks],
        piped_width=PIPED_WIDTH,
    )


def _show_departures(report: DemoReport) -> None:
    measured = report.measurements
    show_table(
        "alerts, and the half-days that truly were the worst (exact figures, which only the data's holder may see)",
        ["from (UTC)", "airport", "late aircraft", "rank", "alert"],
        [
            [
                one["window"].removesuffix(":00Z").replace("T", " "),
                one["origin"],
                f"{one['aircraft']}",
                "" if one["rank"] is None else f"{one['rank']}",
                "alert" if one["alert"] else "",
            ]
            for one in measured["windows"]
        ],
    )
    _show_checks(report, f"{measured['departures']:,} departures of 2013 replayed in {measured['seconds']:g} s")
    say(
        f"The bound of one per aircraft and half-day left out {measured['left_out']:,} of {measured['late']:,} late departures; "
        f"{measured['without_aircraft']:,} departures without an aircraft were set aside."
    )


RUNS = 5000
"""Default number of runs per data set: all cases take three to four minutes of CPU time."""

FEWEST_RUNS = 100

COLUMNS = ("mechanism", "method", "ε", "neighbors", "event", "seen", "ε at least", "verdict")


def audit(
    mechanism: Annotated[list[str] | None, typer.Option(help="Mechanisms to audit; all by default.")] = None,
    runs: Annotated[
        int, typer.Option(help="Runs on each of the two data sets of a case.", min=FEWEST_RUNS)
    ] = RUNS,
    seed: Annotated[int, typer.Option(help="Seed of the noise keys.")] = 0,
    false_alarm: Annotated[
        float, typer.Option(help="Largest probability that a correct mechanism is flagged.")
    ] = FALSE_ALARM,
    as_json: AsJson = False,
) -> None:
    """Run the shipped mechanisms in memory and compute a lower bound of their privacy loss from their answers.

    The exit status is 1 if the loss of a mechanism provably exceeds its claim.
    """
    if not 0.0 < false_alarm < 1.0:
        raise typer.BadParameter("give a probability between 0 and 1", param_hint="--false-alarm")
    reduce_gc_frequency()
    progress = Console(stderr=True)
    began = time.monotonic()
    findings = []
    try:
        cases = cases_of(mechanism or [])
        for finding in audit_all(cases, runs=runs, seed=seed, false_alarm=false_alarm):
            findings.append(finding)
            seconds_left = (time.monotonic() - began) / len(findings) * (len(cases) - len(findings))
            progress.print(
                f"· {len(findings)} of {len(cases)}: {finding.mechanism}, {finding.pair}; about {seconds_left:.0f} s left"
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
            }
        )
    else:
        show_table(
            f"{runs:,} runs on either data set, false alarms at most {false_alarm:g} over all cases",
            COLUMNS,
            [_finding_row(finding) for finding in findings],
        )
    if flagged:
        raise typer.Exit(1)


def _finding_row(finding: Finding) -> list[str]:
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
