"""The process that reads one table for a service: ``python -m stream.data.reading_process``.

It takes a source and limits on standard input, gives the rows' codes or a refusal on standard output, and ends. What reads tables is
imported when nothing else can be done any more.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from stream.data.confinement import confine


def main() -> None:
    """Read one table."""
    request = json.load(sys.stdin)
    _limit(request["reading_bytes"], request["seconds"])
    # An address is read with drivers' settings and credentials, which lie anywhere.
    if request["parts"] is not None:
        confine(map(Path, request["folders"]))
    from stream.data.sending import send  # noqa: PLC0415  (it begins threads)

    send(request, sys.stdout.buffer)
    # Readers may have threads that wait for whoever reads on.
    os._exit(0)


def _limit(memory: int, seconds: float) -> None:
    """Have the operating system stop whatever takes more; a process that is stopped leaves no image of its memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Several threads may take the time of as many processors.
    most = int(seconds) * (os.cpu_count() or 1) + 1
    _lower(resource.RLIMIT_CPU, most, most + 1)
    # Private writable memory, which is what a table unfolds into; programs and mapped files do not count.
    _lower(resource.RLIMIT_DATA, memory, memory)


def _lower(limit: int, soft: int, hard: int) -> None:
    """Set a limit, unless the process began with a lower one, which it may not raise."""
    _, given = resource.getrlimit(limit)
    if given != resource.RLIM_INFINITY:
        soft, hard = min(soft, given), min(hard, given)
    resource.setrlimit(limit, (soft, hard))


if __name__ == "__main__":
    main()
