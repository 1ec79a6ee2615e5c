"""``sotto sql`` answers one SELECT; ``sotto shell`` answers many, with completion."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from schemas import Categories, EventsSource, Source, TableSource
from stream.cli.manage.query_commands import (
    UNINFORMATIVE_MARK,
    DryRun,
    ExitStatus,
    MaxPrice,
    check_timeout,
    exit_status,
    parse_max_price,
)
from stream.cli.output import escape_text, print_warnings, say, show_json, show_table
from stream.client.async_client import AsyncClient
from stream.errors import SottoError, Timeout, Unknown, describe_reason
from stream.formatting import NOT_INFORMATIVE, format_error_bound, format_estimate, format_interval
from stream.optional_packages import explain_missing_packages
from stream.privacy.composition.costs import charged_answers
from stream.questions.question_forms import ANSWER_TIMEOUT
from stream.questions.result_text import ERROR_SUFFIX, HIGH_SUFFIX, INFORMATIVE_SUFFIX, LOW_SUFFIX, ends_of
from stream.sql.aggregates import StatementError
from stream.sql.result_tables import Table, format_cost, format_price
from stream.sql.select_statements import parse_statement


def sql(
    statement: Annotated[
        str, typer.Argument(help="One SELECT of COUNT, SUM, AVG … from a source or stream; in quotes.")
    ],
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for each answer.", callback=check_timeout)
    ] = ANSWER_TIMEOUT,
    max_price: MaxPrice = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer a SELECT, each number with its ± and its 95 % confidence interval, and print the cost.

    FROM names a stream or a source. For a source, its cheapest open stream of pmw, laplace or histogram answers, and
    the last line names this stream and the reason. The exit status is as for 'sotto ask'; it is also 3 for a
    statement that is not supported or names an unknown source or stream.
    """
    try:
        table = asyncio.run(_ask(statement, timeout, 0.0 if dry_run else parse_max_price(max_price)))
    except (StatementError, Unknown, Timeout) as error:
        typer.echo(f"error: {escape_text(str(error))}", err=True)
        wrong = not isinstance(error, Timeout)
        raise typer.Exit(ExitStatus.REJECTED if wrong else ExitStatus.NO_ANSWER) from None
    print_warnings(table.warnings)
    failed = next((one for one in table.results if exit_status(one) and not (dry_run and one.is_priced)), None)
    if dry_run and failed is None:
        if as_json:
            show_json({"stream": table.stream, "price": table.price, "questions": len(table.results)})
        else:
            say(f"{format_price(table)}; nothing was charged")
        return
    if as_json:
        why = {} if table.why is None else {"why": table.why}
        warnings = {"warnings": list(table.warnings)} if table.warnings else {}
        cost = table.cost.model_dump(exclude_defaults=True)
        show_json({"stream": table.stream, **why, **cost, "rows": table.rows(), **warnings})
    else:
        show_statement(table)
    if failed is not None:
        say(f"{failed.outcome}: {describe_reason(failed)}")
        raise typer.Exit(exit_status(failed))


async def _ask(statement: str, timeout: float, max_price: float | str | None) -> Table:  # noqa: ASYNC109
    async with AsyncClient() as client:
        return await client.sql(statement, timeout=timeout, outcomes=True, max_price=max_price)


def show_statement(table: Table) -> None:
    """Print a statement's rows, each number with its ± and interval, and the cost."""
    names = [name for name in table.columns if not name.endswith((ERROR_SUFFIX, HIGH_SUFFIX))]
    heads = [
        "95 %" if name.endswith(LOW_SUFFIX) else "" if name.endswith(INFORMATIVE_SUFFIX) else name
        for name in names
    ]
    show_table("", heads, ([_cell(row, name) for name in names] for row in table))
    say(f"{table.stream}: {format_cost(table)}")


def _cell(row: dict[str, Any], name: str) -> str:
    if name.endswith(LOW_SUFFIX):
        measure = name.removesuffix(LOW_SUFFIX)
        ends = ends_of(row, measure)
        if ends is None or isinstance(ends[0], str):
            return "–" if ends is None else " to ".join(ends)
        return format_interval(ends, row[measure], grouped=True)
    if name.endswith(INFORMATIVE_SUFFIX):
        return "" if row[name] else UNINFORMATIVE_MARK
    if name + ERROR_SUFFIX not in row:
        return str(row[name])
    number, error = row[name], row[name + ERROR_SUFFIX]
    if number is None or isinstance(number, str):  # a text is a quantile of dates or categories
        return number or "–"
    text = format_estimate(number, error, ends_of(row, name), grouped=True)
    return text if error is None else f"{text} ± {format_error_bound(error, grouped=True)}"


if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.document import Document

MAX_STREAMS: Final = 1_000
"""Maximum number of streams whose names are completed."""
CONFIRMED_SHARE: Final = 0.1
"""Share of a stream's grant above which a price must be confirmed."""
_KEYWORDS: Final = (
    *("SELECT", "COUNT(*)", "SUM(", "AVG(", "MEDIAN(", "QUANTILE(", "STDDEV(", "VARIANCE("),
    *("FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "AND", "OR", "NOT", "IN (", "BETWEEN"),
)
_HELP: Final = """SELECT …;            answer a statement; its price is shown first
\\price SELECT …      show the highest possible price, and charge nothing
\\sources             list the sources
\\streams [SOURCE]    list the open streams
\\describe SOURCE     list a source's attributes
\\quit                leave (or Ctrl-D)"""

_COMMAND_WORDS: Final = {"help": "\\help", "quit": "\\quit", "exit": "\\quit"}

_FROM: Final = re.compile(r'\bfrom\s+"?([\w./-]+)', re.IGNORECASE)
_UNFINISHED_VALUE: Final = re.compile(
    r"""["]?([\w-]+)["]?\s*(?:=|<>|!=|in\s*\((?:\s*'[^']*'\s*,)*)\s*'([^']*)$""", re.IGNORECASE
)
_AFTER_FROM: Final = re.compile(r'(?:\bfrom|\\streams|\\describe)\s+"?([\w./-]*)$', re.IGNORECASE)


def shell(
    yes: Annotated[bool, typer.Option("--yes", help="Ask at any price, without a confirmation.")] = False,
) -> None:
    """Answer SELECTs interactively, each with its price before it is asked.

    A statement may take several lines and ends with a semicolon. A price above a tenth of the stream's grant needs a confirmation.
    Statements from a file or pipe are answered in turn; without --yes, statements that need a confirmation are skipped.
    The exit status is then 1 if one fails or is skipped.
    """
    if asyncio.run(_run(confirms=not yes)) and not sys.stdin.isatty():
        raise typer.Exit(1)


async def _run(*, confirms: bool) -> bool:
    """Run a shell until its input ends; return whether it printed an error."""
    async with AsyncClient() as client:
        catalog = await Catalog.fetch(client)
        session = ShellSession(client, catalog, confirms=confirms)
        if sys.stdin.isatty():
            say(
                f"sources: {len(catalog.sources)}, open streams: {len(catalog.streams)}; \\help lists the commands"
            )
        async for line in _read_statements(catalog):
            if not await session.run(line):
                break
        return session.has_failed


async def _read_statements(catalog: Catalog) -> AsyncIterator[str]:
    """Yield the statements and commands of a terminal, or of the lines of a file or pipe."""
    parts: list[str] = []
    lines = _prompt_lines(catalog, parts) if sys.stdin.isatty() else _piped_lines()
    async for line in lines:
        word = line.strip()
        if not word or (word.startswith("--") and not parts):
            continue
        parts.append(word if parts else _COMMAND_WORDS.get(word.rstrip(";").lower(), word))
        if parts[0].startswith("\\") or line.rstrip().endswith(";"):
            yield "\n".join(parts).rstrip("; ")  # a comment ends with its line
            parts.clear()
    if parts:
        yield "\n".join(parts)


async def _piped_lines() -> AsyncIterator[str]:
    for line in sys.stdin:
        yield line


def _create_prompt(**options: Any) -> PromptSession[str]:
    with explain_missing_packages():
        from prompt_toolkit import PromptSession  # noqa: PLC0415  (an optional package)
    return PromptSession(**options)


async def _prompt_lines(catalog: Catalog, parts: list[str]) -> AsyncIterator[str]:
    with explain_missing_packages():
        from prompt_toolkit.completion import Completer, Completion  # noqa: PLC0415

    class CatalogCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            del complete_event
            text = " ".join([*parts, document.text_before_cursor])
            for found, typed in catalog.complete(text):
                yield Completion(found, start_position=-typed)

    prompts = _create_prompt(completer=CatalogCompleter(), complete_while_typing=False)
    while True:
        try:
            yield await prompts.prompt_async("   ... " if parts else "sotto> ")
        except KeyboardInterrupt:
            parts.clear()
        except EOFError:
            return


class Catalog:
    """Names and values that a shell completes: sources, open streams, attributes and categories."""

    def __init__(self, sources: Iterable[Source], streams: Iterable[tuple[str, str]]) -> None:
        """``streams`` are pairs of an open stream and its source."""
        self.sources = {source.source: source for source in sources}
        self.streams = dict(streams)
        self.is_cut = False
        """True if the ledger may have more streams."""

    @classmethod
    async def fetch(cls, client: AsyncClient) -> Catalog:
        """Read the ledger's sources and its first ``MAX_STREAMS`` streams."""
        catalog = cls([], [])
        await catalog.read(client)
        return catalog

    async def read(self, client: AsyncClient) -> None:
        """Read the present sources and streams."""
        records = await client.list_sources()
        grants = await client.list_streams(limit=MAX_STREAMS)
        self.sources = {record.source.source: record.source for record in records}
        self.streams = {
            one.spec.stream: one.spec.source for one in grants if one.state == "open" and one.ending is None
        }
        self.is_cut = len(grants) == MAX_STREAMS

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the declared attributes of a source or of a stream's source; empty if none are declared."""
        source = self.sources.get(self.streams.get(name, name))
        return dict(source.attributes) if isinstance(source, TableSource | EventsSource) else {}

    def complete(self, text: str) -> list[tuple[str, int]]:
        """Return the words that may follow ``text``, each with the number of typed characters that it replaces."""
        named = _FROM.search(text)
        attributes: dict[str, Any] = {}
        for one in [named[1]] if named else self.sources:
            attributes |= self.attributes(one)
        if opened := _UNFINISHED_VALUE.search(text):
            domain = attributes.get(opened[1])
            values = [str(value) for value in domain.values] if isinstance(domain, Categories) else []
            return _find_completions([value.replace("'", "''") + "'" for value in values], opened[2])
        if after := _AFTER_FROM.search(text):
            return _find_completions([*self.sources, *self.streams], after[1])
        typed = re.split(r"[\s(,]", text)[-1]
        return _find_completions([*attributes, *_KEYWORDS], typed) if typed else []


def _find_completions(words: Iterable[str], typed: str) -> list[tuple[str, int]]:
    start = typed.casefold()
    return [(word, len(typed)) for word in dict.fromkeys(words) if word.casefold().startswith(start)]


@contextmanager
def _explain_interruption(meaning: str) -> Iterator[None]:
    """Print what Ctrl-C means for questions in progress; it then ends the shell."""
    try:
        yield
    except asyncio.CancelledError:
        typer.echo(f"interrupted: {meaning}", err=True)
        raise


class ShellSession:
    """Runs the statements and commands of a shell; errors are printed, and the shell continues."""

    def __init__(self, client: AsyncClient, catalog: Catalog, *, confirms: bool) -> None:
        """With ``confirms``, prices above ``CONFIRMED_SHARE`` of the grant need a confirmation."""
        self._client = client
        self._catalog = catalog
        self._confirms = confirms
        self._shown_warnings: dict[str, set[str]] = {}
        self.has_failed = False

    async def run(self, line: str) -> bool:
        """Run a statement or command; return False if the command leaves the shell."""
        command, _, rest = line.partition(" ")
        try:
            await self._update_catalog(command)
            match command:
                case "\\quit" | "\\q":
                    return False
                case "\\help":
                    for text in _HELP.splitlines():
                        say(text, soft_wrap=True)
                case "\\sources":
                    self._show_sources()
                case "\\streams":
                    self._show_streams(rest.strip())
                case "\\describe":
                    self._show_attributes(rest.strip())
                case "\\price":
                    await self._ask(rest, prices_only=True)
                case _ if command.startswith("\\"):
                    self._print_error(f"command: '{command}' is not known; \\help lists the commands")
                case _:
                    await self._ask(line)
        except SottoError as error:
            self._print_error(str(error))
        return True

    async def _update_catalog(self, command: str) -> None:
        """Read the catalog again for a command that lists a part of it; others may have changed the ledger."""
        if command in {"\\sources", "\\streams", "\\describe"}:
            await self._catalog.read(self._client)

    async def _ask(self, statement: str, *, prices_only: bool = False) -> None:
        with _explain_interruption("nothing was charged"):
            priced = await self._client.sql(statement, outcomes=True, max_price=0.0)
        if not any(one.is_priced for one in priced.results):
            self._show(priced)  # free answers, or a rejection
            return
        say(format_price(priced))
        if prices_only:
            say("nothing was charged")
        elif not self._confirms or await self._is_confirmed(priced):
            asked = (
                f"the questions may have been sent and are then answered and charged: 'sotto answers --stream "
                f"{priced.stream} --from-beginning' shows the answers, and 'sotto stream show {priced.stream}' the charges"
            )
            confirmed = replace(parse_statement(statement), table=priced.stream)
            with _explain_interruption(asked):
                self._show(await self._client.sql(confirmed, outcomes=True))

    async def _is_confirmed(self, priced: Table) -> bool:
        source = self._catalog.streams.get(priced.stream) or await self._client.source_of(priced.stream)
        grant = await self._client.grant(source, priced.stream)
        charges = charged_answers(grant.calibration, grant.extensions)
        share = len(priced.results) / charges if priced.price is None else priced.price / grant.spec.epsilon
        if share <= CONFIRMED_SHARE:
            return True
        say(f"that is more than {CONFIRMED_SHARE:.0%} of the stream's ε {grant.spec.epsilon:g}", soft_wrap=True)
        if not sys.stdin.isatty():
            self._print_error("statement: is skipped for its price; add --yes to ask at any price")
            return False
        try:
            reply = await _create_prompt().prompt_async("ask anyway? [y/N] ")
        except (KeyboardInterrupt, EOFError):
            return False
        return reply.strip().casefold() in {"y", "yes"}

    def _show_sources(self) -> None:
        rows = [[name, source.kind, f"{source.epsilon:g}"] for name, source in self._catalog.sources.items()]
        show_table("sources", ["source", "kind", "ε"], rows)

    def _show_streams(self, source: str) -> None:
        rows = [[name, owner] for name, owner in self._catalog.streams.items() if source in {"", owner}]
        among = f" among the first {MAX_STREAMS:,}" if self._catalog.is_cut else ""
        show_table(f"open streams{among}", ["stream", "source"], rows)

    def _show_attributes(self, name: str) -> None:
        attributes = self._catalog.attributes(name)
        if not attributes:
            self._print_error(f"source: '{name}' has no declared attributes here; \\sources lists the sources")
            return
        rows = [[attribute, domain.kind, f"{domain.size:,}"] for attribute, domain in attributes.items()]
        show_table(name, ["attribute", "kind", "values"], rows)

    def _show(self, table: Table) -> None:
        """Print a table, and the warnings about its question that the shell has not printed of its stream before."""
        shown = self._shown_warnings.setdefault(table.stream, set())
        print_warnings(one for one in table.warnings if one not in shown)
        shown.update(one for one in table.warnings if not one.startswith(NOT_INFORMATIVE))
        show_statement(table)
        for failed in [one for one in table.results if one.outcome in {"rejected", "halted"}][:1]:
            self._print_error(f"{failed.outcome}: {describe_reason(failed)}")

    def _print_error(self, text: str) -> None:
        self.has_failed = True
        typer.echo(f"error: {escape_text(text)}", err=True)
