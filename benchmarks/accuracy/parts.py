"""The measured cases of each table and curve."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accuracy.peers import PEERS_HERE
from benchmarks.accuracy.runs import Case
from benchmarks.accuracy.streamed import STREAMED
from benchmarks.accuracy.tasks import DEEP, DIAMONDS, FEW, FLIGHTS, WIDE, WIDE_QUERIES, Workload

EPSILONS = (0.1, 1.0)
DELTA = 1e-6
ROUNDS = 5
QUERIES = 5_000
OURS, LAPLACE, GAUSSIAN = "pmw", "Laplace per query", "Gaussian per query"
BYPASS, TREE, PAIRS = "PMW-Bypass", "private-pgm, offline, a tree of pairs", "private-pgm, offline, all pairs"
SINGLES = "private-pgm, offline, single attributes"
MANY = 100_000
"""With so many questions or more, a case is run only once, because it takes long."""

QUESTIONS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
ROWS = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)


def main_table() -> Iterator[Case]:
    """Return the cases on Adult: all contenders on five attributes, and some on the other questions."""
    five = Workload(FEW, QUERIES)
    for epsilon in EPSILONS:
        for contender in (*STREAMED, BYPASS, "MWEM, offline, told the questions", PAIRS, TREE):
            yield Case(five, epsilon, 0.0, contender)
        for contender in (OURS, GAUSSIAN, BYPASS, PAIRS):
            yield Case(five, epsilon, DELTA, contender)
    for contender in (OURS, LAPLACE, BYPASS, "MWEM, offline, told the questions", PAIRS, SINGLES, TREE):
        yield Case(Workload(DEEP, QUERIES), 1.0, 0.0, contender)
    for contender in (OURS, GAUSSIAN):
        yield Case(Workload(DEEP, QUERIES), 1.0, DELTA, contender)
    for contender in (OURS, LAPLACE, SINGLES, TREE):
        yield Case(Workload(WIDE, WIDE_QUERIES), 1.0, 0.0, contender)
    for contender in (OURS, GAUSSIAN):
        yield Case(Workload(WIDE, WIDE_QUERIES), 1.0, DELTA, contender)


def other_tables() -> Iterator[Case]:
    """Return the cases on two tables of other shapes."""
    for name in (FLIGHTS, DIAMONDS):
        for epsilon in EPSILONS:
            for contender in (OURS, LAPLACE, SINGLES, TREE):
                yield Case(Workload(name, QUERIES), epsilon, 0.0, contender)
        for contender in (OURS, GAUSSIAN):
            yield Case(Workload(name, QUERIES), 1.0, DELTA, contender)


def questions_curve() -> Iterator[Case]:
    """Error against the number of questions."""
    for queries in QUESTIONS:
        for contender in (OURS, LAPLACE):
            yield Case(Workload(FEW, queries), 1.0, 0.0, contender)
        yield Case(Workload(FEW, queries), 1.0, DELTA, GAUSSIAN)


def rows_curve() -> Iterator[Case]:
    """Error against the number of rows."""
    for rows in ROWS:
        for contender in (OURS, LAPLACE, PAIRS):
            yield Case(Workload(FEW, QUERIES, rows), 1.0, 0.0, contender)
        yield Case(Workload(FEW, QUERIES, rows), 1.0, DELTA, GAUSSIAN)


PARTS = {
    "table": main_table,
    "other-tables": other_tables,
    "questions": questions_curve,
    "rows": rows_curve,
}
CONTENDERS = (*STREAMED, *PEERS_HERE)


def rounds_of(case: Case, rounds: int) -> int:
    """Return the number of noise keys with which a case is run."""
    return 1 if case.workload.queries >= MANY else rounds
