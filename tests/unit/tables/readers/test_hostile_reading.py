"""A malicious file may have taken over the process that reads it, so the process may send and do anything."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
from contextvars import copy_context
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from schemas import TableSource
from stream.tables.engine_limits import CancelledStepError, current_cancellation
from stream.tables.readers import table_reading as reading_module
from stream.tables.store import TableStore
from tests.unit.tables.readers.guarded import AGE, cause, reader
from tests.unit.tables.small import source


def source_with_program(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> TableSource:
    """Return the source of a table in the folder; its reading process runs this program."""
    (folder / "hostile_reading.py").write_text(program)
    (folder / "people.csv").write_text("age\n1\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(reading_module, "READING_PROCESS", "hostile_reading")
    return source(AGE, path=str(folder / "people.csv"))


def program_that_sends(header: bytes, codes: bytes = b"") -> str:
    """Return a program that sends these bytes, and ends."""
    return f"import sys; sys.stdout.buffer.write({len(header).to_bytes(4, 'little') + header + codes!r})"


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(600)",
        "import os; os.abort()",
        "print('no frame', flush=True)",
        r"import sys; sys.stdout.buffer.write((1 << 30).to_bytes(4, 'little'))",
        program_that_sends(b'{"rows": 1, "file_rows": 1, "unnamed": 0}', bytes([100])),
        program_that_sends(b'{"rows": 2, "file_rows": 1, "unnamed": 0}', bytes([0, 0])),
        program_that_sends(b'{"rows": 2, "file_rows": 2, "unnamed": 1}', bytes([0, 0])),
        program_that_sends(b'{"rows": 2, "file_rows": 1, "unnamed": -1}', bytes([0, 0])),
        program_that_sends(b'{"rows": 5, "file_rows": 5, "unnamed": 0}', bytes(4)),
        program_that_sends(b'{"rows": "Alice is 34", "file_rows": 1, "unnamed": 0}'),
        program_that_sends(b'{"rows": Infinity, "file_rows": 1, "unnamed": 0}'),
        program_that_sends(b'{"rows": ' + b"9" * 5000 + b', "file_rows": 1, "unnamed": 0}'),
        program_that_sends(b'"\xff"'),
        "import sys; sys.stdout.buffer.write((1 << 18).to_bytes(4, 'little') + b'[' * (1 << 18))",
        program_that_sends(b'{"refused": "Alice is 34"}'),
        program_that_sends(b'{"refused": ["Alice is 34", "age", ""]}'),
        program_that_sends(b'{"refused": ["missing", "Alice is 34", ""]}'),
        program_that_sends(b'{"refused": ["no text", "age", "Alice is 34"]}'),
        "while True:\n    " + program_that_sends(b'{"rows": 0, "file_rows": 0, "unnamed": 0}'),
    ],
    ids=[
        *("hangs", "crashes", "no frame", "long header", "no such code", "more rows than the file"),
        *("rows beside unnamed ones", "fewer than no unnamed rows", "cut"),
        *("text for a number", "infinity", "long number", "no text", "deep", "words of its own", "no refusal"),
        *("no column", "no type", "no end"),
    ],
)
def test_guarded_reader_does_not_trust_process_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    declared = source_with_program(tmp_path, monkeypatch, program)
    assert "Alice" not in cause(lambda: reader(tmp_path, seconds=3.0)(declared))


@pytest.mark.parametrize("apart", [False, True], ids=["of its group", "of another session"])
def test_guarded_reader_ends_children_of_process_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    lock = tmp_path / "lock"
    program = (
        "import fcntl, os, time\n"
        "if os.fork() == 0:\n"
        f"    {'os.setsid()' if apart else ''}\n"
        f"    file = open({str(lock)!r}, 'w')\n"
        "    fcntl.flock(file, fcntl.LOCK_EX)\n"
        "    print(os.getpid(), file=file, flush=True)\n"
        "time.sleep(20)"
    )
    declared = source_with_program(tmp_path, monkeypatch, program)
    begun = monotonic()
    assert cause(lambda: reader(tmp_path, seconds=2.0)(declared))
    if apart:
        os.kill(int(lock.read_text()), signal.SIGKILL)
    with lock.open() as file:
        # While this is held, its process is alive.
        fcntl.flock(file, fcntl.LOCK_EX)
    assert monotonic() - begun < 10


def test_reading_ends_when_its_partition_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that would go on for minutes ends with its partition, and is no refusal of the table."""
    table = source_with_program(tmp_path, monkeypatch, "import time; time.sleep(600)")
    given_up = Event()
    given_up.set()

    def read() -> None:
        current_cancellation.set(given_up)
        with pytest.raises(CancelledStepError):
            reader(tmp_path).read(table)

    copy_context().run(read)


def test_table_is_read_once_a_process_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "people.csv").write_text("age\n1\n")
    declared, store = source(AGE, path=str(tmp_path / "people.csv")), TableStore(bytes(32), read=reader(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", no_room)
        assert cause(lambda: store.get(declared)) == "no process could be started: Too many open files"
    assert store.get(declared).private_row_count == 1
