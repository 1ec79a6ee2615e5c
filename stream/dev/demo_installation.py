"""The demos' installation and answer reader, questions with true answers, checks, and report."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from schemas import (
    AboveThreshold,
    Answer,
    Calibration,
    GrantRecord,
    Query,
    Source,
    SourceRecord,
    StreamSpec,
    ValuesSource,
    format_moment,
)
from stream.client.async_client import AsyncClient
from stream.kafka.kafka_programs import fetch_jars
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics, delete_topics
from stream.privacy.noise.keys import NoiseKey
from stream.questions import Result
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from stream.tables.demo_tables import ADULT_PATH, adult_source, read_flights

TABLE, VALUES = "adult", "vitals"
BUDGET = 10.0
STREAM_EPSILON = 0.25
CUTOFF = 8
BETA = 1e-7
"""Bound on the probability that an error exceeds α; it is small, because the demo checks every answer."""
TABLE_STREAMS, VALUES_STREAMS = 20, 20
TABLE_THRESHOLD, VALUES_THRESHOLD = 12_000.0, 50_000.0


@dataclass(frozen=True)
class DemoQuestion:
    """A query with its true number."""

    query: Query
    truth: float
    threshold: float


def build_sources() -> list[Source]:
    """Return a table of people and a source of values, each with its budget."""
    values = ValuesSource(kind="values", source=VALUES, neighbors="add-remove", epsilon=BUDGET, sensitivity=1.0)
    return [adult_source(epsilon=BUDGET), values]


def build_streams(queries_per_stream: int) -> list[StreamSpec]:
    """Return twenty streams on each source."""
    plan = [(TABLE, number, TABLE_THRESHOLD) for number in range(TABLE_STREAMS)]
    plan += [(VALUES, number, VALUES_THRESHOLD) for number in range(VALUES_STREAMS)]
    return [
        StreamSpec(
            stream=f"{source}-{number:02}",
            source=source,
            mechanism=AboveThreshold(kind="above_threshold", threshold=threshold, cutoff=CUTOFF),
            epsilon=STREAM_EPSILON,
            expected_queries=queries_per_stream,
            beta=BETA,
        )
        for source, number, threshold in plan
    ]


def draw_questions(
    specs: list[StreamSpec], calibrations: dict[str, Calibration], queries_per_stream: int, seed: int
) -> Iterator[DemoQuestion]:
    """Yield queries to all streams in turn; a few percent of their numbers exceed the threshold."""
    generator = random.Random(seed)  # noqa: S311  (test questions, not noise)
    people = AdultColumns()
    for number in range(queries_per_stream):
        for spec in specs:
            query_id = f"{spec.stream}/{number:06}"
            if spec.source == TABLE:
                where, truth = _draw_table_question(people, generator)
                yield DemoQuestion(Query(id=query_id, stream=spec.stream, where=where), truth, TABLE_THRESHOLD)
            else:
                value = _draw_value(generator, VALUES_THRESHOLD, calibrations[spec.stream].alpha)
                yield DemoQuestion(Query(id=query_id, stream=spec.stream, value=value), value, VALUES_THRESHOLD)


def _draw_value(generator: random.Random, threshold: float, alpha: float) -> float:
    share = generator.random()
    if share < 0.98:
        return float(generator.randint(0, int(threshold - alpha)))
    if share < 0.99:
        return float(generator.randint(int(threshold - alpha), int(threshold + alpha)))
    return float(generator.randint(int(threshold + alpha), int(2 * threshold)))


class AdultColumns:
    """Columns of the Adult table, by which the demo counts rows independently of ``PrivateTable``."""

    def __init__(self) -> None:
        frame = pl.read_csv(ADULT_PATH)
        self.age = frame["age"].to_numpy()
        self.hours = frame["hours-per-week"].to_numpy()
        self.woman = frame["sex"].to_numpy() == "F"
        self.rows = frame.height


def _draw_table_question(people: AdultColumns, generator: random.Random) -> tuple[str, float]:
    """Return a predicate and its true count."""
    low = generator.randint(17, 70)
    if generator.random() < 0.987:
        high, hours = low + generator.randint(0, 6), generator.randint(20, 60)
        woman = generator.random() < 0.5
        where = (
            f"age BETWEEN {low} AND {high} AND sex = '{'F' if woman else 'M'}' AND \"hours-per-week\" < {hours}"
        )
        chosen = (people.age >= low) & (people.age <= high) & (people.woman == woman) & (people.hours < hours)
    else:
        oldest = generator.randint(45, 80)
        where = f"age <= {oldest} OR NOT sex IN ('M')"
        chosen = (people.age <= oldest) | people.woman
    return where, float(np.count_nonzero(chosen))


TOLERANCE = 1e-9
"""Tolerance for sums of doubles; the ledger compares exact integers."""


@dataclass(frozen=True)
class Check:
    """A claim, the observation (``seen``), and whether the claim held."""

    claim: str
    seen: str
    held: bool


@dataclass(frozen=True)
class DemoReport:
    """All checks and measurements of one run of the demo."""

    checks: list[Check]
    measurements: dict[str, Any]

    @property
    def held(self) -> bool:
        """True if every check held."""
        return all(check.held for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON fields."""
        return {"held": self.held, "checks": [asdict(check) for check in self.checks], **self.measurements}


def check_answers(
    asked: Mapping[str, DemoQuestion], answers: Iterable[Answer], calibrations: Mapping[str, Calibration]
) -> tuple[list[Check], Counter[str]]:
    """Check that answers are complete, within α, and within the cutoffs."""
    times: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    tops: Counter[str] = Counter()
    after_end = wrong = 0
    halted: set[str] = set()
    indices: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        times[answer.id] += 1
        outcomes[answer.outcome] += 1
        if answer.outcome == "halted":
            halted.add(answer.stream)
            continue
        if answer.index is None:
            continue
        after_end += answer.stream in halted
        indices[answer.stream].append(answer.index)
        tops[answer.stream] += answer.outcome == "above"
        question, alpha = asked[answer.id], calibrations[answer.stream].alpha
        distance = question.truth - question.threshold
        wrong += distance < -alpha if answer.outcome == "above" else distance > alpha
    repeated = sum(count > 1 for count in times.values())
    missing = len(asked) - len(times)
    gaps = sum(sorted(seen) != list(range(len(seen))) for seen in indices.values())
    cutoffs = {name: calibration.cutoff for name, calibration in calibrations.items()}
    over = sum(tops[name] > cutoff for name, cutoff in cutoffs.items())
    judged = outcomes["above"] + outcomes["below"]
    checks = [
        Check(
            "every query is answered exactly once",
            f"{len(asked):,} asked, {len(times):,} answered, {missing} missing, {repeated} twice",
            not missing and not repeated and len(times) == len(asked),
        ),
        Check(
            "above and below are right within the promised α",
            f"{judged:,} judged ({outcomes['above']} above), {wrong} beyond α",
            wrong == 0 and judged > 0,
        ),
        Check(
            "no stream is above more often than its cutoff",
            f"most {max(tops.values(), default=0)} of {max(cutoffs.values())}, {over} over",
            over == 0 and outcomes["above"] > 0,
        ),
        Check(
            "a halted stream never answers again",
            f"{outcomes['halted']:,} answers 'halted', {after_end} answers after",
            after_end == 0,
        ),
        Check("each stream's answers are numbered without gap", f"{gaps} streams with gaps", gaps == 0),
    ]
    return checks, outcomes


def check_budget(record: SourceRecord, grants: Sequence[GrantRecord], exhausted: set[str]) -> Check:
    """Check that the budget adds up, and that the ledger shows exactly the streams in ``exhausted`` as exhausted."""
    total = record.source.epsilon
    granted, spent, refunded = record.granted.epsilon, record.spent.epsilon, record.refunded.epsilon
    ledger_exhausted = {grant.spec.stream for grant in grants if grant.tops == grant.calibration.cutoff}
    held = (
        granted - refunded <= total + TOLERANCE
        and abs(total - granted + refunded - record.left.epsilon) <= TOLERANCE
        and abs(sum(grant.spent.epsilon for grant in grants) - spent) <= TOLERANCE
        and abs(granted - refunded - spent) <= TOLERANCE
        and all(grant.spent.epsilon <= grant.cost.epsilon + TOLERANCE for grant in grants)
        and ledger_exhausted == exhausted & {grant.spec.stream for grant in grants}
    )
    return Check(
        f"budget of {record.source.source} adds up (ε {total:g})",
        f"granted {granted:.4f}, spent {spent:.4f}, refunded {refunded:.4f}, left {record.left.epsilon:.4f}, "
        f"{len(ledger_exhausted)} streams are exhausted",
        held,
    )


LATE_MINUTES = 60
"""Minutes of delay from which a departure is late; cancelled departures are late too."""
WINDOW_MS = 12 * 3_600_000

WindowAirport = tuple[str, str]
"""Start of a window, and an airport."""


@dataclass(frozen=True)
class Truth:
    """Exact counts of a window and airport: late aircraft (each counted once), and late departures."""

    aircraft: int
    departures: int


def exact_counts() -> dict[WindowAirport, Truth]:
    """Return exact counts of every window and airport with a late departure."""
    late = read_flights().filter(pl.col("delay") >= LATE_MINUTES).drop_nulls("aircraft")
    late = late.with_columns(window=pl.col("scheduled") // WINDOW_MS * WINDOW_MS)
    # Only the first late departure of an aircraft in a window counts, at any airport.
    counted = late.unique(["window", "aircraft"], keep="first", maintain_order=True)
    bounded = counted.group_by("window", "origin").agg(aircraft=pl.len())
    counts = late.group_by("window", "origin").agg(departures=pl.len()).join(bounded, ["window", "origin"], "left")
    return {
        (format_moment(window), origin): Truth(aircraft or 0, departures)
        for window, origin, departures, aircraft in counts.iter_rows()
    }


LOCAL_SESSION = {"session_timeout_ms": 2000, "heartbeat_ms": 500}
"""Settings with which Kafka notices a killed worker after two seconds, for groups on a local broker."""
ANSWER_TIMEOUT = 60.0
"""Maximum number of seconds to wait for the next answer, or for the budget service to close the streams."""


class DemoProgress:
    """Prints steps and a progress bar on standard error; standard output has only the result."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console)
        self._task: TaskID | None = None

    def print_step(self, message: str) -> None:
        """Start a step."""
        self._console.print(Text(f"· {message}"), soft_wrap=True)

    def advance(self, published: int, answered: int, total: int) -> None:
        """Show the numbers of published and answered queries."""
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("answered", total=total)
        self._progress.update(self._task, completed=answered, description=f"{published:,} published, answered")

    def stop(self) -> None:
        """End the bar."""
        self._progress.stop()


@dataclass(frozen=True)
class DemoInstallation:
    """The services of a run on Kafka, with a separate prefix."""

    settings: Settings
    workers: tuple[Service, ...]


@contextmanager
def start_installation(
    folder: Path, progress: DemoProgress, bootstrap: str | None, *, feed: bool = False
) -> Iterator[DemoInstallation]:
    """Start a budget service and two workers, and stop them at the end.

    Args:
        folder: Folder for broker data, logs and the key of this run.
        progress: Receives the progress.
        bootstrap: Address of a Kafka; None starts a local one.
        feed: Start a feed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_id = uuid.uuid4().hex[:8]
    key_file = folder / f"{run_id}.key"
    NoiseKey.generate().save(key_file)
    with ExitStack() as stack:
        stack.callback(key_file.unlink)
        if bootstrap is None:
            fetch_jars(progress.print_step)
            progress.print_step("starting Kafka")
            broker = stack.enter_context(LocalBroker(folder / "broker"))
            kafka = Settings.of_local_broker(broker.start().bootstrap).model_copy(update=LOCAL_SESSION)
        else:
            kafka = Settings(bootstrap=bootstrap)
        changed = {"prefix": f"sotto-demo-{run_id}", "table_roots": str(ADULT_PATH.parent)}
        settings = kafka.model_copy(update=changed)
        asyncio.run(create_topics(settings))
        stack.callback(lambda: asyncio.run(delete_topics(settings)))
        progress.print_step(f"starting the budget service{', a feed' if feed else ''} and two workers")
        roles: list[tuple[RoleName, int]] = [("budget", 0), ("worker", 0), ("worker", 1)]
        roles += [("feed", 0)] if feed else []
        services = [
            stack.enter_context(
                Service(role, settings, key_file, folder / "logs" / f"{run_id}-{role}-{number}.log")
            )
            for role, number in roles
        ]
        yield DemoInstallation(settings, tuple(service for service in services if service.role == "worker"))


class DemoAnswers:
    """Reads a client's answers in the background, within an ``async with`` block."""

    def __init__(self, client: AsyncClient, progress: DemoProgress, total: int) -> None:
        self.answers: list[Result] = []
        self.published = 0
        self._client = client
        self._progress = progress
        self._total = total

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def advance(self, published: int = 0) -> None:
        """Report the progress after further published events."""
        self.published += published
        self._progress.advance(self.published, len(self.answers), self._total)

    async def wait(self, count: int, *, or_exhausted: bool = False) -> None:
        """Wait for ``count`` answers, or until no answer arrives for ``ANSWER_TIMEOUT`` seconds."""
        seen, since = len(self.answers), time.monotonic()
        while len(self.answers) < count and not (
            or_exhausted and any(answer.tops_left == 0 for answer in self.answers)
        ):
            await asyncio.sleep(0.1)
            self.advance()
            if len(self.answers) > seen:
                seen, since = len(self.answers), time.monotonic()
            elif time.monotonic() - since > ANSWER_TIMEOUT:
                return

    async def _read(self) -> None:
        async for answer in self._client.answers(from_beginning=True):
            self.answers.append(answer)
