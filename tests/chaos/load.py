"""A load of questions to all mechanisms, during which faults are injected, and functions that wait for its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas import Answer, EventsSource, OpenStream, Source, StandingQuery, StreamSpec
from schemas.windows import format_moment, moment_ms
from sotto import AsyncClient
from stream.formatting import cells_of
from stream.privacy.mechanisms.private_values import encode_text_counts

SENSITIVE_STREAMS = 12
"""The number of streams of plain sparse vectors; a load has more of them than of all other kinds."""
CUTOFF = 5
EPSILON, LARGE_EPSILON = 1.0, 20.0
"""The ε of most streams, and the ε of streams with a hypothesis: on so small a table, a smaller ε would hide that a hypothesis is wrong."""
THRESHOLD = 1000.0
GREEDY = "counts"
"""The stream that is asked most: more often than an installation with little outstanding work allows."""
WORK_OUTSTANDING = 0.05
"""Seconds of outstanding work that a partition allows: so few that some questions are refused as ``busy``."""

_sources: TypeAdapter[Source] = TypeAdapter(Source)
AGES, SEXES = range(8), ("F", "M")
ROWS: dict[str, list[Any]] = {
    "age": [3 if number % 10 else number // 10 % 8 for number in range(400)],
    "sex": ["F" if number % 10 else "M" for number in range(400)],
    "note": ["well" if number % 10 else f"ill {number}" for number in range(400)],
}
_CELLS = [{"at": {"age": age, "sex": sex}} for age in AGES for sex in SEXES]

MIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "numeric": ("feed", {"kind": "numeric_sparse", "threshold": THRESHOLD, "cutoff": CUTOFF}),
    "counts": ("people", {"kind": "numeric_sparse", "threshold": 60.0, "cutoff": CUTOFF}),
    "laplace": ("people", {"kind": "laplace", "answers": 12}),
    "noisy-max": ("people", {"kind": "noisy_max", "answers": 6}),
    "exponential": ("people", {"kind": "exponential", "answers": 6}),
    "histogram": ("people", {"kind": "histogram", "attributes": ["sex", "age"]}),
    "lazy": ("people", {"kind": "lazy_histogram", "attributes": ["age", "sex"], "sparsity": 3}),
    "projection": (
        "people",
        {"kind": "sparse_project", "attributes": ["age", "sex"], "sparsity": 3, "projections": 64},
    ),
    "weights": (
        "people",
        {"kind": "pmw", "attributes": ["age", "sex"], "updates": 20, "warm_start": 0, "beyond": "end"},
    ),
    "priced": ("people", {"kind": "pmw", "attributes": ["age", "sex"], "updates": 20, "warm_start": 0}),
    "sparse-weights": (
        "people",
        {"kind": "sparse_pmw", "attributes": ["age", "sex"], "sparsity": 3, "updates": 20},
    ),
    "unknown": ("people", {"kind": "unknown_groups", "answers": 6}),
    "respondents": ("survey", {"kind": "randomized_response", "categories": ["well", "ill"]}),
}
"""One stream of every mechanism except plain sparse vectors; each has its source and its mechanism."""
PURE = ("laplace", "priced")
"""Streams without δ: a question with a wanted accuracy is charged only for that accuracy."""
WANTED_ALPHAS = (25.0, 200.0, 1000.0)


def sources(table: Path, streams: int = SENSITIVE_STREAMS + len(MIXED)) -> list[Source]:
    """Return a feed, a table and a survey, each with just enough budget for so many streams."""
    budget = {"epsilon": streams * EPSILON + 2 * LARGE_EPSILON}
    people = {
        "path": str(table),
        "attributes": {"age": len(AGES), "sex": list(SEXES)},
        "texts": {"note": {"kind": "text"}},
    }
    return [
        _sources.validate_python(
            {"source": "feed", "kind": "values", "neighbors": "add-remove", "sensitivity": 1.0, **budget}
        ),
        _sources.validate_python(
            {"source": "people", "kind": "table", "neighbors": "replace", "delta": 1e-3, **people, **budget}
        ),
        _sources.validate_python({"source": "survey", "kind": "records", **budget}),
    ]


EVERYBODY: dict[str, Any] = {"population": "everybody", "epsilon": 500.0, "delta": 0.1, "renews": "1h"}
"""The population to which the table and the survey belong."""
ANALYST = "ada"
"""The analyst who opens the streams of the survey within an allotment."""


def shared(source: Source) -> Source:
    """Return the source as a member of ``EVERYBODY``; the survey's own budget renews too."""
    if source.source == "feed":
        return source
    renews = {"renews": "1h"} if source.source == "survey" else {}
    return source.model_copy(update={"population": EVERYBODY["population"], **renews})


def write_table(path: Path) -> None:
    """Write the rows of the table."""
    rows = zip(*ROWS.values(), strict=True)
    path.write_text(f"{','.join(ROWS)}\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))


def specs(plain: int = SENSITIVE_STREAMS) -> list[StreamSpec]:
    """Return streams of plain sparse vectors, and one stream of every other mechanism."""
    plans = {
        f"stream-{number}": ("feed", {"kind": "above_threshold", "threshold": THRESHOLD, "cutoff": CUTOFF})
        for number in range(plain)
    }
    return [
        StreamSpec.model_validate(
            {
                "stream": stream,
                "source": source,
                "mechanism": mechanism,
                "epsilon": LARGE_EPSILON if stream.endswith("weights") else EPSILON,
                "delta": 1e-6 if source == "people" and stream not in PURE else 0.0,
                "expected_queries": 100,
                "calibration": "textbook" if stream.endswith(("-0", "-4", "-8")) else "best",
            }
        )
        for stream, (source, mechanism) in {**plans, **MIXED}.items()
    ]


def question(kind: str, chance: random.Random, *, on_table: bool) -> dict[str, Any]:
    """Return a question that a stream of this kind accepts."""
    low = chance.randint(0, 6)
    where = {"where": f"age BETWEEN {low} AND {chance.randint(low, 7)}"}
    match kind:
        case "above_threshold" | "numeric_sparse" if not on_table:
            asked: dict[str, Any] = {"value": 1500.0 if chance.random() < 0.02 else chance.randint(0, 700)}
        case "above_threshold" | "numeric_sparse":
            asked = where
        case "laplace":
            asked = _with_wanted_accuracy(where, chance)
        case "noisy_max" | "exponential":
            asked = {"candidates": [{"name": f"age {age}", "where": f"age = {age}"} for age in (low, low + 1)]}
        case "histogram":
            asked = chance.choice([where, {"group_by": ["age"]}])
        case "pmw":
            terms = {"terms": [{**where, "weight": 0.5}, {"where": "sex = 'F'", "weight": 0.5}]}
            asked = _with_wanted_accuracy(chance.choice([where, terms, {"group_by": ["sex"], **where}]), chance)
        case "lazy_histogram" | "sparse_project" | "sparse_pmw":
            asked = {"cells": chance.sample(_CELLS, 3)}
        case "unknown_groups":
            asked = {"group_by": ["note"], **where}
        case "randomized_response":
            asked = {"category": chance.choice(["well", "ill"])}
        case _:
            raise ValueError(f"no question for {kind}")
    return asked


def _with_wanted_accuracy(asked: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the question, sometimes with a wanted accuracy."""
    return {**asked, "alpha": chance.choice(WANTED_ALPHAS)} if chance.random() < 0.4 else asked


def event(identifier: str, stream: str, asked: dict[str, Any]) -> bytes:
    """Return a query event."""
    return json.dumps({"id": identifier, "stream": stream, **asked}).encode()


@lru_cache(maxsize=1024)
def probe(stream: str, kind: str, *, on_table: bool) -> bytes:
    """Return an event for a stream; it is the same at every call."""
    return event("probe", stream, question(kind, random.Random(stream), on_table=on_table))


def standing_probe(stream: str, kind: str, source: EventsSource, standing: StandingQuery) -> bytes:
    """Return a ``probe`` for a standing stream: the question of its first window and first group."""
    start = standing.window.first_start_from(moment_ms(standing.begins or ""))
    window = {"start": format_moment(start), "end": format_moment(start + standing.window.size_ms)}
    asked: dict[str, Any] = {"window": window}
    if any(name in source.texts for name in standing.by):
        return event("probe", stream, {**asked, "texts": encode_text_counts({b"note 1": 3})})
    cells = [dict(cell) for cell in cells_of(source.attributes, standing.by)] if standing.by else [{}]
    values = 1 if standing.quantile is None else source.attributes[standing.quantile].size
    if kind == "histogram":
        asked["values"] = [3] * (len(cells) * values)
    else:
        listed = kind == "running_count" or standing.quantile is not None
        asked |= {"values": [3] * values} if listed else {"value": 3}
        asked |= {"group": cells[0]} if standing.by else {}
    return event("probe", stream, asked)


class Questions:
    """Events for some streams, in turn and at random, which a seed decides."""

    def __init__(self, streams: list[StreamSpec], seed: int) -> None:
        self._streams = streams
        self._chance = random.Random(seed)
        self._count = 0

    def next(self, stream: StreamSpec | None = None) -> tuple[str, str, bytes]:
        """Return the next id, stream and event; one event in fifty is malformed, but has an id and a stream."""
        spec = stream or self._streams[self._count % len(self._streams)]
        identifier = f"q{self._count}"
        self._count += 1
        asked = question(spec.mechanism.kind, self._chance, on_table=spec.source == "people")
        if self._chance.random() < 0.02:
            asked = {**asked, "surplus": True}
        return identifier, spec.stream, event(identifier, spec.stream, asked)


async def open_streams(client: AsyncClient, table: Path) -> list[OpenStream]:
    """Register the sources, open all streams, and return the requests that opened them."""
    write_table(table)
    await client.register_population(EVERYBODY)
    for source in sources(table):
        await client.register(shared(source))
    await client.allot(ANALYST, 2.0, source="survey")
    requests = [
        OpenStream(
            request=f"open {spec.stream}", stream=spec, analyst=ANALYST if spec.source == "survey" else None
        )
        for spec in specs()
    ]
    receipts = await client.requests(requests)
    assert {receipt.outcome for receipt in receipts} == {"opened"}, [one.reason for one in receipts]
    return requests


async def answered(client: AsyncClient, count: int, seconds: float) -> int:
    """Wait until at least ``count`` answers are committed, apart from those to windows, and return their number."""
    seen: list[Answer] = []

    async def read() -> None:
        async for answer in client.answers(from_beginning=True):
            if answer.window is None:
                seen.append(answer)
            if len(seen) >= count:
                return

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(read(), seconds)
    return len(seen)
