"""``sotto ledger`` without Kafka: exports of the trail, and the verification of files."""

from __future__ import annotations

import asyncio
import csv
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from schemas import HaltStream, LedgerRecord, TrailRecord, trail_codec
from schemas.ledger import TrailRestored
from sotto import Refused
from stream.budget.receipts import entry_digest
from stream.cli.app import app
from stream.cli.manage import ledger_commands
from stream.cli.manage.ledger_commands import continue_after_rollback, verify
from stream.cli.manage.record_rows import summary_row, write_trail
from stream.cli.output import CommandError
from tests.commands import run_sotto
from tests.unit.dev.backups import back_up, installation

Entries = list[tuple[TrailRecord, bytes]]
FORMULA = "=1+1"
"""An id that a spreadsheet would compute."""


@pytest.fixture
def entries() -> Entries:
    driver = installation()
    with pytest.raises(Refused):
        driver.request(HaltStream(request=FORMULA, source="feed", stream="nowhere"))
    values = [record.value or b"" for record in driver.records(driver.topics.trail)]
    return [(trail_codec.decode(value), value) for value in values]


def test_export_has_every_entry_in_columns_and_unchanged_bytes(entries: Entries, tmp_path: Path) -> None:
    lines, table, frame = (tmp_path / f"trail.{ending}" for ending in ("jsonl", "csv", "parquet"))
    for path in (lines, table, frame):
        assert write_trail(path, [entries[:3], entries[3:]]) == len(entries)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = [value for _, value in entries]
    assert lines.read_bytes().splitlines() == values
    with table.open(newline="") as file:
        read = list(csv.DictReader(file))
    rows = parquet.read_table(frame).to_pylist()
    assert [row["record"].encode() for row in read] == [row["record"].encode() for row in rows] == values
    assert [row["digest"] for row in rows] == list(map(entry_digest, values))
    opened = next(row for row in rows if row["action"] == "open")
    entry = next(entry for entry, _ in entries if entry.kind == "request" and entry.action == "open")
    assert entry.kind == "request"
    assert entry.granted is not None
    assert entry.totals is not None
    assert (opened["granted_epsilon"], opened["total_left_epsilon"]) == (
        entry.granted.epsilon,
        entry.totals.left.epsilon,
    )
    assert [row["request"] for row in rows if row["outcome"] == "refused"] == [FORMULA]
    assert [row["request"] for row in read if row["outcome"] == "refused"] == ["'" + FORMULA]


def test_export_overwrites_nothing_and_names_its_formats(entries: Entries, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(CommandError, match="exists already"):
        write_trail(tmp_path / "there.csv", [entries])
    assert (tmp_path / "there.csv").read_text() == "mine"
    with pytest.raises(CommandError, match=r"\.jsonl, \.csv or \.parquet"):
        write_trail(tmp_path / "trail.xlsx", [entries])

    def broken() -> Entries:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_trail(tmp_path / "half.jsonl", (broken() for _ in range(1)))
    assert not (tmp_path / "half.jsonl").exists()


def test_every_trail_entry_is_one_line(entries: Entries) -> None:
    assert {len(summary_row(entry)) for entry, _ in entries} == {7}
    assert any("refused: stream 'nowhere'" in summary_row(entry)[5] for entry, _ in entries)


@pytest.mark.parametrize(
    ("reason", "loss"), [(None, "a backup was restored"), ("disk of broker 2", "a rollback was accepted")]
)
def test_trail_line_of_a_loss_names_backup_or_rollback(reason: str | None, loss: str) -> None:
    digest = "0" * 64
    entry = TrailRestored(number=1, previous=digest, time=0, since="halt", lost=1, backup=digest, reason=reason)
    assert summary_row(entry)[5] == (
        f"{loss}: later entries are lost; later grants are unknown, so all sources are halted; "
        "1 stream that was not closed has ended"
    )


def test_verify_compares_files_with_noted_heads(entries: Entries, tmp_path: Path) -> None:
    trail, backup = tmp_path / "trail.jsonl", tmp_path / "backup"
    write_trail(trail, [entries])
    head = f"{len(entries)}:{entry_digest(entries[-1][1])}"
    whole = run_sotto("ledger", "verify", str(trail), "--head", head)
    assert whole.returncode == 0, whole.stderr
    assert f"head {head}" in whole.stdout.replace("\n", "")
    assert "only the trail" in whole.stdout
    unseen = "a rollback is not noticed"
    assert unseen not in whole.stdout.replace("\n", " ")
    assert unseen in run_sotto("ledger", "verify", str(trail)).stdout.replace("\n", " ")
    cut = tmp_path / "cut.jsonl"
    write_trail(cut, [entries[:-1]])
    alone = run_sotto("ledger", "verify", str(cut)).stdout.replace("\n", " ")
    assert ("later entries may be cut off" in alone, "left out or cut off" in alone) == (True, False)
    missing = run_sotto("ledger", "verify", str(cut), "--head", head)
    assert missing.returncode == 1
    assert f"but a head of {len(entries)} entries was noted" in missing.stdout.replace("\n", " ")
    trail.write_bytes(trail.read_bytes().replace(b'"granted":{"epsilon":1.0', b'"granted":{"epsilon":0.5', 1))
    changed = run_sotto("ledger", "verify", str(trail))
    assert changed.returncode == 1
    assert "its digest of entry" in changed.stdout.replace("\n", " ")
    back_up(installation(), backup)
    both = run_sotto("ledger", "verify", str(backup))
    assert (both.returncode, "the ledger follows from it" in both.stdout.replace("\n", " ")) == (0, True), (
        both.stderr
    )
    backup.write_bytes(backup.read_bytes()[:-10])
    cut_off = run_sotto("ledger", "verify", str(backup))
    assert (cut_off.returncode, "is cut off" in cut_off.stderr) == (1, True)
    assert "NUMBER:DIGEST" in run_sotto("ledger", "verify", str(trail), "--head", "12").stderr


def test_format_of_a_file_depends_on_its_content_not_its_name(entries: Entries, tmp_path: Path) -> None:
    trail, renamed, backup = tmp_path / "trail.jsonl", tmp_path / "a.backup", tmp_path / "b.jsonl"
    write_trail(trail, [entries])
    trail.rename(renamed)
    back_up(installation(), backup)
    alone = run_sotto("ledger", "verify", str(renamed))
    assert (alone.returncode, "only the trail" in alone.stdout) == (0, True), alone.stderr
    both = run_sotto("ledger", "verify", str(backup))
    assert (both.returncode, "the ledger follows from it" in both.stdout) == (0, True), both.stderr


@pytest.mark.parametrize("is_new", [False, True])
def test_verify_knows_a_lost_ledger_from_a_new_installation(
    entries: Entries, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trail of a lost ledger has entries; whoever registered its sources again could double their budgets."""

    @contextmanager
    def connection(_: asyncio.Runner) -> Iterator[None]:
        yield

    async def no_records(_: None) -> list[LedgerRecord]:
        return []

    trail = [] if is_new else [value for _, value in entries]
    monkeypatch.setattr(ledger_commands, "_open_connection", connection)
    monkeypatch.setattr(ledger_commands, "read_ledger_records", no_records)
    monkeypatch.setattr(ledger_commands, "_read_trail", lambda _: [trail])
    done = CliRunner().invoke(app, ["ledger", "verify"], env={"COLUMNS": "500"})
    lost = f"the ledger is empty, but the trail has {len(entries)} entries: the topic ledger was probably lost"
    assert done.exit_code == 1
    assert done.stdout.startswith("the ledger has no trail yet" if is_new else lost)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trail.jsonl", b"", "is empty"),
        ("vitals.backup", b"\n", "is empty"),
        ("trail.csv", b"number,time,kind\n", "is neither a backup nor a trail"),
        ("trail.parquet", b"PAR1\x00\xff\xfe", "is neither a backup nor a trail"),
        ("answers.jsonl", b'{"id":"q1","stream":"s"}\n', "is neither a backup nor a trail"),
    ],
)
def test_file_without_an_entry_is_never_complete(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CommandError, match=f"{name} {said}.*'sotto ledger export'"):
        verify(tmp_path / name)


def test_rollback_is_not_accepted_without_a_reason() -> None:
    with pytest.raises(CommandError, match="--reason: is empty; say why"):
        continue_after_rollback(since="halt", reason=" ")
