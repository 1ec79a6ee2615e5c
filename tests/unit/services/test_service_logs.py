"""Services' logs are readable only by their owner, and not larger than configured."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stream.services import processes
from stream.services.processes import Service
from stream.settings import Settings


def test_service_log_is_rotated_at_limit_and_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 1000)
    log = tmp_path / "logs" / "monitor-0.log"
    log.parent.mkdir()
    log.write_text("an earlier version's\n")
    log.chmod(0o644)
    # Without tokens, the monitor reports what it lacks, and ends.
    with Service("monitor", Settings(), None, log) as service:
        service._process.wait(60)
        with log.open("ab") as appended:
            for number in range(3):
                appended.write(b"%d" % number * 1001)
                appended.flush()
                service.rotate_large_log()
                assert log.stat().st_size == 0
            appended.write(b"last")
            appended.flush()
            service.rotate_large_log()
    previous = log.with_name("monitor-0.log.1")
    assert (log.read_bytes(), previous.read_bytes()) == (b"last", b"2" * 1001)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log, previous)] == [0o600, 0o600]
