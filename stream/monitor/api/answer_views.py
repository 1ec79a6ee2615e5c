"""Computes the API's pages of a stream's answers, as JSON, JSON lines and CSV; defines the models of answers."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

from aiokafka.errors import KafkaError
from pydantic import Field

from schemas import Amount, Answer, Query
from stream.client.answer_history import AnswerLog, LoggedAnswer
from stream.kafka.client.broker_connections import is_refusal
from stream.monitor.api import views
from stream.monitor.api.http_requests import ProblemError
from stream.monitor.api.models import MAX_PAGE, ApiModel, Parameters, Time
from stream.monitor.monitor_tables import MonitorTables
from stream.questions import Result
from stream.questions.alert_states import format_time
from stream.questions.first_windows import describe_missed_events, missed_in_window
from stream.questions.result_text import quote_formula
from stream.questions.results import Group

READ_SECONDS: Final = 20.0
"""Seconds after which a page that Kafka has not delivered is given up."""
_MAX_NAMED_GROUPS: Final = 256


class AnswerQuery(Parameters):
    """Selects a page of a stream's answers, newest first."""

    before: Annotated[int | None, Field(ge=0)] = None
    """The field ``before`` of the page that was read last; omit it for the newest page."""
    until: Annotated[float | None, Field(ge=0.0)] = None
    """Only answers before this time, in seconds since the epoch."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50


class AnswerRow(ApiModel):
    """One answer with its commit time."""

    time: Time
    answer: Answer
    question: Query | None
    """The question, if it was asked through this monitor since its start."""
    groups: list[Group]
    """The groups of the numbers, if they are known and at most 256."""
    uninformative: list[int]
    """Positions of the numbers that are known not to be informative; a single number has position 0.

    Without the question, most of them are not known.
    """
    warnings: list[str]
    """Warnings about the answer's place in the stream and about the question, for example of clamped values, if it is known."""
    cost: Amount | None
    """The answer's charge: its ``spent`` minus the ``spent`` of the answer before; null if that answer is unknown."""


class AnswersView(ApiModel):
    """A page of a stream's answers, newest first. It may have few or no answers although older answers exist."""

    items: list[AnswerRow]
    before: int | None
    """The parameter ``before`` of the next page; null if no older answers exist."""
    reached: Time | None
    """Time of the oldest record that was read, also of other streams."""
    unreadable: Annotated[int, Field(description="Number of answers that this version cannot read.")]


async def list_answers(
    reader: AnswerLog | None,
    tables: MonitorTables,
    find_question: Callable[[Result], Query | None],
    stream: str,
    query: AnswerQuery,
) -> AnswersView:
    """Read a page of a stream's answers.

    Raises:
        ProblemError: the stream is unknown, or the monitor may not or cannot read answers now.
    """
    entry, grant = views.find_stream(tables, stream)
    if reader is None:
        raise ProblemError(
            403,
            "forbidden",
            "this monitor does not read answers; start it with SOTTO_MONITOR_ASKS=true or SOTTO_MONITOR_ALERTS=true",
        )
    try:
        async with asyncio.timeout(READ_SECONDS):
            page = await reader.read_page(
                stream, query.limit, before=query.before, since=entry.opened, until=query.until
            )
    except (KafkaError, OSError, TimeoutError) as error:
        if isinstance(error, KafkaError) and is_refusal(error):
            raise ProblemError(
                503,
                "unavailable",
                "the monitor's principal may not read answers; see 'sotto topics acl --role monitor'",
            ) from None
        raise ProblemError(503, "unavailable", f"Kafka: {type(error).__name__}; ask again in a moment") from None
    owner, record = views.decode_source(tables, tables.sources[grant.source]), views.decode_grant(entry)
    source, missed = owner.source, describe_missed_events(record.spec, owner, entry.opened_by)
    # The α of randomized responses is that of an estimate from all of them.
    calibration = None if record.spec.mechanism.kind == "randomized_response" else record.calibration
    older = [*page.answers, *([page.preceding] if page.preceding else [])]
    rows = []
    for place, one in enumerate(page.answers):
        answer = one.result.with_question(question := find_question(one.result), source, calibration)
        # The groups of the numbers follow from the question or, for a live histogram, from the definition.
        answer.with_stream(record.spec, source, calibration, missed_in_window(answer, missed))
        rows.append(
            AnswerRow(
                time=one.time,
                answer=answer,
                question=question,
                groups=list(answer.groups or ()) if len(answer.estimates or ()) <= _MAX_NAMED_GROUPS else [],
                uninformative=list(answer.uninformative),
                warnings=list(answer.question_warnings),
                cost=_charge(one, older[place + 1 :]),
            )
        )
    return AnswersView(items=rows, before=page.before, reached=page.oldest_read, unreadable=page.unreadable)


def _charge(answer: LoggedAnswer, older: Sequence[LoggedAnswer]) -> Amount | None:
    """Return what an answer added to its stream's ``spent``; None if the answer before it was not read."""
    index, spent = answer.result.index, answer.result.spent
    if index is None or spent is None:
        return None
    before = next((one.result.spent for one in older if one.result.index == index - 1), None)
    if before is None and index:
        return None
    # Rounded to 12 digits, because differences of running totals have floating-point errors.
    epsilon, delta, rho = (
        float(f"{max((getattr(spent, part) or 0.0) - (getattr(before, part, None) or 0.0), 0.0):.12g}")
        for part in ("epsilon", "delta", "rho")
    )
    if spent.rho is None:
        return Amount(epsilon=epsilon, delta=delta)
    # Under zCDP the running total is ρ; with δ, ε is derived from ρ and cannot be subtracted.
    return Amount(epsilon=0.0 if spent.delta else epsilon, delta=spent.delta, rho=rho)


COLUMNS: Final = (
    *("time", "stream", "id", "question", "outcome", "index", "window_start", "window_end", "group"),
    *("position", "estimate", "choice", "alpha", "interval_low", "interval_high", "typical_error", "informative"),
    *("alpha_unit", "basis", "version", "price", "cost_epsilon", "cost_delta", "cost_rho"),
    *("spent_epsilon", "spent_delta", "spent_rho", "tops_left", "reason", "warnings"),
)
"""Columns of the CSV. Each number of an answer has a line; only the first line has ``question``, ``warnings`` and the cost."""


def answers_as_csv(rows: Sequence[AnswerRow]) -> Iterator[str]:
    """Return the CSV in parts, header first."""
    return csv_parts(
        COLUMNS, ([[cells.get(name) for name in COLUMNS] for cells in _csv_cells(row)] for row in rows)
    )


def csv_parts(columns: Sequence[str], parts: Iterable[Iterable[Sequence[Any]]]) -> Iterator[str]:
    """Yield CSV: the header with the rows of the first part, then the rows of each other part."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for rows in parts:
        writer.writerows(rows)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    if rest := text.getvalue():
        yield rest


_LINE_FIELDS: Final = {"question", "uninformative", "warnings", "cost"}


def answers_as_lines(rows: Sequence[AnswerRow]) -> Iterator[str]:
    """Yield one line of JSON for each answer: its fields, ``time`` and further fields of ``AnswerRow``.

    Without the question, empty marks and warnings are left out, because they are not known.
    """
    for row in rows:
        is_unknown = row.question is None and row.answer.window is None
        shown = {name for name in _LINE_FIELDS if not is_unknown or getattr(row, name)}
        document = {
            "time": format_time(row.time),
            **row.answer.model_dump(mode="json", exclude_none=True),
            **row.model_dump(mode="json", include=shown, exclude_none=True),
        }
        yield json.dumps(document, ensure_ascii=False) + "\n"


def _csv_cells(row: AnswerRow) -> Iterator[dict[str, Any]]:
    answer = row.answer
    question = (
        None if row.question is None else row.question.model_dump(exclude_defaults=True, exclude={"id", "stream"})
    )
    common = {
        "time": format_time(row.time),
        "alpha_unit": getattr(answer, "alpha_unit", "").strip() or None,
        "question": None if question is None else json.dumps(question, ensure_ascii=False),
        "warnings": "; ".join(row.warnings) or None,
        **{name: getattr(answer, name) for name in ("index", "basis", "version", "price", "tops_left", "reason")},
        **_amount_cells("cost", row.cost),
        **_amount_cells("spent", answer.spent),
    }
    numbers = answer.rows() if isinstance(answer, Result) else []
    if isinstance(answer, Result) and not numbers:  # no text is released
        numbers = answer.model_copy(update={"estimates": None, "keys": None}).rows()
    for number in numbers:
        cells = {name: value for name, value in number.items() if name in COLUMNS}
        group = {name: value for name, value in number.items() if name not in {*COLUMNS, "rows_per_person"}}
        cells["group"] = ", ".join(f"{name}={value}" for name, value in group.items()) or None
        yield {name: quote_formula(value) for name, value in {**common, **cells}.items()}
        # A cost in each line would be added up; 2 KB of question in each of 100,000 lines would be 200 MB.
        common |= {"question": None, "warnings": None, **_amount_cells("cost", None)}


def _amount_cells(name: str, amount: Amount | None) -> dict[str, float | None]:
    return {f"{name}_{part}": getattr(amount, part, None) for part in ("epsilon", "delta", "rho")}


class QuestionAnswered(ApiModel):
    """The answer to one question, with its numbers as rows and its cost.

    ``charged`` is the number of answers that count against the stream's cutoff; their ``cost`` may be 0.
    """

    answer: Answer
    rows: list[dict[str, str | bool | float | int | None]]
    cost: Amount
    charged: int
    warnings: list[str]


class StatementAnswered(ApiModel):
    """The rows of a statement; the column ``NAME ±`` contains the error bound of column ``NAME``.

    ``why`` says why ``stream`` was chosen among the open streams of the source in FROM.
    """

    stream: str
    columns: list[str]
    rows: list[dict[str, str | bool | float | int | None]]
    cost: Amount
    charged: int
    questions: int
    answers: list[Answer]
    warnings: list[str]
    why: str | None = None
