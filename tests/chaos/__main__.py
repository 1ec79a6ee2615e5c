"""Runs schedules of the simulation, and then rounds of real faults on a real broker, for a longer time than the tests do.

``make chaos ARGS='--minutes 30 --seed 7'`` starts such a run. With ``--nodes 3``, the brokers of a cluster fail. A violation ends
the run, and shows the seed that repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from stream.diagnostics import silence_kafka_client
from tests.chaos.campaign import campaign
from tests.chaos.cluster import NODES, cluster_campaign
from tests.chaos.loaded_installation import REPORTS
from tests.simulation.__main__ import main as simulate


def main() -> int:
    """Return exit status 1 at the first violation."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1000, help="the first seed of both")
    parser.add_argument("--schedules", type=int, default=5000, help="simulated schedules")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long real faults go on")
    parser.add_argument("--nodes", type=int, choices=(1, NODES), default=1, help="how many brokers they happen to")
    chosen = parser.parse_args()
    processes = str(os.cpu_count() or 1)
    schedules = ["--seed", str(chosen.seed), "--schedules", str(chosen.schedules), "--processes", processes]
    if chosen.schedules and simulate(schedules):
        return 1
    silence_kafka_client()
    with tempfile.TemporaryDirectory(prefix="sotto-chaos-") as folder:
        try:
            faults = cluster_campaign if chosen.nodes == NODES else campaign
            asyncio.run(faults(Path(folder), chosen.seed, 60 * chosen.minutes, _say))
        except AssertionError as error:
            _say(f"violation: {error}")
            return 1
        finally:
            for line in REPORTS:
                _say(line)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
