"""``sotto demo``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import rich.progress
import typer
from rich.console import Console

from stream.cli import monitoring
from stream.cli.output import AsJson, console, show_json, show_table
from stream.demo import Report, installation, run_demo
from stream.demo.departures import run_live_demo
from stream.settings import LAST_PORT

MIN_QUERIES = 20_000


class Scene(StrEnum):
    """What a demo shows."""

    TABLE = "table"
    LIVE = "live"


class _Bar:
    """A progress bar on standard error, so that standard output holds the result alone."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            console=self._console,
        )
        self._task: rich.progress.TaskID | None = None

    def step(self, message: str) -> None:
        self._console.print(f"· {message}", highlight=False, soft_wrap=True)

    def advance(self, published: int, answered: int, total: int) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("answered", total=total)
        self._progress.update(self._task, completed=answered, description=f"{published:,} published, answered")

    def stop(self) -> None:
        self._progress.stop()


def demo(
    scene: Annotated[
        Scene, typer.Argument(help="Questions about a table, or a year of departures replayed as a live topic.")
    ] = Scene.TABLE,
    queries: Annotated[int, typer.Option(help="How many queries to ask.", min=1000)] = MIN_QUERIES,
    folder: Annotated[Path, typer.Option(help="Where the run's data goes.")] = Path(".sotto/demo"),
    port: Annotated[
        int, typer.Option(help="Port of the monitor's page; another one if it is taken.", min=1, max=LAST_PORT)
    ] = 8080,
    stay: Annotated[bool, typer.Option(help="Keep everything up afterwards, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job on real data and check every claim; exit status 0 only if all hold.

    SOTTO_BOOTSTRAP names a Kafka to use in place of a local one.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bar = _Bar()
    try:
        with ExitStack() as stack:
            live = scene is Scene.LIVE
            up = stack.enter_context(installation(folder, bar, os.environ.get("SOTTO_BOOTSTRAP"), feed=live))
            monitor = stack.enter_context(monitoring.start(up.settings, folder, port))
            bar.step(monitor.where)
            report = asyncio.run(run_live_demo(up.settings, bar)) if live else run_demo(up, bar, queries=queries)
            bar.stop()
            if as_json:
                show_json(report.to_json())
            elif live:
                _show_departures(report)
            else:
                _show(report)
            if stay:
                with suppress(KeyboardInterrupt):
                    bar.step(f"{monitor.where}; Ctrl-C ends it")
                    signal.pause()
            else:
                bar.step(
                    f"the monitor's page at {monitor.address} ends with the demo; 'make demo ARGS=--stay' keeps it up"
                )
    finally:
        bar.stop()
    if not report.held:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    figures = report.figures
    _show_checks(
        report,
        f"{figures['queries_asked']:,} queries at {figures['queries_per_second']:,}/s, one worker killed half-way",
    )
    console.print(
        f"{figures['streams_halted']} of {figures['streams']} streams reached their cutoff and were halted; "
        f"{figures['above']:,} above, {figures['below']:,} below, {figures['halted_answers']:,} 'halted'",
        highlight=False,
    )


def _show_checks(report: Report, title: str) -> None:
    show_table(
        title,
        ["claim", "seen", ""],
        [[check.claim, check.seen, "holds" if check.held else "FAILS"] for check in report.checks],
    )


def _show_departures(report: Report) -> None:
    figures = report.figures
    show_table(
        "alerts, and the half-days that truly were the worst (figures that only who holds the data may see)",
        ["from (UTC)", "airport", "late aircraft", "rank", "alert"],
        [
            [
                one["window"].removesuffix(":00Z").replace("T", " "),
                one["origin"],
                f"{one['aircraft']}",
                "" if one["rank"] is None else f"{one['rank']}",
                "alert" if one["alert"] else "",
            ]
            for one in figures["windows"]
        ],
    )
    _show_checks(report, f"{figures['departures']:,} departures of 2013 replayed in {figures['seconds']:g} s")
    console.print(
        f"Of {figures['late']:,} late departures the bound of one per aircraft and half-day left out {figures['left_out']:,}; "
        f"{figures['without_aircraft']:,} departures name no aircraft and were set aside.",
        highlight=False,
    )
