"""``sotto ask`` sends one question, prints its answer, and warns of likely mistakes in the question."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import repeat
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from schemas import Answer, EventsSource, GrantRecord, Query, Source, TableSource
from schemas.queries import QUESTION_FIELDS, STATISTICS
from schemas.wire import describe, read_json
from stream.cli.output import AsJson, CommandError, print_warnings, read_document, say, show_json, show_table
from stream.client.async_client import AsyncClient
from stream.errors import SottoError, Timeout, Unknown, describe_reason
from stream.formatting import did_you_mean, format_count, format_error_bound, format_interval
from stream.processing.dead_letters import says_exhausted
from stream.questions import Result
from stream.questions.clamped_values import VALUE_FIELDS
from stream.questions.question_forms import DEFAULT_MAX_PRICE
from stream.questions.result_text import (
    format_choices,
    format_number,
    format_numbers,
    format_text_interval,
    format_typical_error,
    format_window,
    shown_alpha,
)
from stream.questions.results import Group


class ExitStatus(IntEnum):
    """Exit statuses of ``sotto ask``, beside 1 for a failure and 2 for wrong usage."""

    ANSWERED = 0
    REJECTED = 3
    HALTED = 4
    EXHAUSTED = 5
    NO_ANSWER = 6


MaxPrice = Annotated[
    str | None,
    typer.Option(
        help="Highest price of an answer: an ε, as 0.1, or a share of the stream's grant, as 10%. "
        "A question that may cost more is rejected without charge."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the highest possible price and charge nothing.")]

_QUESTION_FIELDS: Final = {"where", "people", *(name for name, *_ in QUESTION_FIELDS)}
"""A question needs at least one of these fields."""

_REQUIRED_OPTIONS: Final = {
    "fraction": "--where",
    "q": "--quantile",
    "min_rows": "--people",
    "bound": "--person-sum",
    "top": "--group-by",
}
"""For each field that belongs to another field's question, the option of that field."""

_COMPARED_STREAMS: Final = 1_000
"""Maximum number of streams whose names are compared with an unknown name."""

UNINFORMATIVE_MARK: Final = "not informative"
"""The mark beside a number whose error may exceed the number."""

MAX_TIMEOUT: Final = 86_400.0
"""Longest wait for an answer, in seconds."""


def check_timeout(given: float) -> float:
    """Check a timeout option, because ``min`` and ``max`` of Typer would accept NaN."""
    if not 0.0 < given <= MAX_TIMEOUT:
        raise typer.BadParameter(
            f"{given:g} is not a valid timeout; give seconds above 0, at most {MAX_TIMEOUT:g}"
        )
    return given


def ask(
    stream: Annotated[str, typer.Argument(help="The stream to ask.")],
    value: Annotated[float | None, typer.Option(help="The private value, for streams over values.")] = None,
    where: Annotated[
        str | None, typer.Option(help="On tables: count the rows that satisfy this predicate.")
    ] = None,
    total: Annotated[str | None, typer.Option("--sum", help="The attribute to sum over the rows.")] = None,
    mean: Annotated[str | None, typer.Option(help="The attribute to average over the rows.")] = None,
    quantile: Annotated[
        str | None, typer.Option(help="The attribute for a quantile over the rows: the median without --q.")
    ] = None,
    q: Annotated[
        list[float] | None,
        typer.Option("--q", help="With --quantile: a number from 0 to 1; repeat it for several."),
    ] = None,
    iqr: Annotated[str | None, typer.Option(help="The attribute for an interquartile range.")] = None,
    variance: Annotated[str | None, typer.Option(help="The attribute for a variance.")] = None,
    stddev: Annotated[str | None, typer.Option(help="The attribute for a standard deviation.")] = None,
    fraction: Annotated[bool, typer.Option(help="Ask for the share of all rows.")] = False,
    group_by: Annotated[
        list[str] | None, typer.Option(help="Count by this attribute; repeat it for each.")
    ] = None,
    top: Annotated[int | None, typer.Option(help="With --group-by: only the N largest groups.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Ask for the share of the rows that satisfy this predicate, in each group.")
    ] = None,
    people: Annotated[bool, typer.Option(help="Count people instead of rows.")] = False,
    min_rows: Annotated[int | None, typer.Option(help="With --people: only people with at least N rows.")] = None,
    person_sum: Annotated[
        str | None, typer.Option(help="The attribute to sum for each person, up to --bound, and over all people.")
    ] = None,
    person_bound: Annotated[
        int | None, typer.Option("--bound", help="With --person-sum: each person's sum counts up to this bound.")
    ] = None,
    category: Annotated[str | None, typer.Option(help="One person's category, for randomized response.")] = None,
    question: Annotated[
        str | None,
        typer.Option(help="Any other question as JSON (values, candidates, terms, cells): inline, a file, or -."),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="A public threshold for this query only.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Requested error bound, at the smallest charge (laplace and pmw).")
    ] = None,
    max_price: MaxPrice = None,
    dry_run: DryRun = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", callback=check_timeout)] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Ask one query and wait for its answer.

    A question with --alpha is rejected if it may cost more than --max-price (10% of the stream's grant if omitted).

    Exit status: 0 answered; 3 rejected; 4 halted; 5 halted or rejected because the stream's grant
    is used up (exhausted); 6 no answer in time, though one may still arrive; 1 any other failure; 2 wrong usage.
    """
    given = {
        "value": value,
        "fraction": fraction or None,
        "people": people or None,
        "where": where,
        "sum": total,
        "mean": mean,
        "quantile": quantile,
        "q": (q[0] if len(q) == 1 else q) if q else None,
        "iqr": iqr,
        "variance": variance,
        "stddev": stddev,
        "group_by": group_by,
        "category": category,
        "threshold": threshold,
        "alpha": alpha,
        "max_price": parse_max_price(max_price),
        "rate": rate,
        "min_rows": min_rows,
        "person_sum": person_sum,
        "bound": person_bound,
        "top": top,
    }
    fields = {name: field for name, field in given.items() if field is not None}
    document = _read_json_object(question) if question is not None else {}
    if not document and not fields.keys() & _QUESTION_FIELDS:
        raise CommandError(_describe_missing_question(fields))
    for name in fields.keys() & document.keys():
        raise CommandError(f"{_option_of(name)}: --question has '{name}' too; give it once")
    if document.get("stream", stream) != stream:
        raise CommandError(f"--question: has another stream than '{stream}'; name one stream")
    try:
        asked = {"id": uuid.uuid4().hex, **document, **fields, "stream": stream}
        query = Query.model_validate_json(json.dumps(asked))
    except ValidationError as error:
        raise CommandError(
            describe(error, lambda name: _option_of(name) if name in fields else name, asked)
        ) from None
    try:
        answer = asyncio.run(_ask_question(query, timeout, dry_run=dry_run))
    except Timeout as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitStatus.NO_ANSWER) from None
    print_warnings(answer.warnings)
    if dry_run and answer.is_priced:
        _show_price(answer, as_json=as_json, has_default_limit=query.alpha is not None and query.max_price is None)
        return
    if answer.outcome == "rejected":
        print_warnings(_warn_of_commas(group_by or ()))
    show_answer(answer, as_json=as_json)
    if status := exit_status(answer):
        raise typer.Exit(status)


def _option_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _describe_missing_question(fields: Iterable[str]) -> str:
    for name in fields:
        if name in _REQUIRED_OPTIONS:
            return f"{_option_of(name)}: belongs to {_REQUIRED_OPTIONS[name]}; give both"
    return (
        "no question: give --value, --where, --sum, --mean, --quantile, --iqr, --variance, --stddev, --group-by, --rate, --people, "
        "--person-sum or --category; --question for values, candidates, terms or cells; --where TRUE counts all rows"
    )


def _warn_of_commas(group_by: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each name with commas, because the user may mean several attributes."""
    for name in group_by:
        if len(parts := [part.strip() for part in name.split(",") if part.strip()]) > 1:
            repeated = " ".join(f"--group-by {shlex.quote(part)}" for part in parts)
            yield f"--group-by: {shlex.quote(name)} is one name; repeat the option for each attribute: {repeated}"


def exit_status(answer: Answer) -> int:
    """Return the exit status of ``sotto ask`` for an answer."""
    if answer.outcome in {"halted", "rejected"} and says_exhausted(answer.reason):
        return ExitStatus.EXHAUSTED
    if answer.outcome == "halted":
        return ExitStatus.HALTED
    return ExitStatus.REJECTED if answer.outcome == "rejected" else ExitStatus.ANSWERED


def parse_max_price(given: str | None) -> float | str | None:
    """Parse ``--max-price``: an ε as a number, a percentage as text; invalid text is refused later."""
    if given is not None:
        with suppress(ValueError):
            return float(given)
    return given


def _show_price(answer: Result, *, as_json: bool, has_default_limit: bool) -> None:
    if as_json:
        show_json({"stream": answer.stream, "id": answer.id, "price": answer.price, "reason": answer.reason})
    elif answer.price is None:
        say(f"{answer.stream}: {answer.reason}")
    else:
        say(f"{answer.stream}: the answer costs at most ε {format_error_bound(answer.price)}; nothing was charged")
        if has_default_limit:
            say(
                f"without --max-price, a question that may cost more than {DEFAULT_MAX_PRICE} of the stream's grant is rejected",
                soft_wrap=True,
            )


def show_answer(answer: Result, *, as_json: bool) -> None:
    """Print an answer as JSON, or as a line and, if it has groups, a table."""
    if as_json:
        marks = {"uninformative": sorted(answer.uninformative)} if answer.uninformative else {}
        warnings = {"warnings": list(lines)} if (lines := answer.warnings) else {}
        show_json({**answer_document(answer), **marks, **warnings})
        return
    groups = answer.groups
    say(_format_answer(answer, with_estimates=groups is None))
    if groups is not None:
        _show_groups(answer, groups)


def answer_document(answer: Result, *, exclude_none: bool = False) -> dict[str, Any]:
    """Return an answer as JSON, with the groups of its numbers if they are known."""
    labels = {} if answer.groups is None else {"groups": list(answer.groups)}
    return {**answer.model_dump(mode="json", exclude_none=exclude_none), **labels}


def _numbers_heading(answer: Result) -> str:
    if answer.query is None:
        return "estimate"
    heading = next((name for name in ("rate", *STATISTICS) if getattr(answer.query, name) is not None), "count")
    return f"{heading} ({answer.number_unit})" if answer.number_unit else heading


def _show_groups(answer: Result, groups: Sequence[Group]) -> None:
    """Print a table of groups, each with its number or text, the interval, and a mark if it is not informative."""
    names = list(groups[0]) if groups else ["key"]
    columns: list[tuple[str, Iterable[str]]] = [(name, [str(group[name]) for group in groups]) for name in names]
    if answer.estimates is not None:
        numbers = list(zip(answer.estimates, answer.intervals or repeat(None), strict=False))
        texts = [format_number(answer, number, ends, grouped=True) for number, ends in numbers]
        columns.append((_numbers_heading(answer), texts))
        if answer.intervals:
            # Intervals of texts are published also with ``top``, which selects numbers.
            is_stored = answer.query is None and answer.window is None
            heading = "95 % without top" if is_stored and (answer.keys or answer.top_groups) else "95 %"
            columns.append((heading, [format_interval(ends, n, grouped=True) for n, ends in numbers if ends]))
    elif answer.choices:
        columns.append(("value", answer.choices))
    if answer.choice_intervals:
        columns.append(("95 %", map(format_text_interval, answer.choice_intervals)))
    if marked := answer.uninformative:
        columns.append(("", [UNINFORMATIVE_MARK if place in marked else "" for place in range(len(groups))]))
    show_table("", [heading for heading, _ in columns], zip(*(cells for _, cells in columns), strict=True))


def _read_json_object(argument: str) -> dict[str, Any]:
    try:
        document = read_json(read_document(argument, "--question"))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CommandError("--question: give one JSON object")
    return document


async def _ask_question(query: Query, timeout: float, *, dry_run: bool) -> Result:  # noqa: ASYNC109
    async with AsyncClient() as client:
        answer = await client.ask(query, timeout=timeout, outcomes=True, dry_run=dry_run)
        if (answer.reason or "").startswith("unknown-stream:"):
            print_warnings(await warn_of_unknown_stream(client, query.stream))
        elif answer.outcome == "rejected":
            with suppress(SottoError):
                source = (await client.budget(await client.source_of(query.stream))).source
                print_warnings(warn_of_attributes(query, source))
        carries = query.value is not None or query.values is not None
        if query.category is not None or (carries and (answer.index or query.threshold is not None)):
            # The client looks up the grants of tables only, because producers of values may not read the ledger.
            with suppress(SottoError):
                grant = await client.grant(await client.source_of(query.stream), query.stream)
                print_warnings(_warn_of_category(query.category, grant))
                if carries:
                    answer.with_question(query, None, grant.calibration)
        return answer


_PREDICATE_NAME: Final = re.compile(r"""'(?:[^']|'')*'|"([^"]+)"|([^\W\d]\w*)""")
_PREDICATE_WORDS: Final = {"and", "or", "not", "in", "between", "true", "false"}


def warn_of_attributes(query: Query, source: Source) -> Iterator[str]:
    """Yield a warning for each name in a question that is not an attribute of the source, but is like one.

    The published refusal quotes no name, because the question's text is private.
    """
    if not isinstance(source, TableSource | EventsSource):
        return
    declared = {*source.attributes, *(source.texts if isinstance(source, TableSource) else ())}
    folded = {name.casefold() for name in declared}
    given = [(name, getattr(query, name)) for name in VALUE_FIELDS]
    given += [("group_by", name) for name in query.group_by or ()]
    for field in ("where", "rate"):
        found = _PREDICATE_NAME.findall(getattr(query, field) or "")
        given += [(field, quoted or bare) for quoted, bare in found if bare.casefold() not in _PREDICATE_WORDS]
    for field, name in given:
        if name and name.casefold() not in folded and (hint := did_you_mean(name, declared)):
            yield f"{_option_of(field)}: '{name}' is no attribute of source {source.source}{hint}"


def _warn_of_category(category: str | None, grant: GrantRecord) -> Iterator[str]:
    """Warn of an unknown category, which gets a random one as any other."""
    categories = getattr(grant.spec.mechanism, "categories", ())
    if category is not None and categories and category not in categories:
        hint = did_you_mean(category, categories)
        yield f"category: '{category}' is not declared{hint}; the answer is a declared category, chosen at random"


async def warn_of_unknown_stream(client: AsyncClient, name: str) -> list[str]:
    """Warn if the ledger has no stream of a name; no warning if the ledger may not be read."""
    try:
        streams = [one.spec.stream for one in await client.list_streams(limit=_COMPARED_STREAMS)]
        await client.source_of(name)
    except Unknown:
        return [f"stream '{name}' does not exist{did_you_mean(name, streams) or '; see sotto stream list'}"]
    except SottoError:
        pass
    return []


def _format_answer(answer: Result, *, with_estimates: bool = True) -> str:
    parts = [f"{answer.stream}{format_window(answer)}", answer.id, answer.outcome]
    if answer.estimate is not None:
        parts += [format_number(answer, answer.estimate, answer.interval), answer.number_unit]
    if answer.estimates is not None and with_estimates:
        parts.append(", ".join(format_numbers(answer, with_intervals=True)))
    if answer.choice is not None:
        parts.append(f"'{answer.choice}'")
    if answer.choices is not None and with_estimates:
        parts.append(", ".join(format_choices(answer)))
    ends = answer.choice_intervals if answer.choice is not None else None
    alpha, count = shown_alpha(answer), len(answer.estimates or answer.choices or (0,))
    marked = len(answer.uninformative) if answer.window is not None and with_estimates else 0
    facts = [
        "" if alpha is None else f"±{alpha}",
        "" if answer.interval is None else f"95 %: {format_interval(answer.interval, answer.estimate)}",
        "" if ends is None else f"95 %: {format_text_interval(ends[0])}",
        format_typical_error(answer),
        answer.basis or "",
        "" if answer.version is None else f"version {answer.version} of the data",
        # Questions of windows have no warnings beside their answers; a table of groups marks its rows.
        (f"{marked} of {count} " if marked < count else "") + UNINFORMATIVE_MARK if marked else "",
    ]
    if any(facts):
        parts.append(f"({', '.join(filter(None, facts))})")
    line = " ".join(filter(None, parts))
    if answer.price is not None and answer.outcome != "rejected":
        line += f" for ε {answer.price:.4g}" if answer.price else " for nothing"
    if answer.reason:
        line += f": {describe_reason(answer)}"
    if answer.tops_left is None or answer.outcome == "halted":
        return line
    return f"{line}, {format_count(answer.tops_left, answer.charge_name)} left"
