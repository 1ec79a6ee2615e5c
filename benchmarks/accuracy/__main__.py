"""Measures the accuracy of many answers about one table for the same budget: `pmw` compared with all alternatives.

The same random questions go to everybody, about the Adult table and two of other shapes. Every run is kept in a file as soon as it
is made; a run that is there is not made again, so that a measurement can be stopped, taken up, and done piece by piece.
Errors are shares of the rows; answers are clamped to what a count can be, for every contender alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.parts import CONTENDERS, PARTS, ROUNDS, rounds_of
from benchmarks.accuracy.peers import PEERS_HERE
from benchmarks.accuracy.report import DOCUMENT, show, write
from benchmarks.accuracy.runs import MEASURED, Case, Measured
from benchmarks.accuracy.streamed import STREAMED
from benchmarks.accuracy.tasks import make
from benchmarks.report import console


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all contenders the same questions, show tables, and write the requested files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="parts to measure")
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, help="only these")
    parser.add_argument("--epsilon", type=float, help="only cases with this ε")
    parser.add_argument("--delta", type=float, help="only cases with this δ")
    parser.add_argument("--most-queries", type=int, help="only cases with so many questions at most")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many noise keys; medians are shown")
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before")
    parser.add_argument("--results", type=Path, default=MEASURED, help="the file of all runs")
    parser.add_argument("--show", action="store_true", help="measure nothing; show what there is")
    parser.add_argument("--write", action="store_true", help=f"write the tables and figures of {DOCUMENT}")
    options = parser.parse_args(arguments)
    cases = [case for part in options.only for case in PARTS[part]() if _chosen(case, options)]
    measured = Measured(options.results)
    if not options.show:
        for case in cases:
            measure(measured, case, rounds_of(case, options.rounds), again=options.again)
    show(measured, cases)
    if options.write:
        write(measured)


def measure(measured: Measured, case: Case, rounds: int, *, again: bool) -> None:
    """Make the missing runs of a case, or all of them."""
    for number in range(rounds):
        if measured.get(case, number) is not None and not again:
            continue
        task = make(case.workload)
        if task is None:
            return
        contend = STREAMED[case.contender].run if case.contender in STREAMED else PEERS_HERE[case.contender]
        run = contend(task, case.epsilon, case.delta, number)
        if run is None:
            console.print(f"{case.contender} cannot take part: {case.workload.name}, δ = {case.delta:g}")
            return
        measured.put(case, number, run)
        console.print(f"{case.key(number)}: largest {run.largest:.4f}, mean {run.mean:.5f}", highlight=False)


def _chosen(case: Case, options: argparse.Namespace) -> bool:
    return (
        (options.contender is None or case.contender in options.contender)
        and options.epsilon in (None, case.epsilon)
        and options.delta in (None, case.delta)
        and (options.most_queries is None or case.workload.queries <= options.most_queries)
    )


if __name__ == "__main__":
    main()
