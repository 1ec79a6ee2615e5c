"""Runs schedules, and prints injected faults and findings: ``python -m tests.simulation --seed 0 --schedules 10000``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import live, periods, schedule

WORLDS = {"queries": schedule.play, "live": live.play, "periods": periods.play}
"""The simulated worlds: queries and budgets, feeds alone, or all services over a live topic with periods."""


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 1 if a schedule found a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds from there on")
    parser.add_argument("--world", choices=WORLDS, default="queries", help="what is simulated")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    injected: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    broken = 0
    with ProcessPoolExecutor(chosen.processes) as pool:
        for report in pool.map(
            WORLDS[chosen.world], range(chosen.seed, chosen.seed + chosen.schedules), chunksize=20
        ):
            injected += report.injected
            figures += report.figures
            if report.violations:
                broken += 1
                sys.stdout.write(f"{report}\n")
    for name, times in sorted(injected.items()):
        sys.stdout.write(f"{times:8}  {name}\n")
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{chosen.schedules} schedules in {seconds:.0f} s, {figures['seconds']} simulated s: {figures['questions']} questions; "
        f"{figures['aborted']} transactions aborted by a successor, {figures['expired']} by the broker, "
        f"{figures['fenced']} calls fenced; {broken} schedules with violations\n"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
