"""Structured logs on standard error. Nothing private is ever logged: events are named by position, not by content."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

import structlog


class _LossyStream:
    """Standard error, which loses what cannot be written: a full disk under the log must not stop a service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def configure(*, as_json: bool, level: str = "INFO") -> None:
    """Send structured records, and the libraries' warnings, to standard error."""
    lossy: Any = _LossyStream()
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        # One write a line, its end included: several workers log to the standard error of one parent.
        logger_factory=structlog.WriteLoggerFactory(lossy),
    )
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    logging.basicConfig(stream=lossy, level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")


def quiet_clients() -> None:
    """Keep the Kafka client's own log off a person's terminal: what it reports there, it retries."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def get_logger(component: str) -> Any:
    """A logger that says which component speaks."""
    return structlog.get_logger(component=component)
