"""``sotto simulate``: measures a stream's errors and charges on a public or generated table."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stream.cli.output import (
    AsJson,
    CommandError,
    format_amount,
    read_as,
    requested_amount,
    say,
    show_json,
    show_table,
)
from stream.cli.plan.plan_output import new_figure, plot_simulation
from stream.cli.plan.public_data import RegisteredSources, public_data, read_source
from stream.dev.simulation import ErrorSummary, SimulationReport, read_questions
from stream.dev.simulation import simulate as simulate_stream
from stream.formatting import format_error_bound
from stream.questions.question_forms import opening_adapter

MAX_RUNS = 1000
MAX_SYNTHETIC_ROWS = 10_000_000
_SHOWN_REJECTIONS = 5


def simulate(
    spec: Annotated[str, typer.Argument(help="The stream as for 'sotto stream open'.", metavar="SPEC")],
    questions: Annotated[
        Path,
        typer.Argument(
            help="A file with one query a line: JSON as on the topic (id and stream are optional), or a where.",
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
    wanted = read_as(opening_adapter(), spec)
    queries = read_questions(_read_lines(questions), wanted.stream)
    if plot is not None:
        new_figure(plot, width=1, height=1)  # fails early
    registered = RegisteredSources()
    definition = registered.find_source(wanted.source) if source is None else read_source(source)
    seed = secrets.randbits(31) if seed is None else seed
    frame, data = public_data(definition, registered, table, rows, seed)
    with Console(stderr=True).status(f"simulating {runs:,} run{'s' * (runs != 1)} of {len(queries):,} questions"):
        report = simulate_stream(wanted, definition, queries, frame, runs=runs, seed=seed)
    if plot is not None:
        plot_simulation(report, plot)
    if as_json:
        show_json(_as_json(report, data))
        return
    _print(report, data)
    if plot is not None:
        say(f"plotted to {plot}", soft_wrap=True)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"QUESTIONS: cannot read {path}: {why}; give a file with one query a line") from None


def _as_json(report: SimulationReport, data: str) -> dict[str, Any]:
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
        "figures": [_summary_json(one) for one in report.figures],
        "runs": [
            {
                "run": run.number,
                "answered": run.answered,
                "rejected": len(run.rejections),
                "halted": run.halted,
                "charged": run.charged,
                "spent": run.spent,
                "broken": run.broken,
                "ended": None if run.ended is None else asdict(run.ended),
                "rejections": [{"line": line, "reason": reason} for line, reason in run.rejections.items()],
                "figures": [_summary_json(one) for one in run.figures],
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


def _print(report: SimulationReport, data: str) -> None:
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
                format_amount(run.spent),
                "–" if run.ended is None else f"line {run.ended.line:,}",
            ]
            for run in report.runs
        ],
    )
    several = [(str(run.number), run.figures) for run in report.runs] if len(report.runs) > 1 else []
    show_table(
        f"errors, of {_describe_rows(report.rows, report.counted)}",
        ["run", "of", "numbers", "largest", "mean", "promised α", "broken"],
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
            for run, listed in [*several, ("all", report.figures)]
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
    """Format the promised α; as a range if the answers' α differ by more than 1 %."""
    if one.alpha is None:
        return "nothing"
    least, largest = one.alpha
    shown = format_error_bound(largest, grouped=True)
    return f"{format_error_bound(least, grouped=True)} … {shown}" if least < 0.99 * largest else shown
