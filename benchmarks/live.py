"""Measures live topics on a real broker: events per second, compared with other stream processors, latency, and restarts.

One feed process, standing streams by group, each person's contribution bounded, exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import live_latency, live_restart
from benchmarks.contenders import SOTTO
from benchmarks.installation import PARTITIONS, private_broker
from benchmarks.live_job import STREAMS, Job
from benchmarks.live_throughput import Run, compare, peers
from benchmarks.report import Figure, console, show_figures, write_json

PARTS = ("throughput", "latency", "restart")
PEERS = ("kafka-streams", "quix", "faust")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--conditions", type=int, nargs="+", default=[STREAMS, 1], help="how many different ones the streams have"
    )
    parser.add_argument("--peers", nargs="*", choices=[*PEERS, "none"], default=list(PEERS))
    parser.add_argument("--rate", type=int, default=20_000, help="events per second, for the latency")
    parser.add_argument("--seconds", type=int, default=30, help="of these, after as many that warm up")
    parser.add_argument(
        "--partitions",
        type=int,
        nargs="+",
        default=[1, PARTITIONS],
        help="for the latency, each on its own broker",
    )
    parser.add_argument("--people", type=int, default=1_000_000, help="in open windows, for the restart")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    if "throughput" in options.parts:
        others = peers(options.peers)
        for conditions in options.conditions:
            with private_broker() as settings:
                job = Job(conditions=conditions)
                runs = asyncio.run(compare(settings, job, options.events, options.rounds, others))
            show(job, runs)
            found[f"throughput, {conditions} conditions"] = [asdict(run) for run in runs]
    if "latency" in options.parts:
        for conditions, partitions in product(options.conditions, options.partitions):
            with private_broker(partitions) as settings:
                latency = asyncio.run(
                    live_latency.measure(
                        settings, conditions, options.rate, options.seconds, warm_up=options.seconds
                    )
                )
            job_of = f"{conditions} conditions, {partitions} partitions"
            show_figures(f"From a window's end to its answers, {job_of}", latency_figures(latency))
            found[f"latency, {job_of}"] = asdict(latency)
    if "restart" in options.parts:
        with private_broker() as settings:
            restart = asyncio.run(live_restart.measure(settings, options.people))
        show_figures(f"{restart.people:,} people in open windows", restart_figures(restart))
        found["restart"] = asdict(restart)
    if options.json:
        write_json(options.json, found)


def ratios(runs: Sequence[Run], name: str, figure: str) -> list[float]:
    """Return the ratio of Sotto's figure to this contender's, for each round that both ended."""
    other = {run.round: getattr(run, figure) for run in runs if run.contender == name}
    own = {run.round: getattr(run, figure) for run in runs if run.contender == SOTTO}
    return [own[number] / other[number] for number in own if number in other]


def show(job: Job, runs: Sequence[Run]) -> None:
    """Medians over the rounds, and the medians of each round's ratio."""
    title = f"{job.streams} streams of {job.conditions} conditions, {job.groups} groups, second half"
    table = Table(title=title)
    table.add_column("")
    for heading in (
        "events/s",
        "Sotto's by this",
        "CPU/event",
        "Sotto's by this",
        "memory at half",
        "most memory",
        "events",
    ):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(run.contender for run in runs):
        own = [run for run in runs if run.contender == name]
        table.add_row(
            name,
            f"{statistics.median(run.rate for run in own):,.0f}",
            _median_ratio(runs, name, "rate"),
            f"{statistics.median(run.cpu_microseconds for run in own):.1f} µs",
            _median_ratio(runs, name, "cpu_microseconds"),
            f"{statistics.median(run.half_rss for run in own) / 1e6:,.0f} MB",
            f"{max(run.most_rss for run in own) / 1e6:,.0f} MB",
            f"{own[0].events:,}",
        )
    console.print(table)


def _median_ratio(runs: Sequence[Run], name: str, figure: str) -> str:
    found = ratios(runs, name, figure)
    return f"{statistics.median(found):.2f}" if found else "–"


def latency_figures(found: live_latency.Latency) -> list[Figure]:
    """Return the shown figures of a latency."""
    return [
        ("events sent", found.rate, "events/s"),
        ("windows", found.windows, ""),
        ("answers", found.answers, ""),
        ("answers missing", found.missing, ""),
        *((f"a window's {stage}, median", took, "ms") for stage, took in found.trace.items()),
        ("answers in hand, median", found.median, "ms"),
        ("99 %", found.p99, "ms"),
        ("worst", found.worst, "ms"),
        ("processor of the feed", found.feed_share, "s/s"),
        ("processor of the worker", found.worker_share, "s/s"),
        ("feed's memory after the warm-up", found.first_rss / 1e6, "MB"),
        ("feed's memory at the end", found.last_rss / 1e6, "MB"),
        ("feed's most memory", found.most_rss / 1e6, "MB"),
        ("most events not yet counted", found.most_backlog, ""),
        ("load before", found.load, ""),
    ]


def restart_figures(found: live_restart.Restart) -> list[Figure]:
    """Return the shown figures of restarts."""
    return [
        ("counts again after a kill", found.killed_seconds, "s"),
        ("counts again after a stop in good order", found.stopped_seconds, "s"),
        ("process without them", found.empty_rss / 1e6, "MB"),
        ("process with them, restarted", found.full_rss / 1e6, "MB"),
        ("memory, all of the process counted in", found.bytes_each, "bytes a person and window"),
        ("load before", found.load, ""),
    ]


if __name__ == "__main__":
    main()
