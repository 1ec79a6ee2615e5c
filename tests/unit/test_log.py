"""Log lines stay whole, and no log stops a service."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
import threading

import pytest
import structlog

from stream.diagnostics import MAX_REPEATS, REPEAT_SECONDS, RepeatFilter, configure_logs, get_logger


class Pipe(io.StringIO):
    """Keeps each write separately, because another process could write to the same file between two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


class FullDisk(io.StringIO):
    tries = 0

    def write(self, text: str) -> int:
        del text
        self.tries += 1
        raise OSError(errno.ENOSPC, "no space left on device")


def test_log_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stderr", pipe)
    configure_logs(as_json=True)
    log = get_logger("engine")
    log.info("assigned", partitions=[0, 1])
    log.error("state went back")
    assert all(text.endswith("\n") and text.count("\n") == 1 for text in pipe.writes)
    assert [json.loads(text)["event"] for text in pipe.writes] == ["assigned", "state went back"]


def test_full_disk_loses_log_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk()
    monkeypatch.setattr("sys.stderr", disk)
    configure_logs(as_json=False)
    get_logger("engine").info("assigned")
    assert disk.tries


def test_repeated_error_is_logged_at_a_bounded_rate() -> None:
    """The next line has the number of lines that were left out."""
    now = 0.0
    bounded = RepeatFilter(clock=lambda: now)

    def written(event: str, method: str = "error") -> dict[str, object] | None:
        try:
            return dict(bounded(None, method, {"component": "engine", "event": event}))
        except structlog.DropEvent:
            return None

    lines = []
    for _ in range(3600):
        lines.append(written("partition starts over"))
        now += 1.0
    kept = [line for line in lines if line is not None]
    assert MAX_REPEATS <= len(kept) <= MAX_REPEATS + 3600 / REPEAT_SECONDS + 1
    assert sum(1 + int(str(line.get("held_back", 0))) for line in kept) >= 3600 - REPEAT_SECONDS
    assert written("another error") is not None
    assert all(written("assigned", "info") is not None for _ in range(1000))


def test_repeated_message_of_a_library_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters do not make it another message."""
    pipe = Pipe()
    monkeypatch.setattr("sys.stderr", pipe)
    configure_logs(as_json=True)
    for number in range(1000):
        logging.getLogger("aiokafka.client").error(
            "Unable connect to node %s: %s", number, OSError(111, "refused")
        )
    assert len(pipe.writes) == MAX_REPEATS
    assert json.loads(pipe.writes[0])["event"] == "Unable connect to node 0: [Errno 111] refused"


SECRET = "secret-that-must-not-be-logged"  # noqa: S105


def test_log_quotes_nothing_from_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stderr", pipe)
    configure_logs(as_json=True)
    log = logging.getLogger("library")
    try:
        int(SECRET)
    except ValueError as error:
        log.exception("failed")
        log.error("failed: %r", error)  # noqa: TRY400
        log.error("failed\n%s", error)  # noqa: TRY400
        logging.getLogger("asyncio").error("Exception in callback f('%s')\n%s", SECRET, error)  # noqa: TRY400
    assert len(pipe.writes) == 4
    assert SECRET not in "".join(pipe.writes)
    first = json.loads(pipe.writes[0])
    assert (first["error"], first["component"]) == ("ValueError", "library")
    assert "test_log.py" in first["at"][0]


def test_log_quotes_nothing_from_an_uncaught_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stderr", pipe)
    configure_logs(as_json=True)
    thread = threading.Thread(target=lambda: int(SECRET))
    thread.start()
    thread.join()
    try:
        int(SECRET)
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    lines = [json.loads(text) for text in pipe.writes]
    assert [(line["event"], line["error"]) for line in lines] == [("uncaught exception", "ValueError")] * 2
    assert SECRET not in "".join(pipe.writes)


def test_repeated_warnings_of_one_source_hide_no_other_source() -> None:
    """A feed that fails for one source a thousand times leaves the lines of another source in the log."""
    bounded = RepeatFilter()

    def is_written(source: str) -> bool:
        try:
            bounded(None, "warning", {"component": "engine", "event": "partition starts over", "source": source})
        except structlog.DropEvent:
            return False
        return True

    assert sum(is_written("stuck") for _ in range(1000)) == MAX_REPEATS
    assert is_written("other")
