"""Log lines stay whole, and no log stops a service."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from stream.log import configure, get_logger


class Pipe(io.StringIO):
    """Remembers each write, as other processes that write to the same file could come between any two."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        del text
        raise OSError(errno.ENOSPC, "no space left on device")


@pytest.fixture(autouse=True)
def _configured_afterwards_as_before() -> Iterator[None]:
    before = structlog.get_config()
    level = logging.getLogger("aiokafka").level
    yield
    structlog.configure(**before)
    logging.getLogger("aiokafka").setLevel(level)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stderr", pipe)
    configure(as_json=True)
    log = get_logger("engine")
    log.info("assigned", partitions=[0, 1])
    log.error("state went back")
    assert all(text.endswith("\n") and text.count("\n") == 1 for text in pipe.writes)
    assert [json.loads(text)["event"] for text in pipe.writes] == ["assigned", "state went back"]


def test_a_full_disk_loses_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", FullDisk())
    configure(as_json=False)
    get_logger("engine").info("assigned")
