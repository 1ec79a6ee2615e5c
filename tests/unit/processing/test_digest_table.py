"""A table of digests finds exactly the added rows, whether they are in files or in memory."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import tracemalloc
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition

from stream.engine import partition_task
from stream.engine.batch_loop import FAILURES_UNTIL_NOT_READY, InputPlace, ProcessingError
from stream.privacy.ledger.retirement import DIGEST_BYTES
from stream.processing import digest_table
from stream.processing.digest_table import DigestFileError, DigestTable
from tests.unit.engine.tasks import task_of_a_worker

KEYS = [bytes(8), b"\xff" * 8, bytes(7) + b"\x01"]
"""First halves that many digests have in common."""


def some_digest(chance: Random) -> bytes:
    return chance.choice([chance.randbytes(8), chance.choice(KEYS)]) + chance.randbytes(8)


@pytest.mark.parametrize("row_bytes", [0, 1, 36])
@pytest.mark.parametrize("most_recent", [2, 7, 100])
def test_digest_table_equals_a_dict(row_bytes: int, most_recent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for searches of one digest and of many, with pages of a few rows and merges of a few pages."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", most_recent)
    monkeypatch.setattr(digest_table, "PAGE_BYTES", 128)
    monkeypatch.setattr(digest_table, "_PAGES_PER_READ", 3)
    monkeypatch.setattr(digest_table, "_MIN_JOINT_SEARCH", 5)
    chance = Random(most_recent + row_bytes)
    table, expected = DigestTable(row_bytes), dict[bytes, bytes]()
    digests = [some_digest(chance) for _ in range(300)]
    assert not table
    for _ in range(500):
        digest = chance.choice(digests)
        expected.setdefault(digest, chance.randbytes(row_bytes))
        table.add(digest, expected[digest])
        sought = chance.choice(digests)
        assert table.find(sought) == expected.get(sought)
    others = [bytes(16), b"\xff" * 16, *(some_digest(chance) for _ in range(100))]
    assert [table.find(one) for one in [*digests, *others]] == [expected.get(one) for one in [*digests, *others]]
    for some in (digests + others, digests[:3] + others[:1], []):
        places = [at for at, one in enumerate(some) if one in expected]
        assert table.find_all(b"".join(some)) == places
    assert table
    assert len(expected) <= len(table) <= 500


@pytest.fixture(autouse=True)
def few_recent_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a small table writes files."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 16)


def digest_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * 2


def test_repeated_rows_leave_the_table_at_a_merge() -> None:
    table = DigestTable()
    for _ in range(4):
        for number in range(80):
            table.add(digest_of(number))
    assert len(table) < 2 * 80


def test_memory_does_not_grow_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the recent rows, only the first key of each page is in memory, also during merges."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 1000)
    peaks = []
    for count in (20_000, 200_000):
        tracemalloc.start()
        table, chance = DigestTable(36), Random(1)
        for _ in range(count):
            table.add(chance.randbytes(DIGEST_BYTES), bytes(36))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2_000_000 + 180_000 * 0.2


@pytest.fixture
def full_table() -> DigestTable:
    """Return a table that writes a file with its next row."""
    table = DigestTable()
    for number in range(111):
        table.add(digest_of(number))
    return table


def test_full_disk_stops_the_step_and_loses_no_row(full_table: DigestTable) -> None:
    with (
        patch.object(tempfile, "TemporaryFile", side_effect=OSError(28, "No space left on device")),
        pytest.raises(DigestFileError, match=r"SOTTO_ENGINE_FOLDER: .*No space left on device.*free disk space"),
    ):
        full_table.add(digest_of(111))
    assert all(full_table.find(digest_of(number)) is not None for number in range(112))


def test_full_disk_while_a_file_is_written_leaves_no_file(
    full_table: DigestTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are not written yet are neither written nor reported when the file is closed."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(DigestFileError, match="File too large"):
            full_table.add(digest_of(111))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (reported, len(list(open_files.iterdir()))) == ([], before)
    assert all(full_table.find(digest_of(number)) is not None for number in range(112))


async def test_partition_names_the_folder_of_digests_that_it_cannot_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log and /readyz have the error's text, which quotes no private data."""
    monkeypatch.setattr(partition_task, "RETRY_PAUSES", (0.0,))
    task, place = task_of_a_worker(), InputPlace(TopicPartition("control", 0), 7)
    failure = ProcessingError(place)
    failure.__cause__ = DigestFileError("SOTTO_ENGINE_FOLDER: no space")
    for _ in range(FAILURES_UNTIL_NOT_READY):
        await task._recover(failure)
    assert "SOTTO_ENGINE_FOLDER: no space" in task.health.stop_reason


def test_missing_folder_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_ENGINE_FOLDER", "/nowhere/at/all")
    table = DigestTable()
    with pytest.raises(DigestFileError, match="'/nowhere/at/all'"):
        table.add_all((digest_of(number), b"") for number in range(16))
    assert table.find(digest_of(3)) == b""


@pytest.mark.parametrize("damage", ["zeros", "short", "byte"])
def test_damaged_file_is_an_error_and_no_missing_row(damage: str, full_table: DigestTable) -> None:
    """Otherwise the name of a retired stream could be used again."""
    for file in full_table._files:
        size = os.fstat(file._file).st_size
        if damage == "short":
            os.ftruncate(file._file, 0)
        elif damage == "zeros":
            os.pwrite(file._file, bytes(size), 0)
        else:
            os.pwrite(file._file, b"\x55", 9)
    for number in range(64):
        with pytest.raises(DigestFileError, match="cannot be read again"):
            full_table.find(digest_of(number))
    with pytest.raises(DigestFileError):
        full_table.find_all(bytes(range(16)) * 2000)


def test_files_have_no_name_and_are_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other users cannot read the files, and none is left when the table is freed."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("SOTTO_ENGINE_FOLDER", str(tmp_path))
    table = DigestTable()
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    for number in range(20):
        table.add(digest_of(number))
    [file] = table._files
    assert (open_files / str(file._file)).readlink().parent == tmp_path
    assert os.fstat(file._file).st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []
    del table, file
    assert len(list(open_files.iterdir())) == before
