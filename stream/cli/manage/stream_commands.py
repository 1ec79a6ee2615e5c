"""``sotto stream`` opens, extends, closes, halts, lists and shows streams."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from schemas import (
    AnswersCalibration,
    Auto,
    EventsSource,
    GrantRecord,
    RandomizedResponse,
    Receipt,
    RecordsSource,
    Source,
    TableSource,
    registered_name,
)
from stream.cli.manage.record_rows import AllPeriods, ShownGrant, group_by_name, join_grants, warn_about_topic
from stream.cli.output import (
    AsJson,
    CommandError,
    format_amount,
    parse_document,
    print_warnings,
    requested_amount,
    say,
    show_json,
    show_result,
    show_table,
)
from stream.client.blocking_client import Client
from stream.errors import Missing, describe_end_remedy
from stream.formatting import (
    EVENT_IS_PERSON,
    describe_choice,
    describe_promise_bound,
    describe_rows,
    describe_source_bound,
    format_count,
    format_error_bound,
    remark_on_rows,
)
from stream.kafka.broker_addresses import local_settings
from stream.kafka.topic_creation import inspect_live_topic
from stream.optional_packages import explain_missing_packages
from stream.privacy.composition.costs import charged_answers, displayed_grant, last_promised_answer
from stream.privacy.composition.losses import is_pure
from stream.processing.dead_letters import says_exhausted
from stream.questions.answer_warnings import warn_about_promise
from stream.questions.first_windows import describe_first_answer, describe_next_answer, needed_retention_ms
from stream.questions.question_forms import opening_adapter
from stream.questions.stream_watch import (
    describe_standing_query,
    describe_used_up_grant,
    describe_window_count,
    period_of,
)

app = typer.Typer(help="Streams: a mechanism over a source.", no_args_is_help=True)
Analyst = Annotated[str | None, typer.Option(help="The analyst; the cost is also charged to their allotments.")]
Names = Annotated[list[str], typer.Argument(metavar="stream", help="The stream; its source may precede it.")]


@app.command("open")
def open_stream(
    stream: Annotated[str, typer.Argument(help="The stream as JSON: inline, a file, or - for standard input.")],
    analyst: Analyst = None,
    force: Annotated[
        bool, typer.Option("--force", help="Open it even if its promise is not informative.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Reserve a stream's cost and open it.

    With the mechanism "auto", the best mechanism for the workload is chosen. A stream whose promise is not informative is refused
    without --force.
    """
    spec = parse_document(opening_adapter(), stream)
    with Client() as client:
        with warnings.catch_warnings(record=True) as opening_warnings:
            warnings.simplefilter("always", UserWarning)
            receipt = client.open(spec, analyst=analyst, acknowledge=force)
        grant, source = client.grant(spec.source, spec.stream), client.budget(spec.source).source
        has_marks = isinstance(source, EventsSource) and source.clock == "marks"
        missed = client.missed_events(spec.source, spec.stream) if has_marks else None
    rho = "" if grant.cost.rho is None else f" (ρ {grant.cost.rho:.4g})"
    lines: list[str | None] = [
        f"stream {spec.stream} is open at {requested_amount(grant.spec)}{rho} ({grant.calibration.method})"
    ]
    if receipt.compared:
        lines.append(describe_choice(receipt.compared))
        if isinstance(spec.mechanism, Auto) and source.neighbors == "add-remove":
            lines.append(remark_on_rows(spec.mechanism.rows, grant.calibration.alpha))
    if (standing := grant.spec.standing) is not None:
        lines.append("; ".join(filter(None, (describe_standing_query(grant.spec, source), missed))))
        if isinstance(source, EventsSource):
            now = time.time()
            report = asyncio.run(
                inspect_live_topic(local_settings(), source, needed_retention_ms(standing, source, now))
            )
            lines.append(describe_first_answer(standing, source, now) if report.problem is None else None)
            unfit = f"no window is asked yet: {report.problem}" if report.is_missing else report.problem
            print_warnings(filter(None, [unfit, report.warning]))
            print_warnings(str(one.message) for one in opening_warnings)
    lines += [] if as_json else _promise_lines(grant, source)
    if receipt.windows is not None:
        lines.append(describe_window_count(receipt.windows, period_of(source), grant.calibration))
    show_result(grant, *lines, as_json=as_json)


_MAX_LIVE_SOURCES: Final = 8
"""Maximum number of live sources whose topics a list inspects."""


@app.command("list")
def list_streams(
    source: Annotated[str | None, typer.Argument(help="Only this source's streams.")] = None,
    all_periods: AllPeriods = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="List a page of at most N streams by name, each period separately.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Begin the page after this stream.")] = None,
    as_json: AsJson = False,
) -> None:
    """List streams; on a source with periods, list only each stream's latest period.

    A page, or a list as JSON, has the ledger's records alone: not that a stream is not answering or that feeds refuse its
    topic, nor its last answers.
    """
    with Client() as client:
        grants = client.list_streams(source, limit=limit, after=after, periods=True)
        if limit is None:
            grants.sort(key=lambda one: (one.spec.source, one.spec.stream))
        is_page = as_json or limit is not None or after is not None
        shown = [*map(ShownGrant, grants)] if is_page else join_grants(client, grants)
        asked = {registered_name(one.spec.source) for one in grants if one.spec.standing and one.state == "open"}
        live_sources = [] if is_page else [client.budget(one).source for one in sorted(asked)[:_MAX_LIVE_SOURCES]]
    if as_json:
        show_json(grants)
        return
    all_periods = all_periods or limit is not None or after is not None
    lines = group_by_name(shown, lambda one: one.grant.spec.stream, every=all_periods)
    full = f"; for the next page add '--after {lines[-1].name}'" if len(lines) == limit else ""
    none = "no streams; open one with 'sotto stream open'" if after is None else f"no streams after '{after}'"
    show_table(
        f"{format_count(len(lines), 'stream')}{full}" if lines else none,
        ["stream", "period", "source", "mechanism", "state", "cost", "spent", "charged"],
        [
            [
                name,
                period,
                one.grant.spec.source if all_periods else registered_name(one.grant.spec.source),
                one.grant.spec.mechanism.kind,
                one.state,
                format_amount(one.grant.cost),
                format_amount(one.totals.spent),
                one.charged,
            ]
            for name, one, period in lines
        ],
        optional=["period"],
    )
    for one in (line.item for line in lines if line.item.state == "not answering"):
        say(f"{one.grant.spec.stream} is not answering: {one.reason}", soft_wrap=True)
    for live_source in live_sources:
        warn_about_topic(live_source)


@app.command("extend")
def extend(
    names: Names,
    epsilon: Annotated[
        float,
        typer.Option(
            help="ε to add. It pays for whole charged answers; a rest that is too small for an answer is not spent."
        ),
    ],
    delta: Annotated[
        float,
        typer.Option(
            help="δ to add. With δ, a large ε pays for more answers on streams whose charges are independent."
        ),
    ] = 0.0,
    analyst: Annotated[
        str | None,
        typer.Option(help="Request it as the analyst who opened the stream, whose allotments pay in either case."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grant a stream further charged answers; it keeps its measurements."""
    with Client() as client:
        source, stream = _resolve_names(client, names)
        receipt = client.extend(source, stream, epsilon, delta, analyst=analyst)
        grant, declared = client.grant(source, stream), client.budget(source).source
    cutoff = charged_answers(grant.calibration, grant.extensions)
    cost = format_amount(receipt.granted or grant.cost)
    count = format_count(receipt.answers or 0, "more charged answer")
    text = f"stream {grant.spec.stream}: {count} for {cost}; {cutoff:,} in all"
    promised = [] if as_json else _promise_lines(grant, declared)
    if (standing := grant.spec.standing) is not None and isinstance(declared, EventsSource):
        promised += [describe_next_answer(standing, declared, time.time())] * grant.extensions[-1].resumes
    show_result(receipt, text, *promised, as_json=as_json)
    if standing is not None:
        warn_about_topic(declared)


@app.command("close")
def close(names: Names, as_json: AsJson = False) -> None:
    """Close a stream and refund its provably unspent grant to its source."""
    _end_stream(names, lambda client, source, stream: client.close(source, stream), as_json=as_json)


@app.command("halt")
def halt(names: Names, as_json: AsJson = False) -> None:
    """Stop a stream from answering, for good."""
    _end_stream(names, lambda client, source, stream: client.halt(source, stream), as_json=as_json)


@app.command("show")
def show(names: Names, as_json: AsJson = False) -> None:
    """Show a stream's grant, with the totals that its worker has reported since the ledger's."""
    with Client() as client:
        source, stream = _resolve_names(client, names)
        grant, declared = client.grant(source, stream), client.budget(source).source
        [shown] = join_grants(client, [grant])
        missed = client.missed_events(source, stream)
    if as_json:
        newer = {name: getattr(shown.totals, name) for name in ("answered", "tops", "surplus", "spent")}
        show_json(displayed_grant(grant.model_copy(update=newer)))
        return
    show_table(
        f"{grant.spec.stream} on {grant.spec.source}: {shown.state}{f' ({shown.reason})' if shown.reason else ''}",
        ["method", "α", "requested", "cost", "spent", "refunded", "answered", "charged", "as of"],
        [
            [
                grant.calibration.method,
                format_error_bound(grant.calibration.alpha, grouped=True),
                requested_amount(grant.spec),
                format_amount(grant.cost),
                format_amount(shown.totals.spent),
                format_amount(grant.refunded),
                str(shown.totals.answered),
                shown.charged,
                shown.as_of,
            ]
        ],
    )
    if getattr(declared, "has_periods", False):
        periods = f"'sotto stream list {source} --all' shows the streams of its periods"
        say(f"a model, which spends nothing; {periods}", soft_wrap=True)
    for meaning in filter(None, (_describe_charged(shown), _describe_spending(grant))):
        say(meaning, soft_wrap=True)
    is_halted = grant.ending is not None and not says_exhausted(grant.reason)
    reason = f"exhausted: {shown.reason}" if shown.state == "exhausted" and not is_halted else grant.reason
    if remedy := describe_end_remedy(grant.spec.stream, reason, grant.calibration):
        say(f"for further answers: {remedy}", soft_wrap=True)
    if grant.spec.standing is not None:
        say("; ".join(filter(None, (describe_standing_query(grant.spec, declared), missed))), soft_wrap=True)
        if grant.state == "open":
            warn_about_topic(declared)
    for line in _promise_lines(grant, declared):
        say(line, soft_wrap=True)
    is_laplace = grant.spec.mechanism.kind == "laplace"
    used = shown.used if is_laplace and grant.cost.rho is None else 0
    if shown.state == "exhausted":
        # The ε of questions with an alpha add up under zCDP, too.
        pays_more = is_laplace and not shown.reason and shown.totals.spent.epsilon < grant.cost.epsilon
        promised = _last_promised_answer(grant)
        say(describe_used_up_grant(shown.totals.answered, promised, used, pays_more=pays_more), soft_wrap=True)
    if not isinstance(grant.spec.mechanism, RandomizedResponse):
        print_warnings(warn_about_promise(shown.totals.answered, grant.calibration, used))


_COUNTED_CHARGES: Final = {
    "sparse_vector": ("'above' answers", "the threshold's noise"),
    "hypothesis": ("updates of the hypothesis", "the threshold's noise"),
    "estimate": ("measurements for a question", "the threshold's noise, and on the estimate's first measurements"),
}
"""What counts as a charged answer, and what ε is spent on beside it, by kind of calibration; for all others, each answer."""


def _describe_charged(shown: ShownGrant) -> str:
    """Describe what ``charged`` counts if that is not each answer, and what extensions have added; else empty."""
    found, texts = _COUNTED_CHARGES.get(shown.grant.calibration.kind), list[str]()
    if found is not None:
        texts.append(f"counts {found[0]}; from the first answer on, ε is also spent on {found[1]}")
    if shown.used != shown.totals.tops:
        count = format_count(shown.totals.tops, "charged answer")
        texts.append(f"{count} cost as much as {shown.used} (rounded up), because alpha sets a question's price")
    if added := sum(one.answers for one in shown.grant.extensions):
        texts.append(f"extensions have added {format_count(added, 'charged answer')}, which the cost includes")
    return f"charged: {'; '.join(texts)}" if texts else ""


def _describe_spending(grant: GrantRecord) -> str:
    """Describe that the first of several answers spends the whole cost; empty if the charges add up."""
    pure, is_once = is_pure(grant.calibration), grant.calibration.kind == "running_count"
    is_sum = not is_once and (pure or grant.calibration.kind == "unknown_groups")
    if (grant.cost.rho is None and is_sum) or not charged_answers(grant.calibration, ()):
        return ""
    what = "ρ" if grant.cost.rho is not None else "ε" if pure else "(ε, δ)"
    extension = "" if is_once else " before an extension"
    return f"spent: {what} counts in full from the first answer on; further answers add nothing to it{extension}"


def _last_promised_answer(grant: GrantRecord) -> int | None:
    """Return the number of the last answer that α covers, also at the lower probability after an extension."""
    promised = last_promised_answer(grant.calibration)
    if promised is None or not isinstance(grant.calibration, AnswersCalibration):
        return promised
    return promised + sum(one.answers for one in grant.extensions)


def _promise_lines(grant: GrantRecord, source: Source) -> list[str]:
    try:
        with explain_missing_packages():
            from stream.privacy.planning.promises import promises  # noqa: PLC0415  (a client may lack its packages)
    except Missing as missing:
        return [f"error bounds cannot be computed here: {missing}"]
    bound_text = describe_promise_bound(grant.spec, describe_source_bound(source), getattr(source, "total", None))
    rows: Sequence[str] = ()
    if isinstance(source, TableSource):
        rows = describe_rows(source)
    elif isinstance(source, RecordsSource) and source.contributions == 1:
        rows = (EVENT_IS_PERSON,)
    return [*map(str, promises(grant.spec, grant.calibration, grant.extensions, bound_text)), *rows]


def _end_stream(names: Sequence[str], end: Callable[[Client, str, str], Receipt], *, as_json: bool) -> None:
    with Client() as client:
        receipt = end(client, *_resolve_names(client, names))
    outcome = "closed" if receipt.state == "closed" else receipt.outcome
    show_result(receipt, f"stream {names[-1]}: {outcome}", as_json=as_json)


def _resolve_names(client: Client, names: Sequence[str]) -> tuple[str, str]:
    """Return a stream's source and name; the source is looked up if only the stream is given."""
    if len(names) > 2:
        raise CommandError(f"names: {len(names)} are given; give one stream, or its source and the stream")
    return (names[0] if len(names) == 2 else client.source_of(names[-1])), names[-1]
