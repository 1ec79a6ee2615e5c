"""Opens a stream for each mechanism except ``running_count``, and checks its answers for the demo."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas import (
    Answer,
    GrantRecord,
    Laplace,
    Pmw,
    Query,
    RandomizedResponse,
    RecordsSource,
    SparsePmw,
    StreamSpec,
    TableSource,
    Text,
)
from stream.client.async_client import AsyncClient
from stream.dev.demo_installation import Check
from stream.dev.simulation_run import measure, summarize_errors
from stream.dev.true_answers import TableTruths
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.planning.inverse_plans import needed_epsilon
from stream.privacy.planning.response_plans import estimate_stream_shares
from stream.processing.dead_letters import BUSY
from stream.tables.columns_table import PrivateTable
from stream.tables.demo_tables import adult_source
from stream.tables.rows import Rows
from stream.tables.store import table_key

ATTEMPTS: Final = 100
"""Maximum number of attempts to ask a question that is answered ``busy``."""

AskAll = Callable[[Sequence[Query]], Awaitable[Sequence[Answer]]]
Sleep = Callable[[float], Awaitable[object]]

_retry_pattern = re.compile(r"ask it again in (\d+) s")


async def ask_until_answered(
    ask_all: AskAll, queries: Sequence[Query], sleep: Sleep = asyncio.sleep
) -> list[Answer]:
    """Return the answers in the questions' order; after ``busy``, ask a question again with a new id."""
    found = list(await ask_all(queries))
    for attempt in range(1, ATTEMPTS):
        busy = [index for index, answer in enumerate(found) if _is_busy(answer)]
        if not busy:
            break
        await sleep(min(_wait_seconds(found[index]) for index in busy))
        again = [queries[index].model_copy(update={"id": f"{queries[index].id}/{attempt}"}) for index in busy]
        for index, answer in zip(busy, await ask_all(again), strict=True):
            found[index] = answer
    return found


def _is_busy(answer: Answer) -> bool:
    return answer.outcome == "rejected" and (answer.reason or "").startswith(f"{BUSY}:")


def _wait_seconds(answer: Answer) -> float:
    retry_time = _retry_pattern.search(answer.reason or "")
    return float(retry_time[1]) if retry_time else 1.0


CENSUS, SURVEY = "census", "survey"
TEXT_ATTRIBUTE, COUNTRY_COLUMN = "country", "native-country"
"""The attribute of private texts that the tour declares, and the table's column with the texts."""
ADULT_ROWS: Final = 48_842
EPSILON, DELTA = 1.0, 1e-6
BETA = 1e-6
"""Bound on the probability that an error exceeds α; it is small, because every answer is checked."""
MIXED_QUESTION_COUNT: Final = 2_000
RESPONDENT_COUNT, ILL_SHARE = 2_000, 0.3


@dataclass(frozen=True)
class TourStop:
    """A stream of one mechanism, and its questions."""

    spec: StreamSpec
    questions: Sequence[dict[str, Any]]

    def queries(self) -> list[Query]:
        """Return the questions as queries to the stream."""
        name = self.spec.stream
        return [
            Query.model_validate({"id": f"{name}/{number}", "stream": name, **question})
            for number, question in enumerate(self.questions)
        ]


def tour_sources() -> tuple[TableSource, RecordsSource]:
    """Return the census table, and a survey whose respondents each send one event.

    The table's countries of birth are declared twice: as codes, and as texts that are not listed.
    """
    countries = {"texts": {TEXT_ATTRIBUTE: Text(kind="text")}, "columns": {TEXT_ATTRIBUTE: COUNTRY_COLUMN}}
    census = adult_source(epsilon=20.0, delta=1e-4).model_copy(update={"source": CENSUS, **countries})
    return census, RecordsSource(kind="records", source=SURVEY, epsilon=EPSILON)


def census_truths() -> TableTruths:
    """Return the exact answers about the census table."""
    source = tour_sources()[0]
    # The key has no effect: it selects the counted rows of each person, and here each row is a person.
    return TableTruths(source, PrivateTable.from_rows(Rows.load(source), source, table_key(NoiseKey(bytes(32)))))


async def run_tour(client: AsyncClient, seed: int) -> list[Check]:
    """Open the stream of each stop, ask its questions, and check the answers."""
    for source in tour_sources():
        await client.register(source)
    checks, truths = [], census_truths()
    for stop in tour_stops(seed):
        await client.open(stop.spec)
        answers = await ask_until_answered(client.ask_many, stop.queries())
        seen, held = judge_answers(stop, answers, await client.grant(stop.spec.source, stop.spec.stream), truths)
        checks.append(Check(f"{stop.spec.mechanism.kind} keeps its promise", seen, held))
    return checks


def judge_answers(
    stop: TourStop, answers: Sequence[Answer], grant: GrantRecord, truths: TableTruths
) -> tuple[str, bool]:
    """Describe the errors of a stream's answers, and return whether all questions have answers within their bounds."""
    spec = stop.spec
    if unanswered := [answer for answer in answers if answer.outcome in {"rejected", "halted"}]:
        return f"{len(unanswered)} questions without an answer: {unanswered[0].reason}", False
    if isinstance(spec.mechanism, RandomizedResponse):
        share = next(one for one in estimate_stream_shares(grant, answers).shares if one.category == "ill")
        truth = sum(question["category"] == "ill" for question in stop.questions) / len(stop.questions)
        seen = f"{share.estimate:.3f} in [{share.low:.3f}, {share.high:.3f}] estimated, {truth:.3f} are ill"
        return seen, share.low <= truth <= share.high
    errors = summarize_errors(
        measured
        for number, (query, answer) in enumerate(zip(stop.queries(), answers, strict=True))
        for measured in measure(number, query, answer, spec, grant.calibration, truths)
    )
    parts = [
        f"{one.what} ({one.numbers:,}): largest error {one.largest:.4g}"
        + (f", bound ±{format_error_bound(one.alpha[1])}" if one.alpha is not None else "")
        + (f", {one.unpromised} without a promise" if one.unpromised else "")
        for one in errors
    ]
    if isinstance(spec.mechanism, Pmw | SparsePmw):
        measured = sum(answer.basis == "noisy" for answer in answers)
        spent = max(answer.spent.epsilon for answer in answers if answer.spent is not None)
        parts.append(f"{measured:,} of {len(answers):,} measured; ε {spent:.3g} of {spec.epsilon:g} spent")
    if isinstance(spec.mechanism, Pmw):
        laplace = spec.model_copy(update={"mechanism": Laplace(kind="laplace", answers=len(answers))})
        laplace_epsilon = needed_epsilon(laplace, SourceFacts(disjoint=True), grant.calibration.alpha)
        parts.append(f"Laplace noise would cost ε {laplace_epsilon:.3g} for the same promise")
    return "; ".join(parts), bool(errors) and not any(one.broken for one in errors)


def _stop(
    mechanism: dict[str, Any], questions: Sequence[dict[str, Any]], source: str = CENSUS, **fields: Any
) -> TourStop:
    name = mechanism["kind"].replace("_", "-")
    given = {"epsilon": EPSILON, "delta": DELTA, "expected_queries": 100, "beta": BETA, **fields}
    spec = {"stream": f"tour-{name}", "source": source, "mechanism": mechanism, **given}
    return TourStop(StreamSpec.model_validate(spec), questions)


def tour_stops(seed: int) -> list[TourStop]:
    """Return a stop for every mechanism except ``running_count``, which needs a live topic."""
    rare_and_common = [{"where": "age > 88"}, {"where": "age < 25"}]
    sparse_vector = {"threshold": ADULT_ROWS / 10, "cutoff": 1, "monotone": True}
    charged: list[dict[str, Any]] = [
        {"where": "sex = 'F'"},
        {"fraction": True, "where": "sex = 'F'"},
        {"sum": "hours-per-week", "where": "age < 30"},
        {"mean": "age", "where": "sex = 'F'"},
    ]
    decades = [{"name": f"{low}s", "where": f"age BETWEEN {low} AND {low + 9}"} for low in range(20, 90, 10)]
    wheres = [{"where": "age < 30"}, {"where": "sex = 'F' AND age >= 60"}, {"where": "TRUE"}]
    cells = {"attributes": ["age", "sex"], "sparsity": 5}
    generator = random.Random(seed)  # noqa: S311  (questions and people's data, not noise)
    mixed = {"kind": "pmw", "attributes": ["age", "sex", "education-num", "race", "income>50K"]}
    mixed_questions = [_draw_question(generator) for _ in range(MIXED_QUESTION_COUNT)]
    categories = ["ill" if generator.random() < ILL_SHARE else "well" for _ in range(RESPONDENT_COUNT)]
    return [
        _stop({"kind": "above_threshold", **sparse_vector}, rare_and_common),
        _stop({"kind": "numeric_sparse", **sparse_vector}, rare_and_common),
        _stop({"kind": "laplace", "answers": len(charged)}, charged),
        _stop({"kind": "noisy_max", "monotone": True}, [{"candidates": decades}]),
        _stop({"kind": "exponential", "monotone": True}, [{"candidates": decades}]),
        _stop({"kind": "unknown_groups"}, [{"group_by": [TEXT_ATTRIBUTE]}], expected_queries=1),
        _stop({"kind": "histogram", "attributes": ["sex", "age"]}, wheres),
        _stop({"kind": "lazy_histogram", **cells}, list(_women_questions(20, 60, 20))),
        _stop({"kind": "sparse_project", **cells}, list(_women_questions(20, 60, 20))),
        _stop(
            {**mixed, "beyond": "unpromised"}, mixed_questions, delta=0.0, expected_queries=MIXED_QUESTION_COUNT
        ),
        _stop({"kind": "sparse_pmw", **cells, "rows": ADULT_ROWS}, list(_women_questions(20, 78, 2)), epsilon=4.0),
        _stop(
            {"kind": "randomized_response", "categories": ["well", "ill"]},
            [{"category": category} for category in categories],
            SURVEY,
            delta=0.0,
            expected_queries=RESPONDENT_COUNT,
        ),
    ]


def _women_questions(first: int, last: int, step: int) -> Iterator[dict[str, Any]]:
    """Yield questions that count the women of five ages each; the lowest ages are from ``first`` to ``last``."""
    for lowest in range(first, last + 1, step):
        yield {"cells": [{"at": {"age": age, "sex": "F"}} for age in range(lowest, lowest + 5)]}


def _draw_question(generator: random.Random) -> dict[str, Any]:
    """Draw a question for a count, share, sum or mean, or for counts of groups."""
    low, high = sorted(generator.randint(16, 90) for _ in range(2))
    where = f"age BETWEEN {low} AND {high}"
    if generator.random() < 0.5:
        where += f" AND sex = '{generator.choice('FM')}'"
    if generator.random() < 0.5:
        where += f' AND "income>50K" = {generator.randint(0, 1)}'
    match generator.randrange(10):
        case 0:
            return {"where": where, "fraction": True}
        case 1:
            return {"sum": "age", "where": where}
        case 2:
            return {"mean": "education-num", "where": where}
        case 3:
            return {"group_by": [generator.choice(("sex", "race"))], "where": where}
        case _:
            return {"where": where}
