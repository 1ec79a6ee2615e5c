"""``sotto simulate``: measures a stream's errors and charges on a public or generated table.

The private tables of a deployment are refused. ``sotto plan`` reads its sources with the same functions.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import typer
from aiokafka.errors import KafkaError
from rich.console import Console

from schemas import EventsSource, Source, TableSource
from stream.cli.output import (
    AsJson,
    CommandError,
    format_amount,
    parse_document,
    requested_amount,
    say,
    show_json,
    show_table,
)
from stream.cli.plan_output import new_figure, plot_simulation
from stream.client.async_client import AsyncClient
from stream.dev.simulation_inputs import (
    SYNTHETIC_LAW,
    SimulationError,
    draw_table,
    is_shipped,
    read_questions,
    require_public,
    require_shipped_table,
)
from stream.dev.simulation_run import ErrorSummary, SimulationReport
from stream.dev.simulation_run import simulate as simulate_stream
from stream.formatting import did_you_mean, format_error_bound
from stream.kafka.broker_addresses import local_settings
from stream.kafka.client.broker_connections import describe_error
from stream.kafka.topic_creation import require_topics
from stream.kafka.topic_layouts import TopicsError
from stream.questions.question_forms import opening_adapter, source_adapter
from stream.settings import Settings
from stream.tables.demo_tables import ADULT_PATH
from stream.tables.readers.table_files import parse_roots
from stream.tables.rows import read_cells
from stream.tables.table_errors import UnreadableError

MAX_RUNS = 1000
MAX_SYNTHETIC_ROWS = 10_000_000
_SHOWN_REJECTIONS = 5


def simulate(
    spec: Annotated[str, typer.Argument(help="The stream as for 'sotto stream open'.", metavar="SPEC")],
    questions: Annotated[
        Path,
        typer.Argument(
            help="A file with one query a line: JSON as on the topic (id and stream are optional), or only the text of a predicate.",
            metavar="QUESTIONS",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            help="The source as for 'sotto source add', or a registered source's name; if omitted, the stream's source.",
            metavar="SOURCE",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="A public CSV or Parquet file of the declared domain, in place of the source's."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--synthetic", help="Generate N rows instead.", min=1, max=MAX_SYNTHETIC_ROWS)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. Generated and printed if omitted.", min=0)] = None,
    runs: Annotated[int, typer.Option(help="Runs, each with different noise.", min=1, max=MAX_RUNS)] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Plot errors and promises to this file (needs matplotlib).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a stream on a public or generated table before it is opened: errors and charges beside the promise.

    Private tables are refused, because the errors reveal exact counts.
    """
    wanted = parse_document(opening_adapter(), spec)
    queries = read_questions(_read_lines(questions), wanted.stream)
    if plot is not None:
        new_figure(plot, width=1, height=1)  # fails early
    registered = RegisteredSources()
    definition = registered.find_source(wanted.source) if source is None else read_source(source)
    seed = secrets.randbits(31) if seed is None else seed
    frame, data = find_public_data(definition, registered, table, rows, seed)
    with Console(stderr=True).status(f"simulating {runs:,} run{'s' * (runs != 1)} of {len(queries):,} questions"):
        report = simulate_stream(wanted, definition, queries, frame, runs=runs, seed=seed)
    if plot is not None:
        plot_simulation(report, plot)
    if as_json:
        show_json(_report_json(report, data))
        return
    _print_report(report, data)
    if plot is not None:
        say(f"plotted to {plot}", soft_wrap=True)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"QUESTIONS: cannot read {path}: {why}; give a file with one query a line") from None


def _report_json(report: SimulationReport, data: str) -> dict[str, Any]:
    grant = report.grant
    return {
        "stream": grant.spec.stream,
        "source": grant.spec.source,
        "mechanism": grant.spec.mechanism,
        "data": data,
        "rows": report.rows,
        "counted": report.counted,
        "seed": report.seed,
        "questions": report.questions,
        "method": grant.calibration.method,
        "alpha": grant.calibration.alpha,
        "beta": grant.calibration.beta,
        "promises": report.promises,
        "reserved": grant.cost,
        "cutoff": grant.calibration.cutoff,
        "broken_runs": report.broken_runs,
        "figures": [_summary_json(one) for one in report.error_summaries],
        "runs": [
            {
                "run": run.number,
                "answered": run.answered,
                "rejected": len(run.rejections),
                "halted": run.halted,
                "charged": run.charged,
                "spent": run.grant.spent,
                "broken": run.broken,
                "ended": None if run.ended is None else asdict(run.ended),
                "rejections": [{"line": line, "reason": reason} for line, reason in run.rejections.items()],
                "figures": [_summary_json(one) for one in run.error_summaries],
                "errors": [
                    {name: getattr(one, name) for name in ("line", "what", "largest", "alpha", "broken")}
                    for one in run.measurements
                ],
            }
            for run in report.runs
        ],
    }


def _summary_json(one: ErrorSummary) -> dict[str, Any]:
    alpha = None if one.alpha is None else dict(zip(("least", "largest"), one.alpha, strict=True))
    return {**asdict(one), "alpha": alpha}


def _print_report(report: SimulationReport, data: str) -> None:
    grant, spec = report.grant, report.grant.spec
    cutoff = grant.calibration.cutoff
    say(f"{spec.stream}: {spec.mechanism.kind} at {requested_amount(spec)} ({grant.calibration.method})")
    for promise in report.promises:
        say(f"promised: {promise}")
    say(f"on {data}; seed {report.seed}")
    show_table(
        f"{report.questions:,} questions, {format_amount(grant.cost)} reserved",
        ["run", "answered", "rejected", "halted", "charged", "spent", "ended at"],
        [
            [
                str(run.number),
                f"{run.answered:,}",
                f"{len(run.rejections):,}",
                f"{run.halted:,}",
                "once" if run.charged is None else f"{run.charged:,} / {cutoff:,}",
                format_amount(run.grant.spent),
                "–" if run.ended is None else f"line {run.ended.line:,}",
            ]
            for run in report.runs
        ],
    )
    several = [(str(run.number), run.error_summaries) for run in report.runs] if len(report.runs) > 1 else []
    show_table(
        f"errors, of {_describe_rows(report.rows, report.counted)}",
        ["run", "errors of", "numbers", "largest", "mean", "promised α", "broken"],
        [
            [
                run,
                one.what,
                f"{one.numbers:,}",
                _format_error(one.largest),
                _format_error(one.mean),
                _format_promise(one),
                f"{one.broken:,} of {one.answers - one.unpromised:,}",
            ]
            for run, listed in [*several, ("all", report.error_summaries)]
            for one in listed
        ],
    )
    say(
        f"{report.broken_runs:,} of {len(report.runs):,} runs had an error above the promised α; "
        f"the promised probability is at most {grant.calibration.beta:g} for each run"
    )
    if max(run.answered for run in report.runs) > spec.expected_queries:
        say(
            f"the promise covers the first {spec.expected_queries:,} answers, and there were more: raise expected_queries"
        )
    if reasons := {run.ended.reason for run in report.runs if run.ended is not None}:
        say(f"ended: {'; '.join(sorted(reasons))}")
    rejections = report.runs[0].rejections
    for line, reason in list(rejections.items())[:_SHOWN_REJECTIONS]:
        say(f"line {line} rejected: {reason}")
    if len(rejections) > _SHOWN_REJECTIONS:
        say(f"and {len(rejections) - _SHOWN_REJECTIONS:,} more; --json has them all")


def _describe_rows(rows: int | None, counted: int | None) -> str:
    if rows is None:
        return "values"
    return f"a table of {rows:,} rows" if counted == rows else f"the {counted:,} rows that count of {rows:,}"


def _format_error(number: float) -> str:
    return f"{number:,.0f}" if number >= 1e4 else f"{number:.4g}"


def _format_promise(one: ErrorSummary) -> str:
    """Format the promised α; if the answers' α differ by more than 1 %, format it as a range."""
    if one.alpha is None:
        return "nothing"
    least, largest = one.alpha
    shown = format_error_bound(largest, grouped=True)
    return f"{format_error_bound(least, grouped=True)} … {shown}" if least < 0.99 * largest else shown


_PROBE_SECONDS = 2.0


def find_public_data(
    source: Source, registered: RegisteredSources, table: Path | None, rows: int | None, seed: int
) -> tuple[pl.DataFrame | None, str]:
    """Return the table to simulate on (None for values in queries) and its description."""
    if not isinstance(source, TableSource):
        # ``simulate_stream`` refuses streams on a live topic later.
        if not isinstance(source, EventsSource) and (table is not None or rows is not None):
            raise SimulationError("--table, --synthetic: the source has no table; its questions carry the values")
        return None, "the values in the questions, assumed public"
    if table is not None and rows is not None:
        raise SimulationError("--table, --synthetic: cannot be combined; give one of them")
    if rows is not None:
        return draw_table(source, rows, seed), f"{rows:,} generated rows: {SYNTHETIC_LAW}"
    if table is None:
        table = require_shipped_table(source)
    path, description = find_public_path(source, registered, table)
    try:
        return read_cells(source, str(path)), description
    except UnreadableError as error:
        raise SimulationError(f"--table: {table} cannot be read: {error.problem}") from None


def find_public_path(source: TableSource, registered: RegisteredSources, table: Path) -> tuple[Path, str]:
    """Return a public table's file and description; raise SimulationError if the table is private."""
    if is_shipped(table):
        return ADULT_PATH, "the shipped Adult table, which is public"
    roots = [root for root in parse_roots(Settings().table_roots) if isinstance(root, Path)]
    private = registered.read_tables()
    path = require_public(table, source, roots=roots, registered=private or ())
    unchecked = "" if private is not None else " (no ledger was reachable for a check)"
    return path, f"{table}, assumed public{unchecked}"


class RegisteredSources:
    """The sources of the ledger, read on first use."""

    def __init__(self) -> None:
        self._settings = local_settings()
        self._is_configured = "bootstrap" in Settings().model_fields_set

    def read_tables(self) -> list[TableSource] | None:
        """Return all registered tables, or None if no deployment is configured or reachable.

        Raises:
            CommandError: a deployment exists, but its ledger cannot be read.
        """
        if not self._is_configured and not _is_reachable(self._settings.bootstrap):
            return None
        try:
            return [one for one in self._sources if isinstance(one, TableSource)]
        except (TopicsError, KafkaError) as error:
            if not self._is_configured and isinstance(error, TopicsError):
                return None  # a Kafka without Sotto
            raise CommandError(
                f"--table: the ledger at {self._settings.bootstrap}, which names the private tables, cannot be read; use "
                f"--synthetic, or {'correct or unset' if self._is_configured else 'set'} SOTTO_BOOTSTRAP ({_error_text(error)})"
            ) from None

    def find_source(self, name: str) -> Source:
        """Return a registered source's definition."""
        try:
            found = {one.source: one for one in self._sources}
        except (TopicsError, KafkaError) as error:
            raise CommandError(
                f"source '{name}': the ledger with its definition cannot be read; give --source ({_error_text(error)})"
            ) from None
        if name not in found:
            hint = did_you_mean(name, found) or "; give its definition with --source"
            raise CommandError(f"source '{name}' is not registered{hint}")
        return found[name]

    @cached_property
    def _sources(self) -> list[Source]:
        return asyncio.run(_fetch_sources(self._settings))


def _error_text(error: TopicsError | KafkaError) -> str:
    return str(error) if isinstance(error, TopicsError) else describe_error(error)


async def _fetch_sources(settings: Settings) -> list[Source]:
    await require_topics(settings)  # fails at once if topics are missing; a client would wait for them
    async with AsyncClient(settings) as client:
        return [record.source for record in await client.list_sources()]


def _is_reachable(bootstrap: str) -> bool:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


_NAME_PATTERN: Final = re.compile("[A-Za-z0-9_-]*[A-Za-z0-9_]", re.ASCII)
"""Names of sources that cannot be a file with a suffix, inline JSON or ``-``."""


def read_source(argument: str) -> Source:
    """Return the source that a document defines, or the registered source with this name."""
    if _NAME_PATTERN.fullmatch(argument) and not Path(argument).exists():
        return RegisteredSources().find_source(argument)
    return parse_document(source_adapter(), argument)
