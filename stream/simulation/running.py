"""Streams run over public data, by the processors that would run them over private data."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from blake3 import blake3

from schemas import EventsSource, Query, Source, StreamSpec, TableSource
from stream.data import Rows, Table
from stream.data.store import table_key
from stream.noise import NoiseKey
from stream.simulation.errors import SimulationError
from stream.simulation.measuring import measure
from stream.simulation.report import Ending, Report, Run
from stream.simulation.truths import Truths, truths_of
from stream.testing import Driver


def simulate(
    spec: StreamSpec,
    source: Source,
    questions: Mapping[int, Query],
    table: pl.DataFrame | None = None,
    *,
    runs: int = 5,
    seed: int = 0,
) -> Report:
    """Open the stream on an installation in memory and ask it everything in order, once for each run.

    ``table`` stands in for the source's own and must be public: exact errors are told. Each run has a noise key that is
    derived from the seed and its number, so it protects nothing and is used for nothing else. The source's whole budget
    is there in each run, whatever a deployment's ledger has left of it.

    Raises:
        SimulationError: what is given does not fit together.
        Refused: the source's budget does not pay for the stream, or no plan does.
    """
    if spec.source != source.source:
        raise SimulationError(
            f"SPEC source: names '{spec.source}', and the source is '{source.source}'; give the source that it names"
        )
    if spec.standing is not None or isinstance(source, EventsSource):
        raise SimulationError(
            f"source '{source.source}': windows ask standing streams, and no file of questions; 'sotto plan' tells how far off their "
            "answers are, and a Driver in memory takes events"
        )
    if isinstance(source, TableSource) and table is None:
        raise SimulationError(f"source '{source.source}': it has a table; give a public one")
    exact = _Exact(source, table)
    made = tuple(_run(number, spec, source, questions, table, seed, exact) for number in range(1, runs + 1))
    return Report(source, len(questions), exact.rows, exact.counted, seed, made)


class _Exact:
    """The exact answers of each run. Where people have several rows, its key decides which of them count."""

    def __init__(self, source: Source, table: pl.DataFrame | None) -> None:
        self._source = source
        self._rows = Rows.load(source, table) if isinstance(source, TableSource) else None
        self._table: Table | None = None
        self._truths: Truths | None = None

    @property
    def rows(self) -> int | None:
        """How many rows the public table has."""
        return None if self._rows is None else self._rows.file_row_count

    @property
    def counted(self) -> int | None:
        """How many of them count: as many by every key."""
        return None if self._table is None else self._table.private_row_count

    def of(self, key: NoiseKey) -> Truths:
        """What a run with this key should answer."""
        if self._truths is None or (self._rows is not None and self._rows.people is not None):
            if self._rows is not None and isinstance(self._source, TableSource):
                self._table = Table.of(self._rows, self._source, table_key(key))
            self._truths = truths_of(self._source, self._table)
        return self._truths


def _run(
    number: int,
    spec: StreamSpec,
    source: Source,
    questions: Mapping[int, Query],
    table: pl.DataFrame | None,
    seed: int,
    exact: _Exact,
) -> Run:
    key = NoiseKey(blake3(f"sotto simulation v1 {seed} {number}".encode()).digest())
    truths = exact.of(key)
    driver = Driver(key, partitions=1)
    driver.register(source, table)
    driver.open(spec)
    answers = dict(zip(questions, driver.ask_many(questions.values()), strict=True))
    grant = driver.grant(spec.source, spec.stream)
    stopped = [(line, answer) for line, answer in answers.items() if answer.outcome == "halted"]
    rejections = {line: one.reason or "" for line, one in answers.items() if one.outcome == "rejected"}
    return Run(
        number=number,
        grant=grant,
        answered=len(answers) - len(stopped) - len(rejections),
        halted=len(stopped),
        rejections=rejections,
        ended=Ending(stopped[0][0], stopped[0][1].reason or "") if stopped else None,
        measurements=tuple(
            measured
            for line, answer in answers.items()
            for measured in measure(line, questions[line], answer, spec, grant.calibration, truths)
        ),
    )
