"""Asks twenty-five ordinary questions of three real tables: ``python -m benchmarks.ordinary_questions``.

Prints truth, answer, confidence interval and α side by side; ``--write`` puts them into ``answers.md`` of the example.
``--coverage 20`` counts the intervals that contain the truth, under 20 noise keys.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from sotto import Driver
from stream.tables.demo_tables import AIRPORTS, read_flights

ROOT: Final = Path(__file__).parents[1]
TABLES: Final = ROOT / "examples" / "ordinary_questions"
DOCUMENT: Final = TABLES / "answers.md"
MARKS: Final = ("<!-- answers: begin -->", "<!-- answers: end -->")
SHOWN_GROUPS: Final = 1
"""Most groups of a question in the document; totals are of all groups."""

Truth = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class Question:
    """A question in words and in SQL, its truth, and the error that the reader can accept.

    ``truth`` returns the groups' columns, if any, and last the number; ``accepted`` is in its unit.
    """

    words: str
    sql: str
    truth: Truth
    accepted: float


@dataclass(frozen=True)
class Table:
    """A table, its source, its streams, and the questions of an analyst."""

    title: str
    frame: pl.DataFrame
    source: Mapping[str, Any]
    streams: tuple[Mapping[str, Any], ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Line:
    """One published number beside the truth."""

    question: Question
    group: str
    truth: float
    answer: float
    low: float | None
    high: float | None
    alpha: float | None

    @property
    def error_bound(self) -> float | None:
        """The half-width of the interval, or α without an interval; None if the answer states neither."""
        if self.low is not None and self.high is not None:
            return max(self.high - self.answer, self.answer - self.low)
        return self.alpha

    @property
    def verdict(self) -> str:
        """Whether a reader would act on the number: the stated error is at most the accepted one."""
        bound = self.error_bound
        if bound is None:
            return "no: error not stated"
        return "yes" if bound <= self.question.accepted else "no: too wide"

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval contains the truth; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.truth <= self.high


def _count(condition: pl.Expr) -> Truth:
    return lambda frame: frame.select(condition.sum())


def _by(key: str, number: pl.Expr) -> Truth:
    return lambda frame: frame.group_by(key).agg(number).sort(key)


def _of(number: pl.Expr, condition: pl.Expr | None = None) -> Truth:
    return lambda frame: (frame if condition is None else frame.filter(condition)).select(number)


def _whole_range(minimum: int, maximum: int) -> dict[str, Any]:
    return {"kind": "integers", "minimum": minimum, "maximum": maximum}


def health() -> Table:
    """Return the table of the health insurance experiment, with nine questions."""
    visits, limited = pl.col("visits").clip(0, 30), pl.col("limited") == "yes"
    poor = pl.col("health").is_in(["fair", "poor"])
    return Table(
        "Health insurance experiment: 20,190 rows",
        pl.read_csv(TABLES / "health.csv.gz").with_columns(pl.col("coinsurance").cast(pl.String)),
        {
            "source": "health",
            "attributes": {
                "visits": _whole_range(0, 30),
                "coinsurance": ["0", "25", "50", "95", "100"],
                "deductible": ["yes", "no"],
                "limited": ["yes", "no"],
                "diseases": {"kind": "decimal", "minimum": 0, "maximum": 60, "step": 0.01},
                "health": {
                    "kind": "categories",
                    "values": ["poor", "fair", "good", "excellent"],
                    "ordered": True,
                },
            },
        },
        (
            {"stream": "health_numbers", "mechanism": {"kind": "laplace", "answers": 7}, "epsilon": 0.7},
            {
                "stream": "health_cells",
                "mechanism": {
                    "kind": "histogram",
                    "attributes": ["coinsurance", "deductible", "limited", "health"],
                },
                "epsilon": 0.3,
            },
        ),
        (
            Question(
                "Rows with a physical limitation",
                "SELECT COUNT(*) FROM health_numbers WHERE limited = 'yes'",
                _count(limited),
                100,
            ),
            Question(
                "Mean visits (at most 30)", "SELECT AVG(visits) FROM health_numbers", _of(visits.mean()), 0.2
            ),
            Question(
                "Mean visits with a limitation",
                "SELECT AVG(visits) FROM health_numbers WHERE limited = 'yes'",
                _of(visits.mean(), limited),
                0.5,
            ),
            Question(
                "Median index of diseases",
                "SELECT MEDIAN(diseases) FROM health_numbers",
                _of(pl.col("diseases").quantile(0.5, "lower")),
                1.0,
            ),
            Question(
                "90 % have at most this number of visits",
                "SELECT QUANTILE(visits, 0.9) FROM health_numbers",
                _of(visits.quantile(0.9, "lower")),
                2,
            ),
            Question(
                "Deviation of the visits",
                "SELECT STDDEV(visits) FROM health_numbers",
                _of(visits.std(ddof=0)),
                0.5,
            ),
            Question(
                "Rows with no visit, by coinsurance",
                "SELECT coinsurance, COUNT(*) FROM health_numbers WHERE visits = 0 GROUP BY coinsurance",
                _by("coinsurance", (visits == 0).sum()),
                100,
            ),
            Question(
                "Share in fair or poor health, by deductible plan",
                "SELECT deductible, COUNT(*) FILTER (WHERE health <= 'fair') / COUNT(*) FROM health_cells GROUP BY deductible",
                _by("deductible", poor.mean()),
                0.02,
            ),
            Question(
                "Rows by health, with a limitation",
                "SELECT health, COUNT(*) FROM health_cells WHERE limited = 'yes' GROUP BY health",
                _by("health", limited.sum()),
                60,
            ),
        ),
    )


def survey() -> Table:
    """Return the survey, with eight questions."""
    dole, old = pl.col("vote") == "Dole", pl.col("age") >= 65
    return Table(
        "Election survey: 944 rows",
        pl.read_csv(TABLES / "survey.csv.gz"),
        {
            "source": "survey",
            "attributes": {
                "age": _whole_range(18, 99),
                "education": _whole_range(1, 7),
                "income": _whole_range(1, 24),
                "tv_news": _whole_range(0, 7),
                "position": _whole_range(1, 7),
                "party": _whole_range(0, 6),
                "vote": ["Clinton", "Dole"],
            },
        },
        ({"stream": "survey_answers", "mechanism": {"kind": "laplace", "answers": 8}, "epsilon": 1.0},),
        (
            Question(
                "Respondents who will vote for Dole",
                "SELECT COUNT(*) FROM survey_answers WHERE vote = 'Dole'",
                _count(dole),
                47,
            ),
            Question(
                "Share of Dole voters aged 65 or more",
                "SELECT AVG(CASE WHEN vote = 'Dole' THEN 1 ELSE 0 END) FROM survey_answers WHERE age >= 65",
                _of(dole.mean(), old),
                0.05,
            ),
            Question("Mean age", "SELECT AVG(age) FROM survey_answers", _of(pl.col("age").mean()), 3),
            Question(
                "Median class of income",
                "SELECT MEDIAN(income) FROM survey_answers",
                _of(pl.col("income").quantile(0.5, "lower")),
                2,
            ),
            Question(
                "Respondents without TV news",
                "SELECT COUNT(*) FROM survey_answers WHERE tv_news = 0",
                _count(pl.col("tv_news") == 0),
                47,
            ),
            Question(
                "Share of Dole voters, by education",
                "SELECT education, COUNT(*) FILTER (WHERE vote = 'Dole') / COUNT(*) FROM survey_answers GROUP BY education",
                _by("education", dole.mean()),
                0.1,
            ),
            Question(
                "Respondents by party",
                "SELECT party, COUNT(*) FROM survey_answers GROUP BY party",
                _by("party", pl.len()),
                30,
            ),
            Question(
                "Conservative respondents with a college degree",
                "SELECT COUNT(*) FROM survey_answers WHERE position >= 5 AND education >= 5",
                _count((pl.col("position") >= 5) & (pl.col("education") >= 5)),
                47,
            ),
        ),
    )


def departures() -> Table:
    """Return a year of departures, with eight questions."""
    delay = pl.col("delay").clip(-30, 180)
    frame = read_flights().with_columns(
        scheduled=pl.from_epoch("scheduled", "ms").dt.replace_time_zone("UTC"),
        delay=pl.col("delay").cast(pl.Int64),
    )
    local = pl.col("scheduled").dt.convert_time_zone("America/New_York")
    frame = frame.with_columns(month=local.dt.month(), weekday=local.dt.weekday(), hour=local.dt.hour())
    cancelled = pl.col("delay") == 1440
    part = {"kind": "timestamp", "zone": "America/New_York"}
    return Table(
        "Departures from New York: 336,776 rows",
        frame,
        {
            "source": "departures",
            "columns": {"month": "scheduled", "weekday": "scheduled", "hour": "scheduled", "late": "delay"},
            "attributes": {
                "origin": list(AIRPORTS),
                "delay": _whole_range(-60, 1440),
                "late": _whole_range(-30, 180),
                "month": {**part, "granularity": "month-of-year"},
                "weekday": {**part, "granularity": "weekday"},
                "hour": {**part, "granularity": "hour-of-day"},
            },
        },
        ({"stream": "departures", "mechanism": {"kind": "laplace", "answers": 8}, "epsilon": 1.0},),
        (
            Question(
                "Departures more than an hour late",
                "SELECT COUNT(*) FROM departures WHERE delay > 60 AND delay < 1440",
                _count((pl.col("delay") > 60) & ~cancelled),
                500,
            ),
            Question(
                "Share of cancelled departures, by airport",
                "SELECT origin, AVG(CASE WHEN delay = 1440 THEN 1 ELSE 0 END) FROM departures GROUP BY origin",
                _by("origin", cancelled.mean()),
                0.002,
            ),
            Question(
                "Mean delay within −30 to 180 minutes, from JFK",
                "SELECT AVG(late) FROM departures WHERE origin = 'JFK'",
                _of(delay.mean(), pl.col("origin") == "JFK"),
                0.5,
            ),
            Question("Median delay", "SELECT MEDIAN(late) FROM departures", _of(delay.quantile(0.5, "lower")), 2),
            Question(
                "90 % leave with at most this delay",
                "SELECT QUANTILE(late, 0.9) FROM departures",
                _of(delay.quantile(0.9, "lower")),
                5,
            ),
            Question(
                "Departures by month",
                "SELECT month, COUNT(*) FROM departures GROUP BY month",
                _by("month", pl.len()),
                280,
            ),
            Question(
                "Departures at weekends after 20:00",
                "SELECT COUNT(*) FROM departures WHERE weekday >= 6 AND hour >= 20",
                _count((pl.col("weekday") >= 6) & (pl.col("hour") >= 20)),
                100,
            ),
            Question(
                "Mean delay of the evening, from LGA",
                "SELECT AVG(late) FROM departures WHERE origin = 'LGA' AND hour >= 18",
                _of(delay.mean(), (pl.col("origin") == "LGA") & (pl.col("hour") >= 18)),
                1,
            ),
        ),
    )


def ask(table: Table, noise_key: bytes) -> list[Line]:
    """Ask all questions of a table through an installation in memory."""
    driver = Driver(noise_key)
    source = {"kind": "table", "neighbors": "add-remove", "epsilon": 1.0, "path": "-", **table.source}
    driver.register(source, table.frame)
    for stream in table.streams:
        driver.open({"source": source["source"], "expected_queries": 100, **stream})
    return [line for question in table.questions for line in _ask_one(driver, table.frame, question)]


def _ask_one(driver: Driver, frame: pl.DataFrame, question: Question) -> list[Line]:
    truth = question.truth(frame)
    *groups, number = truth.columns
    true_numbers = {tuple(str(row[key]) for key in groups): float(row[number]) for row in truth.to_dicts()}
    table = driver.sql(question.sql)
    column = next(name for name in table.columns if name not in groups)
    lines = []
    for row in table:
        group = tuple(str(row[key]) for key in groups)
        low, high = row.get(f"{column} 95% low"), row.get(f"{column} 95% high")
        error = row[f"{column} ±"]
        lines.append(
            Line(question, ", ".join(group), true_numbers.get(group, 0.0), float(row[column]), low, high, error)
        )
    return lines


def _shown(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def describe(table: Table, lines: list[Line]) -> str:
    """Return the table's section as Markdown."""
    streams = "; ".join(
        f"`{one['stream']}`: {one['mechanism']['kind']}, ε = {one['epsilon']:g}" for one in table.streams
    )
    heading = [f"## {table.title}", "", streams, ""]
    heading += ["| question | group | truth | answer | 95 % interval | α | accepted | act on it? |"]
    heading += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    rows = []
    for line in lines:
        own = [one for one in lines if one.question is line.question]
        place = own.index(line)
        if place >= SHOWN_GROUPS:
            continue
        words = line.question.words if place == 0 else ""
        interval = "–" if line.low is None else f"{_shown(line.low)} … {_shown(line.high)}"
        numbers = f"{_shown(line.truth)} | {_shown(line.answer)} | {interval} | {_shown(line.alpha)}"
        rows.append(
            f"| {words} | {line.group} | {numbers} | ± {_shown(line.question.accepted)} | {line.verdict} |"
        )
    return "\n".join([*heading, *rows, ""])


def summarize(lines: list[Line]) -> str:
    """Return one paragraph with the totals of all lines."""
    useful = [line for line in lines if line.verdict == "yes"]
    right = [line for line in useful if abs(line.answer - line.truth) <= line.question.accepted]
    covered = [line.is_covered for line in lines if line.is_covered is not None]
    questions = {line.question.words for line in lines}
    whole = questions - {line.question.words for line in lines if line.verdict != "yes"}
    return (
        f"{len(questions)} questions gave {len(lines)} numbers. All numbers of {len(whole)} questions can be acted on:\n"
        f"their stated error is at most the accepted one. Of these {len(useful)} numbers {len(right)} are within the\n"
        f"accepted error. {sum(covered)} of {len(covered)} intervals contain the truth.\n"
    )


def measure_coverage(keys: int) -> str:
    """Return how many of the intervals of all questions, under noise keys 1 to ``keys``, contain the truth."""
    tables = (health(), survey(), departures())
    covered = [
        line.is_covered
        for key in range(1, keys + 1)
        for table in tables
        for line in ask(table, key.to_bytes(32))
        if line.is_covered is not None
    ]
    return f"{sum(covered):,} of {len(covered):,} intervals contain the truth: {sum(covered) / len(covered):.1%}"


def report(noise_key: bytes) -> str:
    """Ask all questions under a noise key, and return the part of the document that has the answers."""
    asked = [(table, ask(table, noise_key)) for table in (health(), survey(), departures())]
    lines = [line for _, own in asked for line in own]
    return "\n".join([summarize(lines), *(describe(table, own) for table, own in asked)])


def main() -> None:
    """Ask all questions; print the document, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the answers into the README of the example")
    parser.add_argument("--key", type=int, default=1, help="number of the noise key (default 1)")
    parser.add_argument("--coverage", type=int, metavar="N", help="only count the intervals of N keys that hold")
    chosen = parser.parse_args()
    if chosen.coverage is not None:
        print(measure_coverage(chosen.coverage))
        return
    text = report(chosen.key.to_bytes(32))
    if not chosen.write:
        print(text)
        return
    before, rest = DOCUMENT.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    DOCUMENT.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
