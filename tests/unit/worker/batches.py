"""Workers for batches of many forms."""

from __future__ import annotations

from sotto import Driver
from stream.worker.worker_processor import QueryProcessor
from tests.builders import installation, source
from tests.unit.installation import spec, worker_of


def mixed_driver() -> Driver:
    """Return a driver with streams of all layouts of noise, on sources with different grids, sensitivities and accountants."""
    return installation(
        spec("best", cutoff=5),
        spec("twin", cutoff=5),
        spec("book", cutoff=5, calibration="textbook"),
        spec("fine-best", "fine", cutoff=3, threshold=0.4),
        spec("fine-book", "fine", cutoff=3, calibration="textbook"),
        spec("coarse-best", "coarse", cutoff=1),
        spec("coarse-book", "coarse", cutoff=2, calibration="textbook"),
        spec("people-best", "people", cutoff=2, threshold=90.0),
        spec("people-book", "people", cutoff=2, calibration="textbook", threshold=90.0),
        sources=[
            source(),
            source("fine", grid=0.01, sensitivity=0.25),
            source("coarse", grid=3.0, accountant="zcdp", delta=1e-6),
            source("people", "table"),
        ],
    )


DRIVER = mixed_driver()
FEEDS = ("best", "twin", "book", "fine-best", "fine-book", "coarse-best", "coarse-book")
TABLES = ("people-best", "people-book")


def new_worker(only: set[str] | None = None) -> QueryProcessor:
    return worker_of(DRIVER, tables=DRIVER._tables, only=only)
