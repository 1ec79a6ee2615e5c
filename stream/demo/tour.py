"""A stream of every mechanism: one or more questions to each, and every answer held against the truth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from schemas import Answer, GrantRecord, Query, RecordsSource, Source, StreamSpec
from stream.client import AsyncClient
from stream.data import adult
from stream.demo import many
from stream.demo.asking import answered
from stream.demo.report import Check
from stream.estimates import shares_of
from stream.figures import bound

CENSUS, SURVEY = "census", "survey"
EPSILON, DELTA = 1.0, 1e-6
BETA = 1e-6
"""Chance that any answer of a stream breaks its promise: small, for every single one is checked."""
RESPONDENTS = 2000
ILL = 0.3
"""The share of the respondents who are ill."""


@dataclass(frozen=True)
class Told:
    """The answers to a stream's questions, in order, and its grant."""

    answers: Sequence[Answer]
    grant: GrantRecord


Judge = Callable[[Told], tuple[str, bool]]
"""What was seen, and whether it held."""


@dataclass(frozen=True)
class Stop:
    """One mechanism: a stream, its questions, and how their answers are judged."""

    spec: StreamSpec
    questions: Sequence[dict[str, Any]]
    judge: Judge


class _People:
    """The table read with plain array comparisons: another way than the product's own bitmaps."""

    def __init__(self) -> None:
        frame = pl.read_csv(adult.PATH)
        self.age = frame["age"].to_numpy()
        self.hours = frame["hours-per-week"].to_numpy()
        self.woman = frame["sex"].to_numpy() == "F"
        self.rows = frame.height


def tour_sources() -> list[Source]:
    """The census with a budget for every stop, and a survey whose respondents each send one event."""
    return [
        adult.source(epsilon=20.0, delta=1e-4).model_copy(update={"source": CENSUS}),
        RecordsSource(kind="records", source=SURVEY, epsilon=EPSILON),
    ]


def stops(seed: int) -> list[Stop]:
    """All mechanisms, in the order of the documentation."""
    people = _People()
    return [
        *_sparse_vectors(people),
        *_answers(people),
        *_releases(people),
        _many(seed),
        *_hypotheses(people),
        _randomized_response(seed),
    ]


async def tour(client: AsyncClient, seed: int) -> list[Check]:
    """Open a stream of every mechanism, ask, and judge."""
    for source in tour_sources():
        await client.register(source)
    checks = []
    for stop in stops(seed):
        await client.open(stop.spec)
        queries = [
            Query.model_validate({"id": f"{stop.spec.stream}/{number}", "stream": stop.spec.stream, **question})
            for number, question in enumerate(stop.questions)
        ]
        answers = await answered(client.ask_many, queries)
        grant = await client.grant(stop.spec.source, stop.spec.stream)
        seen, held = stop.judge(Told(answers, grant))
        checks.append(Check(f"{stop.spec.mechanism.kind} keeps its promise", seen, bool(held)))
    return checks


def _spec(mechanism: dict[str, Any], source: str = CENSUS, **more: Any) -> StreamSpec:
    fields = {"epsilon": EPSILON, "delta": DELTA, "expected_queries": 100, "beta": BETA, **more}
    name = mechanism["kind"].replace("_", "-")
    return StreamSpec.model_validate(
        {"stream": f"tour-{name}", "source": source, "mechanism": mechanism, **fields}
    )


def _within(truths: Sequence[float]) -> Judge:
    """Every number is within its own α of the truth."""

    def judge(told: Told) -> tuple[str, bool]:
        errors = [
            (abs((answer.estimate if answer.estimate is not None else np.inf) - truth), answer.alpha or 0.0)
            for answer, truth in zip(told.answers, truths, strict=True)
        ]
        worst, alpha = max(errors)
        return f"{len(errors)} numbers, worst off by {worst:.4g} of ±{bound(alpha)}", all(
            e <= a for e, a in errors
        )

    return judge


def _sparse_vectors(people: _People) -> list[Stop]:
    young, old = int((people.age < 25).sum()), int((people.age > 88).sum())
    questions = [{"where": "age > 88"}, {"where": "age < 25"}]
    base: dict[str, Any] = {"threshold": (young + old) / 2, "cutoff": 1, "monotone": True}

    def tops(told: Told) -> tuple[str, bool]:
        outcomes = [answer.outcome for answer in told.answers]
        return f"{old} and {young} against {base['threshold']:g}: {outcomes}", outcomes == ["below", "above"]

    def numbers(told: Told) -> tuple[str, bool]:
        seen, held = tops(told)
        said, within = _within([float(young)])(Told(told.answers[1:], told.grant))
        return f"{seen}; {said}", held and within

    return [
        Stop(_spec({"kind": "above_threshold", **base}), questions, tops),
        Stop(_spec({"kind": "numeric_sparse", **base}), questions, numbers),
    ]


def _answers(people: _People) -> list[Stop]:
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

    def chosen(told: Told) -> tuple[str, bool]:
        [answer] = told.answers
        lost = max(decades.values()) - decades.get(answer.choice or "", -(10**9))
        alpha = answer.alpha or 0.0
        return f"chose '{answer.choice}', {lost} below the best of ±{bound(alpha)}", lost <= alpha

    return [
        Stop(laplace, questions, _within(truths)),
        Stop(_spec({"kind": "noisy_max", "monotone": True}), [{"candidates": candidates}], chosen),
        Stop(_spec({"kind": "exponential", "monotone": True}), [{"candidates": candidates}], chosen),
    ]


def _releases(people: _People) -> list[Stop]:
    histogram = _spec({"kind": "histogram", "attributes": ["sex", "age"]})
    wheres = ["age < 30", "sex = 'F' AND age >= 60", "TRUE"]
    truths = [
        float((people.age < 30).sum()),
        float((people.woman & (people.age >= 60)).sum()),
        float(people.rows),
    ]
    cells = [[{"at": {"age": age, "sex": "F"}} for age in range(low, low + 5)] for low in (20, 40, 60)]
    counts = [float((people.woman & (people.age >= low) & (people.age < low + 5)).sum()) for low in (20, 40, 60)]
    sparse = {"attributes": ["age", "sex"], "sparsity": 5}
    asked: list[dict[str, Any]] = [{"cells": one} for one in cells]

    return [
        Stop(histogram, [{"where": where} for where in wheres], _within(truths)),
        Stop(_spec({"kind": "lazy_histogram", **sparse}), asked, _within(counts)),
        Stop(_spec({"kind": "sparse_project", **sparse}), asked, _within(counts)),
    ]


def _hypotheses(people: _People) -> list[Stop]:
    lows = range(20, 80, 2)
    cells = [[{"at": {"age": age, "sex": "F"}} for age in range(low, low + 5)] for low in lows]
    counts = [float((people.woman & (people.age >= low) & (people.age < low + 5)).sum()) for low in lows]
    sparse = {"kind": "sparse_pmw", "attributes": ["age", "sex"], "sparsity": 5, "rows": people.rows}

    def judged(told: Told) -> tuple[str, bool]:
        seen, held = _within(counts)(told)
        bases = Counter(answer.basis for answer in told.answers)
        return f"{seen}; {bases['hypothesis']} free, {len(told.answers) - bases['hypothesis']} paid", held

    return [Stop(_spec(sparse, epsilon=4.0), [{"cells": one} for one in cells], judged)]


def _many(seed: int) -> Stop:
    asked = many.mixed(seed)
    spec = _spec(many.MECHANISM, epsilon=many.EPSILON, delta=0.0, expected_queries=many.QUESTIONS)
    return Stop(
        spec, asked.questions, lambda told: many.judged(asked, told.answers, spec, told.grant.calibration.alpha)
    )


def _randomized_response(seed: int) -> Stop:
    chance = random.Random(seed)  # noqa: S311  (what people would answer, not noise)
    ill = [chance.random() < ILL for _ in range(RESPONDENTS)]
    spec = _spec(
        {"kind": "randomized_response", "categories": ["well", "ill"]},
        SURVEY,
        delta=0.0,
        expected_queries=RESPONDENTS,
    )

    def judge(told: Told) -> tuple[str, bool]:
        share = next(one for one in shares_of(told.grant, told.answers).shares if one.category == "ill")
        truth = sum(ill) / len(ill)
        seen = f"{share.estimate:.3f} in [{share.low:.3f}, {share.high:.3f}] estimated, {truth:.3f} are ill"
        return seen, share.low <= truth <= share.high

    return Stop(spec, [{"category": "ill" if one else "well"} for one in ill], judge)
