"""Measures the processor time of the command's start, compared with ``import numpy``: ``python -m benchmarks.starting``."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from typing import Final

RUNS: Final = 9
CASES: Final = {
    "import numpy": ["-c", "import numpy"],
    "sotto --help": ["-m", "sotto", "--help"],
    "sotto ask --help": ["-m", "sotto", "ask", "--help"],
    "from sotto import Client": ["-c", "from sotto import Client"],
    "what sotto ask imports": ["-c", "import stream.cli.manage.query_commands"],
    "what a feed imports": ["-c", "import stream.cli.service_commands, stream.services.feed_service"],
    "what a worker imports": ["-c", "import stream.cli.service_commands, stream.services.runner"],
}


def main() -> None:
    """Print the median of each case, measured in turns, and its ratio to the first."""
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(RUNS):
        for name, arguments in CASES.items():
            taken[name].append(_processor_seconds(arguments))
    unit = statistics.median(taken["import numpy"])
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"{name:26} {median:6.3f} s   × {median / unit:.2f}")


def _processor_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
