"""``sotto top``: shows the monitor's figures in a terminal, updated every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Annotated, TypeVar

import typer
from aiohttp import ClientError, ClientSession, ClientTimeout
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas import Amount, registered_name
from stream.cli.manage.record_rows import short_start
from stream.cli.monitor_commands import find_monitor
from stream.cli.output import CommandError, console, escape_text
from stream.formatting import format_error_bound, format_share
from stream.monitor.api.models import (
    ApiModel,
    Overview,
    Problem,
    Session,
    SourcePage,
    SourceRow,
    StreamPage,
    StreamRow,
)
from stream.monitor.api.service_models import MemberRow, RefusalsView, RefusedEvents, RejectedView, WorkersView
from stream.processing.dead_letters import describe_refused_share
from stream.settings import Settings

TIMEOUT = 5.0
"""Longest wait for the monitor's response, in seconds."""
BAR_WIDTH = 20
SILENT_SECONDS = 20.0
"""Two intervals of heartbeats. Kafka lists a dead process for 45 s."""

_STATES = {"open": "green", "exhausted": "yellow", "halted": "red", "closed": "bright_black"}
_View = TypeVar("_View", bound=ApiModel)


class Detail(IntEnum):
    """The amount of detail that a table shows, from most to least."""

    ALL = 0
    NARROW = 1
    MINIMAL = 2
    FOLDED_NAMES = 3
    """Table with the columns of ``MINIMAL``, whose long names are broken into several lines."""


@dataclass(frozen=True)
class ScreenData:
    """The API's answers from which one screen is drawn."""

    overview: Overview
    sources: SourcePage
    streams: StreamPage
    workers: WorkersView
    rejected: RejectedView
    refusals: RefusalsView | None = None
    """Refused events of live topics; None if the token is not an operator's."""


def top(
    url: Annotated[
        str | None,
        typer.Option(
            help="The monitor's address. Default: SOTTO_MONITOR_HOST and SOTTO_MONITOR_PORT, or the address of a 'sotto up' in this folder."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and exit.")] = False,
    rows: Annotated[
        int, typer.Option(help="Maximum number of sources, and of streams, to list.", min=1, max=500)
    ] = 10,
) -> None:
    """Show budgets, busiest streams, services and refused events live, with a viewer's token.

    An operator's token also shows the refused events of live topics.
    """
    if not once and not console.is_terminal:
        raise CommandError(
            "a live display needs a terminal, but standard output is not one; give --once to print one picture"
        )
    address, token = find_monitor(url, Settings())
    asyncio.run(_run(address, token, rows, once=once))


async def _run(address: str, token: str, rows: int, *, once: bool) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with ClientSession(headers=headers, timeout=ClientTimeout(total=TIMEOUT)) as session:
        data = await fetch(session, address, rows)
        if once:
            console.print(draw_screen(data, console.chart_width), width=console.chart_width)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw_screen(data, console.width, live=True), refresh=True)
                await asyncio.sleep(1.0)
                try:
                    data = await fetch(session, address, rows)
                except CommandError as error:
                    stale = Text(
                        f"{escape_text(str(error))}; these are the figures of {_format_time(data.overview.time)}",
                        "bold red",
                    )
                    live.update(Group(stale, draw_screen(data, console.width)), refresh=True)


async def fetch(session: ClientSession, address: str, rows: int) -> ScreenData:
    """Fetch the data of one screen; raise CommandError if the monitor does not respond."""
    is_operator = (await _get(session, f"{address}/api/session", Session)).role == "operator"
    return ScreenData(
        await _get(session, f"{address}/api/overview", Overview),
        await _get(session, f"{address}/api/sources?sort=left_share&limit={rows}", SourcePage),
        await _get(session, f"{address}/api/streams?sort=below_rate&descending=true&limit={rows}", StreamPage),
        await _get(session, f"{address}/api/workers", WorkersView),
        await _get(session, f"{address}/api/rejected", RejectedView),
        await _get(session, f"{address}/api/refusals", RefusalsView) if is_operator else None,
    )


async def _get(session: ClientSession, address: str, model: type[_View]) -> _View:
    try:
        async with session.get(address) as response:
            body = await response.read()
            if response.status != 200:
                raise CommandError(f"the monitor refused: {_problem_message(body, response.status)}")
            return model.model_validate_json(body)
    except (ClientError, TimeoutError, OSError) as error:
        raise CommandError(
            f"no monitor answers at {address.split('/api/', maxsplit=1)[0]} ({type(error).__name__}); "
            "start one with 'sotto serve monitor', or give --url"
        ) from None
    except ValidationError:
        raise CommandError(f"{address} is not a monitor of this version; give --url") from None


def _problem_message(body: bytes, status: int) -> str:
    try:
        return Problem.model_validate_json(body).message
    except ValidationError:
        return f"status {status}"


def draw_screen(data: ScreenData, width: int, *, live: bool = False) -> RenderableType:
    """Draw one screen for a terminal of ``width`` columns."""
    parts: list[RenderableType] = [_overview_line(data.overview, live=live), Text()]
    parts += [_widest_table(width, partial(_sources_table, data.sources)), Text()]
    parts += [_widest_table(width, partial(_streams_table, data.streams)), Text()]
    parts += [_widest_table(width, partial(_services_table, data.workers)), Text()]
    unready = [one for one in data.workers.members if one.not_ready is not None]
    parts += [Text(escape_text(f"{one.member} is not ready: {one.not_ready}"), "red") for one in unready]
    if any(member.role == "feed" for member in data.workers.members):
        parts.append(Text("A feed's lag and events are those of the topic of partial counts.", "bright_black"))
    if not data.overview.budget_runs:
        parts.append(
            Text(
                "No budget service runs, so no source's 'spent' grows: start one with 'sotto serve budget'", "red"
            )
        )
    parts.append(_rejected_line(data.rejected))
    parts += [Text(escape_text(one.describe()), "red") for one in data.overview.stalled]
    if data.refusals is not None:
        parts += [_refusal_line(one, data.overview.time) for one in data.refusals.items]
    elif any(row.kind == "events" for row in data.sources.items):
        parts.append(Text("Refused events of live topics: for operators' tokens only", "bright_black"))
    return Group(*parts)


def _widest_table(width: int, table_of: Callable[[Detail], Table]) -> Table:
    """Return the most detailed table in which no text is cut; the last level breaks names."""
    options = console.options.update(width=width)
    for detail in Detail:
        table = table_of(detail)
        # Rich ends cut text with "…", which no name and no number contains.
        if not any("…" in segment.text for segment in console.render(table, options)):
            break
    return table


def _overview_line(overview: Overview, *, live: bool) -> Text:
    minute = next(rate for rate in overview.rates if rate.window_seconds == 60)
    states = overview.streams.model_dump()
    line = Text.assemble(("Sotto ", "bold"), _format_time(overview.time), "  ")
    for state, style in _STATES.items():
        line.append(f"{states[state]:,} {state}  ", style)
    line.append(
        f"charged {_format_rate(minute.above)}/s  free {_format_rate(minute.below)}/s  waiting {_format_lag(overview)}  rejected {overview.rejected:,}"
    )
    if not overview.ready:
        line.append("  not up to date: /readyz of the monitor says why", "yellow")
    if live:
        line.append("  Ctrl-C exits", "bright_black")
    return line


def _sources_table(page: SourcePage, detail: Detail) -> Table:
    table = _table(f"Sources, least left first ({len(page.items)} of {page.total:,})")
    with_bar = detail <= Detail.NARROW
    _add_name(table, "source", detail)
    for name in ("state", "budget") if with_bar else ("state",):
        table.add_column(name, no_wrap=True)
    _add_name(table, "left", detail)  # it may name a population
    for name in ("granted", "spent", "refunded", "total") if detail is Detail.ALL else ("spent",):
        table.add_column(name, justify="right", no_wrap=True)
    for line in page.items:
        row = line.current or line
        shared = 1.0 if row.population_left_share is None else row.population_left_share
        least, whose = min((row.left_share, ""), (shared, f" of {row.population}"))
        low = "bold red" if least < 0.1 else ""
        amounts = (row.granted, row.spent, row.refunded, row.total) if detail is Detail.ALL else (row.spent,)
        table.add_row(
            _format_name(line.source, row.starts),
            _format_state(line.state),
            *([_draw_budget_bar(row)] if with_bar else []),
            Text(format_share(least) + escape_text(whose), low),
            *map(_format_amount, amounts),
        )
    return _with_hint(table, "none yet: register one with 'sotto source add'", page.items)


def _streams_table(page: StreamPage, detail: Detail) -> Table:
    wide = detail is Detail.ALL
    table = _table(f"Streams, most other answers first ({len(page.items)} of {page.total:,})")
    _add_name(table, "stream", detail)
    for name in ("state", "mechanism", "charged") if wide else ("state", "charged"):
        table.add_column(name, no_wrap=True)
    for name in ("charged/s", "other/s", "answered", "α", "dry in") if wide else ("/s", "other/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in page.items:
        table.add_row(*_stream_cells(row, wide=wide))
    return _with_hint(table, "none yet: open one with 'sotto stream open'", page.items)


def _stream_cells(line: StreamRow, *, wide: bool) -> list[Text]:
    row, name = line.current or line, _format_name(line.stream, (line.current or line).starts)
    minute = next(rate for rate in row.rates if rate.window_seconds == 60)
    charges = row.tops if row.cutoff is None or row.tops_left is None else row.cutoff - row.tops_left
    used = "once" if row.cutoff is None else f"{charges:,}/{row.cutoff:,}"
    cutoff = row.cutoff if wide else None
    bar = _draw_bar([(charges / cutoff, "█", "magenta")], 8) + Text(" ") if cutoff else Text()
    ending = row.ending if row.state == "open" and row.ending else None
    rates = [Text(_format_rate(minute.above)), Text(_format_rate(minute.below))]
    state = Text(f"to be {ending}", "yellow") if ending else _format_state(row.state)
    if row.refused and not ending:
        state = Text("not answering", "red")
    if not wide:
        return [name, state, bar + Text(used), *rates]
    alpha = format_error_bound(row.alpha, grouped=True)
    vacuous = " (vacuous)" if any(one.warning for one in row.promises) else ""
    dry = "–" if row.dry_in is None else _format_duration(row.dry_in)
    rest = map(Text, (f"{row.answered:,}", f"{alpha}{vacuous}", dry))
    return [name, state, _escaped_text(row.mechanism), bar + Text(used), *rates, *rest]


def _services_table(workers: WorkersView, detail: Detail) -> Table:
    wide = detail is Detail.ALL
    table = _table("Services")
    _add_name(table, "process", detail)
    for name in ("service", "host") if wide else ("service",):
        table.add_column(name, no_wrap=True)
    table.add_column("partitions")
    for name in ("lag", "events/s", "restoring"):
        table.add_column(name, justify="right", no_wrap=True)
    for member in workers.members:
        host = [_escaped_text(member.host)] if wide else []
        is_silent = member.heard is not None and workers.time - member.heard > SILENT_SECONDS
        table.add_row(
            _escaped_text(member.member),
            Text(f"{member.role}, silent", "red") if is_silent else Text(member.role),
            *host,
            Text(", ".join(map(str, member.partitions)) or "none"),
            Text(_format_lag(member)),
            Text(_format_rate(member.events_per_second)),
            _format_restore_share(member, workers),
        )
    return _with_hint(
        table, "none runs: start them with 'sotto serve worker' and 'sotto serve budget'", workers.members
    )


def _format_restore_share(member: MemberRow, workers: WorkersView) -> Text:
    restores = [
        row.restore for row in workers.partitions if row.member == member.member and row.role == member.role
    ]
    under_way = [restore for restore in restores if restore is not None and restore.phase == "restoring"]
    if not under_way:
        return Text("–")
    total = sum(restore.total for restore in under_way)
    share = sum(restore.records for restore in under_way) / total if total else 0.0
    return Text(format_share(min(share, 1.0)), "yellow")


def _rejected_line(rejected: RejectedView) -> Text:
    if not rejected.total:
        return Text("Rejected: none", "bright_black")
    reasons = ", ".join(f"{escape_text(reason.code)} {reason.count:,}" for reason in rejected.reasons)
    return Text(f"Rejected {rejected.total:,}: {reasons}", "yellow")


def _refusal_line(refused: RefusedEvents, now: float) -> Text:
    when = f", {_format_duration(max(now - refused.last, 0.0))} ago"
    parts = describe_refused_share(refused.sources, refused.share, refused.events, refused.reason, when)
    return Text(": ".join(map(escape_text, parts)), "red")


def _format_name(name: str, period: str | None) -> Text:
    return (
        _escaped_text(name)
        if period is None
        else Text.assemble(_escaped_text(registered_name(name)), (f" {short_start(period)}", "bright_black"))
    )


def _add_name(table: Table, name: str, detail: Detail) -> None:
    folds_names = detail is Detail.FOLDED_NAMES
    table.add_column(name, no_wrap=not folds_names, overflow="fold" if folds_names else "ellipsis")


def _table(title: str) -> Table:
    return Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bright_black",
    )


def _with_hint(table: Table, hint: str, items: Sequence[object]) -> Table:
    if items:
        return table
    empty = Table(title=table.title, title_justify="left", box=None, show_header=False)
    empty.add_row(Text(hint, "bright_black"))
    return empty


def _draw_budget_bar(row: SourceRow) -> Text:
    """Draw a bar: the budget's spent share, the granted but unspent share, and the rest."""
    total = _epsilon_or_rho(row, row.total) or 1.0
    spent = min(_epsilon_or_rho(row, row.spent) / total, 1.0)
    granted = max(1.0 - _epsilon_or_rho(row, row.left) / total - spent, 0.0)
    return _draw_bar([(spent, "█", "blue"), (granted, "▒", "cyan")], BAR_WIDTH)


def _draw_bar(segments: Sequence[tuple[float, str, str]], width: int) -> Text:
    bar, at, filled = Text(), 0.0, 0
    for share, sign, style in segments:
        at += share
        end = min(round(at * width), width)
        bar.append(sign * max(end - filled, 0), style)
        filled = max(filled, end)
    bar.append("░" * (width - filled), "bright_black")
    return bar


def _format_state(state: str) -> Text:
    return Text(state, _STATES.get(state, ""))


def _epsilon_or_rho(row: SourceRow, amount: Amount) -> float:
    """Return an amount as ε, or as ρ if a larger share of ρ than of ε is left (zCDP)."""
    total, left = row.total, row.left
    if not total.rho or left.rho is None or amount.rho is None:
        return amount.epsilon
    in_rho = bool(left.delta) or left.rho / total.rho >= left.epsilon / total.epsilon
    return amount.rho if in_rho else amount.epsilon


def _format_amount(amount: Amount) -> Text:
    return Text(f"ε {amount.epsilon:.4g}" if amount.rho is None else f"ρ {amount.rho:.4g}")


def _format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _format_lag(view: Overview | MemberRow) -> str:
    if view.lag is None:
        return "unknown"
    return f"{view.lag:,} to {view.lag + view.hidden_lag:,}" if view.hidden_lag else f"{view.lag:,}"


def _format_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _format_duration(seconds: float) -> str:
    for name, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.2g} s"


def _escaped_text(value: str) -> Text:
    """Return a name with control characters escaped, because names come from topics."""
    return Text(escape_text(value))
