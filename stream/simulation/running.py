"""Streams run over public data, by the processors that would run them over private data."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from blake3 import blake3

from schemas import Query, Source, StreamSpec, TableSource
from stream.data import Table
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
    if isinstance(source, TableSource) and table is None:
        raise SimulationError(f"source '{source.source}': it has a table; give a public one")
    loaded = Table.load(source, table) if isinstance(source, TableSource) else None
    truths = truths_of(source, loaded)
    made = tuple(_run(number, spec, source, questions, table, seed, truths) for number in range(1, runs + 1))
    return Report(len(questions), None if loaded is None else loaded.file_row_count, seed, made)


def _run(
    number: int,
    spec: StreamSpec,
    source: Source,
    questions: Mapping[int, Query],
    table: pl.DataFrame | None,
    seed: int,
    truths: Truths,
) -> Run:
    driver = Driver(blake3(f"sotto simulation v1 {seed} {number}".encode()).digest(), partitions=1)
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
