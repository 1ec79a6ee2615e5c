"""``sotto source``, ``population`` and ``allot``: budgets of sources and populations, and their allotments."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer
from pydantic import TypeAdapter

from schemas import EventsSource, Population, Source, TableSource, ValuesSource
from stream.cli.app import LazyCommand, make_lazy_group
from stream.cli.manage.budget_rows import show_attributes, show_budget
from stream.cli.manage.record_rows import (
    AllPeriods,
    group_by_name,
    join_grants,
    warn_about_late_spending,
    warn_about_topic,
)
from stream.cli.output import (
    AsJson,
    CommandError,
    format_amount,
    format_left,
    parse_document,
    print_warnings,
    requested_amount,
    say,
    say_progress,
    show_json,
    show_result,
    show_table,
)
from stream.client.blocking_client import Client
from stream.formatting import describe_rows, describe_table_bound, format_count
from stream.kafka.broker_addresses import local_settings
from stream.kafka.topic_creation import LiveTopicReport, inspect_live_topic
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.questions.clamped_values import describe_values
from stream.questions.question_forms import source_adapter
from stream.questions.source_warnings import (
    warn_about_halted_data,
    warn_about_old_versions,
    warn_about_repetition,
    warn_about_shared_data,
)
from stream.questions.stream_watch import describe_live_topic
from stream.settings import DEFAULT_TABLE_BYTES
from stream.tables.engine_limits import describe_engine

CHECK: Final = LazyCommand(
    "stream.cli.manage.table_commands:check", "Compare a table with its declaration before you register it."
)
PROPOSE: Final = LazyCommand(
    "stream.cli.manage.table_commands:propose",
    "Propose a source for a table, with null where you must declare a range or values.",
)
SHOWN_STREAMS: Final = 1000
"""Maximum number of streams that ``sotto source show`` prints."""

app = typer.Typer(
    cls=make_lazy_group({"check": CHECK, "propose": PROPOSE}),
    help="Sources and their budgets.",
    no_args_is_help=True,
)


@app.command("add")
def add(
    source: Annotated[str, typer.Argument(help="The source as JSON: inline, a file, or - for standard input.")],
    engine: Annotated[
        Literal["memory", "duckdb"] | None,
        typer.Option(help="The engine that counts the rows of a table, in place of the source's."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a source with its budget."""
    wanted = parse_document(source_adapter(), source)
    if engine is not None:
        if not isinstance(wanted, TableSource):
            raise CommandError(f"--engine: {wanted.source} has no table; leave the option out")
        wanted = wanted.model_copy(update={"engine": engine})
    with Client() as client:
        earlier = client.list_sources()
        report = _inspect_topic(wanted)
        receipt = client.register(wanted)
    reasons = {record.source.source: record.reason for record in earlier}
    about_data = warn_about_shared_data(wanted, earlier), warn_about_halted_data(wanted, earlier)
    print_warnings(filter(None, (warn_about_repetition(wanted, reasons), *about_data)))
    details: list[str] = []
    if isinstance(wanted, EventsSource):
        details = [
            describe_live_topic(wanted),
            f"if {wanted.topic} does not exist, 'sotto events topic {wanted.source}' creates it",
        ]
        print_warnings(filter(None, [None if report.is_missing else report.problem, report.warning]))
    if isinstance(wanted, TableSource):
        counted = describe_table_bound(wanted)
        bound = [f"{counted}; no ± covers a person's other rows"] if counted else []
        private = "'sotto source check' shows the table's owner how many rows these are"
        details = [*bound, *describe_rows(wanted), private, describe_engine(wanted, DEFAULT_TABLE_BYTES)]
    if isinstance(wanted, ValuesSource):
        details = [describe_values(wanted)]
    registered = f"source {wanted.source} is registered with ε {wanted.epsilon:g}, δ {wanted.delta:g}"
    show_result(receipt, registered, *details, receipt.meaning, as_json=as_json)


def _inspect_topic(source: Source) -> LiveTopicReport:
    """Report on the topic of a live source; CommandError if Kafka compacts it."""
    if not isinstance(source, EventsSource):
        return LiveTopicReport()
    report = asyncio.run(inspect_live_topic(local_settings(), source))
    if report.is_compacted:
        raise CommandError(f"topic: {report.problem}")
    return report


@app.command("join")
def join(
    source: Annotated[str, typer.Argument(help="The source.")],
    population: Annotated[str, typer.Argument(help="The population to join.")],
    as_json: AsJson = False,
) -> None:
    """Add a source to a population permanently; refused unless its grants fit the population's budget."""
    with Client() as client:
        receipt = client.join(source, population)
        registered = client.list_sources()
    own = next(record.source for record in registered if record.source.source == source)
    print_warnings(
        filter(None, (warn_about_shared_data(own, registered), warn_about_halted_data(own, registered)))
    )
    joined = f"source {source} belongs to population {population}: its past and future grants count there too"
    show_result(receipt, joined, receipt.meaning, as_json=as_json)


@app.command("refresh")
def refresh(
    source: Annotated[str, typer.Argument(help="The source whose table has changed.")],
    close: Annotated[
        bool, typer.Option("--close", help="Close all of its streams and refund their unspent grants.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Close streams without a confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Use a table source's present data as its next version, also if no row has changed: that is private.

    Put the new file in place on all machines first. Streams that draw new noise for each question continue with the new
    version; streams that keep a release, a hypothesis or an estimate of the old version are closed. If streams will be
    closed, the command names them and needs a confirmation, or --yes.
    """
    with Client() as client:
        present = [one for one in client.list_streams(source) if one.ending is None]
        if not yes:
            # A live topic is refused.
            tables = [one.spec for one in present if one.spec.standing is None]
            _confirm_closing(
                source, [one.stream for one in tables if close or one.mechanism.kind in RESULTS_KEPT_BY_MECHANISM]
            )
        before = {one.spec.stream for one in present}
        receipt = client.refresh(source, close=close)
        now, registered = client.list_streams(source), client.list_sources()
    own = next(record.source for record in registered if record.source.source == source)
    print_warnings(filter(None, [warn_about_old_versions(own, registered)]))
    ended = sorted(one.spec.stream for one in now if one.spec.stream in before and one.ending == "closed")
    named = f": {', '.join(ended)}" if ended else ""
    count = format_count(len(ended), "stream is", "streams are")
    text = f"source {source} has version {receipt.version} of its data; {count} closed{named}"
    notes = [_OLD_VERSION] if any(one.ending is None for one in now) else []
    show_result({"receipt": receipt, "closed": ended}, text, *notes, as_json=as_json)


_OLD_VERSION: Final = "a worker answers from the old version until it has loaded the new one; an answer from version 2 or later names its version"


def _confirm_closing(source: str, streams: Sequence[str]) -> None:
    """Ask whether a refresh may close these streams; CommandError if not, or if standard input is no terminal."""
    if not streams:
        return
    closed = f"closes {format_count(len(streams), 'stream')}: {', '.join(sorted(streams))}"
    if not sys.stdin.isatty():
        raise CommandError(f"refresh: {closed}; add --yes to confirm that")
    say_progress(f"a refresh of {source} {closed}, even if no row has changed")
    if not typer.confirm("refresh it anyway?", err=True):
        raise CommandError("refresh: is not confirmed; nothing has changed")


@app.command("list")
def list_sources(all_periods: AllPeriods = False, as_json: AsJson = False) -> None:
    """List all sources with their budgets; for a source with periods, its latest period's budget."""
    with Client() as client:
        records = sorted(client.list_sources(), key=lambda record: record.source.source)
        populations = client.list_populations()
    if as_json:
        show_json(records)
        return
    left = {one.population.population: format_left(one.left) for one in populations}
    lines = group_by_name(records, lambda record: record.source.source, every=all_periods)
    show_table(
        f"{format_count(len(lines), 'source')}"
        if records
        else "no sources; register one with 'sotto source add' or, if there were some, run 'sotto ledger verify'",
        [
            *("source", "period", "kind", "state", "granted", "spent", "refunded", "left"),
            *("left of its population", "streams"),
        ],
        [
            [
                name,
                period,
                _describe_kind(record.source),
                record.state,
                *map(format_amount, (record.granted, record.spent, record.refunded)),
                format_left(record.left),
                left.get(record.population or "", "–") if left else "",
                str(record.streams),
            ]
            for name, record, period in lines
        ],
        optional=["period", "left of its population"],
    )


@app.command("show")
def show(source: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """Show a source's budget, attributes and streams."""
    limit = None if as_json else SHOWN_STREAMS
    with Client() as client:
        grants = join_grants(client, client.list_streams(source, limit=limit))
        record, allotments = client.budget(source), client.list_allotments(source=source)
        people = None if record.population is None else client.population(record.population)
        print_warnings(warn_about_late_spending(client, grants))
    if as_json:
        digests = {
            one.grant.spec.stream: {"status": one.status, "written": one.written} for one in grants if one.status
        }
        document = {"source": record, "grants": [one.grant for one in grants], "digests": digests}
        show_json({**document, **({"allotments": allotments} if allotments else {})})
        return
    version = f", version {record.version} of the data" if record.version > 1 else ""
    show_budget(f"{source} ({record.state}{version})", record, allotments, people)
    if isinstance(record.source, ValuesSource):
        say(describe_values(record.source), soft_wrap=True)
    show_attributes(record.source)
    if isinstance(record.source, TableSource):
        say(describe_engine(record.source, DEFAULT_TABLE_BYTES), soft_wrap=True)
    if isinstance(record.source, EventsSource):
        say(describe_live_topic(record.source), soft_wrap=True)
        if record.state == "open":
            warn_about_topic(record.source)
        if record.source.has_periods:
            say(
                f"each period has a separate budget: 'sotto source list' shows the latest, 'sotto source list --all' all, and "
                f"'sotto stream list {source} --all' the streams of all periods",
                soft_wrap=True,
            )
    if people is not None:
        say(
            f"it also counts against population {record.population}, which has {format_left(people.left)} left: a new stream "
            f"costs at most the smaller of both; see 'sotto population show {record.population}'",
            soft_wrap=True,
        )
    more = f"; all: 'sotto stream list {source} --limit N'" if len(grants) == limit else ""
    show_table(
        f"{format_count(len(grants), 'stream')}{more}",
        ["stream", "analyst", "state", "requested", "cost", "spent", "refunded", "answered", "charged", "as of"],
        [
            [
                one.grant.spec.stream,
                one.grant.analyst or "",
                one.state,
                requested_amount(one.grant.spec),
                format_amount(one.grant.cost),
                format_amount(one.totals.spent),
                format_amount(one.grant.refunded),
                str(one.totals.answered),
                one.charged,
                one.as_of,
            ]
            for one in grants
        ],
        optional=["analyst"],
    )
    for one in grants:
        if one.state == "not answering":
            say(f"{one.grant.spec.stream} is not answering: {one.reason}")


def _describe_kind(source: Source) -> str:
    """Return a source's kind, and its table engine unless that is ``memory``."""
    return (
        f"table, {source.engine}" if isinstance(source, TableSource) and source.engine != "memory" else source.kind
    )


population_app = typer.Typer(help="Populations: people who are in several sources.", no_args_is_help=True)


@population_app.command("register")
def register(
    population: Annotated[
        str, typer.Argument(help="The population as JSON: inline, a file, or - for standard input.")
    ],
    as_json: AsJson = False,
) -> None:
    """Register a population with its budget; sources name it, or join it later."""
    wanted = parse_document(TypeAdapter(Population), population)
    with Client() as client:
        receipt = client.register_population(wanted)
    registered = f"population {wanted.population} is registered with ε {wanted.epsilon:g}, δ {wanted.delta:g}"
    show_result(receipt, registered, receipt.meaning, as_json=as_json)


@population_app.command("list")
def list_populations(as_json: AsJson = False) -> None:
    """List all populations with their budgets."""
    with Client() as client:
        records = sorted(client.list_populations(), key=lambda record: record.population.population)
    if as_json:
        show_json(records)
        return
    show_table(
        format_count(len(records), "population")
        if records
        else "no populations; register one with 'sotto population register'",
        ["population", "state", "granted", "spent", "left", "sources", "streams", "renews"],
        [
            [
                record.population.population,
                record.state,
                *map(format_amount, (record.granted, record.spent)),
                format_left(record.left),
                str(record.sources),
                str(record.streams),
                record.population.renews or "never",
            ]
            for record in records
        ],
    )


@population_app.command("show")
def show_population(population: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """Show a population's budget, its sources and its allotments."""
    with Client() as client:
        record, allotments = client.population(population), client.list_allotments(population=population)
        sources = [one for one in client.list_sources() if one.population == population]
    sources.sort(key=lambda one: one.source.source)
    if as_json:
        show_json({"population": record, "sources": sources, "allotments": allotments})
        return
    show_budget(f"{population} ({record.state})", record, allotments)
    show_table(
        format_count(len(sources), "source"),
        ["source", "state", "granted", "spent", "left", "streams"],
        [
            [
                one.source.source,
                one.state,
                *map(format_amount, (one.granted, one.spent)),
                format_left(one.left),
                str(one.streams),
            ]
            for one in sources
        ],
    )


def allot(
    allotment: Annotated[
        str, typer.Argument(help="The allotment: an analyst's name, or a team's with --analyst.")
    ],
    epsilon: Annotated[float, typer.Option(help="Total ε for the analysts.")],
    delta: Annotated[
        float | None, typer.Option(help="Total δ for the analysts; the budget's δ if omitted.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The source whose budget is allotted.")] = None,
    population: Annotated[str | None, typer.Option(help="The population whose budget is allotted.")] = None,
    analyst: Annotated[
        list[str] | None,
        typer.Option(
            help="A member of the team; repeat the option for each. Default: the present members, or the analyst named."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Allot a part of a budget to an analyst or a team, or change an allotment."""
    if (source is None) == (population is None):
        raise CommandError("give the budget with either --source or --population")
    with Client() as client:
        receipt = client.allot(
            allotment, epsilon, delta, source=source, population=population, analysts=analyst or []
        )
        present = [] if analyst else client.list_allotments(source=source, population=population)
    owner = f"source {source}" if source is not None else f"population {population}"
    kept = [name for one in present if one.allotment == allotment for name in one.analysts]
    names = ", ".join(analyst or kept or [allotment])
    rest = " and the budget's δ" if delta is None else f", δ {delta:g}" * (delta > 0)
    show_result(receipt, f"{names} may have ε {epsilon:g}{rest} of {owner}", as_json=as_json)
