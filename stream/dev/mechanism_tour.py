"""Opens a stream for each mechanism except ``running_count``, and checks its answers for the demo."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas import Answer, GrantRecord, Laplace, Query, RecordsSource, Source, StreamSpec, Text
from stream.client.async_client import AsyncClient
from stream.dev.demo_installation import AdultColumns, Check
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.inverse_plans import needed_epsilon
from stream.privacy.planning.response_plans import estimate_stream_shares
from stream.processing.dead_letters import BUSY
from stream.tables.demo_tables import ADULT_PATH, adult_source

MIXED_QUESTION_COUNT: Final = 2_000
MIXED_EPSILON: Final = 1.0
ATTRIBUTES: Final = ("age", "sex", "education-num", "race", "income>50K")
MIXED_MECHANISM: Final[dict[str, Any]] = {"kind": "pmw", "attributes": list(ATTRIBUTES), "beyond": "unpromised"}

_GROUPED_ATTRIBUTES: Final = (("sex", 2), ("race", 5))
"""Attributes by which questions group, with the number of their values."""


@dataclass(frozen=True)
class MixedQuestions:
    """Questions and their true answers, computed by array comparisons."""

    questions: tuple[dict[str, Any], ...]
    truths: tuple[tuple[float, ...], ...]
    rows: int


def draw_mixed_questions(seed: int) -> MixedQuestions:
    """Draw counts, shares, sums, means and groups; the same seed gives the same questions."""
    generator = random.Random(seed)  # noqa: S311  (questions, not noise)
    frame = pl.read_csv(ADULT_PATH)
    columns = {name: frame[name].to_numpy() for name in ATTRIBUTES}
    asked = [_draw_question(generator, columns) for _ in range(MIXED_QUESTION_COUNT)]
    return MixedQuestions(
        tuple(question for question, _ in asked), tuple(truth for _, truth in asked), frame.height
    )


def judge_mixed_answers(
    asked: MixedQuestions, answers: Sequence[Answer], spec: StreamSpec, alpha: float
) -> tuple[str, bool]:
    """Describe promise, error and cost, and check every answer against its α."""
    held, counts, unanswered = True, [], 0
    for question, truth, answer in zip(asked.questions, asked.truths, answers, strict=True):
        numbers = answer.estimates or (() if answer.estimate is None else (answer.estimate,))
        if len(numbers) != len(truth):
            unanswered += 1
            continue
        errors = [abs(number - true) for number, true in zip(numbers, truth, strict=True)]
        held &= answer.alpha is None or max(errors) <= answer.alpha
        if set(question) == {"where"}:
            counts.append(max(errors))
    if not counts:
        return f"none of {len(answers):,} questions was answered: {answers[0].reason}", False
    spent = max(answer.spent.epsilon for answer in answers if answer.spent is not None)
    bases = Counter(answer.basis for answer in answers)
    laplace = spec.model_copy(update={"mechanism": Laplace(kind="laplace", answers=MIXED_QUESTION_COUNT)})
    laplace_epsilon = needed_epsilon(laplace, SourceFacts(disjoint=True), alpha)
    seen = (
        f"{len(answers):,} questions cost ε {spent:.3g} of {spec.epsilon:g}; {bases['noisy']} were measured; promise for counts: "
        f"±{alpha:.0f} ({alpha / asked.rows:.1%} of the rows); largest error {max(counts):.0f}, mean error {np.mean(counts):.0f}; "
        f"Laplace noise would cost ε {laplace_epsilon:.3g} for the same promise"
    )
    unpromised = sum(answer.alpha is None for answer in answers) - unanswered
    seen += f"; {unpromised} answers without a promise" if unpromised else ""
    return seen + (f"; {unanswered} questions without an answer" if unanswered else ""), held and unanswered == 0


def _draw_question(
    generator: random.Random, columns: dict[str, npt.NDArray[Any]]
) -> tuple[dict[str, Any], tuple[float, ...]]:
    low, high = sorted(generator.randint(16, 90) for _ in range(2))
    inside = (columns["age"] >= low) & (columns["age"] <= high)
    where = f"age BETWEEN {low} AND {high}"
    if generator.random() < 0.5:
        sex = generator.choice("FM")
        inside, where = inside & (columns["sex"] == sex), f"{where} AND sex = '{sex}'"
    if generator.random() < 0.5:
        rich = generator.randint(0, 1)
        inside, where = inside & (columns["income>50K"] == rich), f'{where} AND "income>50K" = {rich}'
    count = float(inside.sum())
    match generator.randrange(10):
        case 0:
            return {"where": where, "fraction": True}, (count / len(inside),)
        case 1:
            return {"sum": "age", "where": where}, (float(columns["age"][inside].sum()),)
        case 2 if count > 0:
            return {"mean": "education-num", "where": where}, (float(columns["education-num"][inside].mean()),)
        case 3:
            name, size = generator.choice(_GROUPED_ATTRIBUTES)
            values = columns[name][inside]
            cells = [values == value for value in (("F", "M") if name == "sex" else range(size))]
            return {"group_by": [name], "where": where}, tuple(float(cell.sum()) for cell in cells)
        case _:
            return {"where": where}, (count,)


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
EPSILON, DELTA = 1.0, 1e-6
BETA = 1e-6
"""Bound on the probability that an error exceeds α; it is small, because every answer is checked."""
RESPONDENT_COUNT = 2000
ILL_SHARE = 0.3


Judge = Callable[[Sequence[Answer], GrantRecord], tuple[str, bool]]
"""Returns the observation from a stream's answers and grant, and whether the promise held."""


@dataclass(frozen=True)
class TourStop:
    """One mechanism of the tour: a stream, its questions, and the check of their answers."""

    spec: StreamSpec
    questions: Sequence[dict[str, Any]]
    judge: Judge


def tour_sources() -> list[Source]:
    """Return the census table, and a survey whose respondents each send one event.

    The table's countries of birth are declared twice: as codes, and as texts that are not listed.
    """
    countries = {"texts": {TEXT_ATTRIBUTE: Text(kind="text")}, "columns": {TEXT_ATTRIBUTE: COUNTRY_COLUMN}}
    return [
        adult_source(epsilon=20.0, delta=1e-4).model_copy(update={"source": CENSUS, **countries}),
        RecordsSource(kind="records", source=SURVEY, epsilon=EPSILON),
    ]


def tour_stops(seed: int) -> list[TourStop]:
    """Return a stop for every mechanism except ``running_count``, which needs a live topic."""
    people = AdultColumns()
    return [
        *_sparse_vector_stops(people),
        *_charged_answer_stops(people),
        _unknown_groups_stop(),
        *_release_stops(people),
        _mixed_questions_stop(seed),
        *_hypothesis_stops(people),
        _randomized_response_stop(seed),
    ]


async def tour(client: AsyncClient, seed: int) -> list[Check]:
    """Open the stream of each stop, ask its questions, and check the answers."""
    for source in tour_sources():
        await client.register(source)
    checks = []
    for stop in tour_stops(seed):
        await client.open(stop.spec)
        queries = [
            Query.model_validate({"id": f"{stop.spec.stream}/{number}", "stream": stop.spec.stream, **question})
            for number, question in enumerate(stop.questions)
        ]
        answers = await ask_until_answered(client.ask_many, queries)
        grant = await client.grant(stop.spec.source, stop.spec.stream)
        seen, held = stop.judge(answers, grant)
        checks.append(Check(f"{stop.spec.mechanism.kind} keeps its promise", seen, bool(held)))
    return checks


def _spec(mechanism: dict[str, Any], source: str = CENSUS, **more: Any) -> StreamSpec:
    fields = {"epsilon": EPSILON, "delta": DELTA, "expected_queries": 100, "beta": BETA, **more}
    name = mechanism["kind"].replace("_", "-")
    return StreamSpec.model_validate(
        {"stream": f"tour-{name}", "source": source, "mechanism": mechanism, **fields}
    )


def _judge_errors(truths: Sequence[float]) -> Judge:
    def judge(answers: Sequence[Answer], _: GrantRecord) -> tuple[str, bool]:
        errors = [
            (abs((answer.estimate if answer.estimate is not None else np.inf) - truth), answer.alpha or 0.0)
            for answer, truth in zip(answers, truths, strict=True)
        ]
        worst, alpha = max(errors)
        seen = f"{len(errors)} numbers; largest error {worst:.4g}, bound ±{format_error_bound(alpha)}"
        return seen, all(error <= bound for error, bound in errors)

    return judge


def _sparse_vector_stops(people: AdultColumns) -> list[TourStop]:
    young, old = int((people.age < 25).sum()), int((people.age > 88).sum())
    questions = [{"where": "age > 88"}, {"where": "age < 25"}]
    base: dict[str, Any] = {"threshold": (young + old) / 2, "cutoff": 1, "monotone": True}

    def judge_tops(answers: Sequence[Answer], _: GrantRecord) -> tuple[str, bool]:
        outcomes = [answer.outcome for answer in answers]
        return f"counts {old} and {young}, threshold {base['threshold']:g}: {outcomes}", outcomes == [
            "below",
            "above",
        ]

    def judge_numbers(answers: Sequence[Answer], grant: GrantRecord) -> tuple[str, bool]:
        tops_text, held = judge_tops(answers, grant)
        error_text, within = _judge_errors([float(young)])(answers[1:], grant)
        return f"{tops_text}; {error_text}", held and within

    return [
        TourStop(_spec({"kind": "above_threshold", **base}), questions, judge_tops),
        TourStop(_spec({"kind": "numeric_sparse", **base}), questions, judge_numbers),
    ]


def _charged_answer_stops(people: AdultColumns) -> list[TourStop]:
    laplace = _spec({"kind": "laplace", "answers": 4})
    questions: list[dict[str, Any]] = [
        {"where": "sex = 'F'"},
        {"fraction": True, "where": "sex = 'F'"},
        {"sum": "hours-per-week", "where": "age < 30"},
        {"mean": "age", "where": "sex = 'F'"},
    ]
    truths = [
        float(people.woman.sum()),
        float(people.woman.mean()),
        float(people.hours[people.age < 30].sum()),
        float(people.age[people.woman].mean()),
    ]
    decades = {f"{low}s": int(((people.age >= low) & (people.age < low + 10)).sum()) for low in range(20, 90, 10)}
    candidates = [{"name": name, "where": f"age BETWEEN {name[:2]} AND {int(name[:2]) + 9}"} for name in decades]

    def judge_choice(answers: Sequence[Answer], _: GrantRecord) -> tuple[str, bool]:
        [answer] = answers
        lost = max(decades.values()) - decades.get(answer.choice or "", -(10**9))
        alpha = answer.alpha or 0.0
        seen = (
            f"chose '{answer.choice}', whose count is {lost} below the largest; bound ±{format_error_bound(alpha)}"
        )
        return seen, lost <= alpha

    return [
        TourStop(laplace, questions, _judge_errors(truths)),
        TourStop(_spec({"kind": "noisy_max", "monotone": True}), [{"candidates": candidates}], judge_choice),
        TourStop(_spec({"kind": "exponential", "monotone": True}), [{"candidates": candidates}], judge_choice),
    ]


def _unknown_groups_stop() -> TourStop:
    cells = pl.read_csv(ADULT_PATH)[COUNTRY_COLUMN].cast(pl.String)
    truths: dict[str, int] = dict(Counter(cells.drop_nulls().to_list()))

    def judge(answers: Sequence[Answer], _: GrantRecord) -> tuple[str, bool]:
        [answer] = answers
        alpha, released = answer.alpha or 0.0, dict(zip(answer.keys or (), answer.estimates or (), strict=True))
        worst = max((abs(number - truths[text]) for text, number in released.items()), default=0.0)
        seen = f"{len(released)} of {len(truths)} countries released; largest error {worst:.4g}, bound ±{format_error_bound(alpha)}"
        return seen, bool(released) and worst <= alpha

    return TourStop(_spec({"kind": "unknown_groups"}, expected_queries=1), [{"group_by": [TEXT_ATTRIBUTE]}], judge)


def _women_questions(people: AdultColumns, lowest_ages: Iterable[int]) -> tuple[list[dict[str, Any]], list[float]]:
    """Return questions that count the women of five ages each, and the true counts."""
    ages = [range(lowest, lowest + 5) for lowest in lowest_ages]
    asked: list[dict[str, Any]] = [{"cells": [{"at": {"age": age, "sex": "F"}} for age in one]} for one in ages]
    return asked, [float((people.woman & np.isin(people.age, one)).sum()) for one in ages]


def _release_stops(people: AdultColumns) -> list[TourStop]:
    histogram = _spec({"kind": "histogram", "attributes": ["sex", "age"]})
    wheres = ["age < 30", "sex = 'F' AND age >= 60", "TRUE"]
    truths = [float((people.age < 30).sum()), float((people.woman & (people.age >= 60)).sum()), float(people.rows)]
    asked, counts = _women_questions(people, (20, 40, 60))
    sparse = {"attributes": ["age", "sex"], "sparsity": 5}

    return [
        TourStop(histogram, [{"where": where} for where in wheres], _judge_errors(truths)),
        TourStop(_spec({"kind": "lazy_histogram", **sparse}), asked, _judge_errors(counts)),
        TourStop(_spec({"kind": "sparse_project", **sparse}), asked, _judge_errors(counts)),
    ]


def _hypothesis_stops(people: AdultColumns) -> list[TourStop]:
    asked, counts = _women_questions(people, range(20, 80, 2))
    sparse = {"kind": "sparse_pmw", "attributes": ["age", "sex"], "sparsity": 5, "rows": people.rows}

    def judge(answers: Sequence[Answer], grant: GrantRecord) -> tuple[str, bool]:
        seen, held = _judge_errors(counts)(answers, grant)
        free = sum(answer.basis == "hypothesis" for answer in answers)
        return f"{seen}; {free} free, {len(answers) - free} paid", held

    return [TourStop(_spec(sparse, epsilon=4.0), asked, judge)]


def _mixed_questions_stop(seed: int) -> TourStop:
    asked = draw_mixed_questions(seed)
    spec = _spec(MIXED_MECHANISM, epsilon=MIXED_EPSILON, delta=0.0, expected_queries=MIXED_QUESTION_COUNT)
    return TourStop(
        spec,
        asked.questions,
        lambda answers, grant: judge_mixed_answers(asked, answers, spec, grant.calibration.alpha),
    )


def _randomized_response_stop(seed: int) -> TourStop:
    generator = random.Random(seed)  # noqa: S311  (people's data, not noise)
    ill = [generator.random() < ILL_SHARE for _ in range(RESPONDENT_COUNT)]
    spec = _spec(
        {"kind": "randomized_response", "categories": ["well", "ill"]},
        SURVEY,
        delta=0.0,
        expected_queries=RESPONDENT_COUNT,
    )

    def judge(answers: Sequence[Answer], grant: GrantRecord) -> tuple[str, bool]:
        share = next(one for one in estimate_stream_shares(grant, answers).shares if one.category == "ill")
        truth = sum(ill) / len(ill)
        seen = f"{share.estimate:.3f} in [{share.low:.3f}, {share.high:.3f}] estimated, {truth:.3f} are ill"
        return seen, share.low <= truth <= share.high

    return TourStop(spec, [{"category": "ill" if one else "well"} for one in ill], judge)
