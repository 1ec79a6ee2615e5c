"""A witness in a file: written anchors are read again, and crashes, other users and a lost disk are noticed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.settings import Settings
from stream.witnesses import witness_kinds
from stream.witnesses.anchor import (
    LARGEST_TIME,
    MAX_ANCHORS_READ,
    DamagedWitnessError,
    WitnessError,
    largest_end,
    newest_generation,
    parse_anchor,
)
from stream.witnesses.witness_kinds import FileWitness, open_witnesses
from tests.unit.witnesses.anchors import anchor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "anchors.jsonl"


def test_file_keeps_anchors_of_each_installation(path: Path) -> None:
    """The newest anchors come first, and only as many as needed are read."""
    witness = FileWitness(path)
    assert witness.read_newest("sotto") == []
    for entries in range(MAX_ANCHORS_READ + 5):
        witness.write(anchor(entries, ends={"state": (entries, 3)}))
        witness.write(anchor(entries, installation="other"))
    found = witness.read_newest("sotto")
    assert [one.head.entries for one in found] == list(range(MAX_ANCHORS_READ + 4, 4, -1))
    assert {one.installation for one in found} == {"sotto"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_line_cut_off_by_a_crash_is_passed_over(path: Path) -> None:
    """The next anchor begins a new line, and nothing is overwritten, because the file may be append-only."""
    witness = FileWitness(path)
    witness.write(anchor(1))
    cut = anchor(2).encode()[:30]
    with path.open("ab") as file:
        file.write(cut)
    assert [one.head.entries for one in witness.read_newest("sotto")] == [1]
    witness.write(anchor(3))
    assert [one.head.entries for one in witness.read_newest("sotto")] == [3, 1]
    assert cut in path.read_bytes()
    path.write_bytes(path.read_bytes()[:-9])
    witness.write(anchor(4))
    assert [one.head.entries for one in witness.read_all()] == [1, 4]
    path.write_bytes(path.read_bytes()[:-1] + b"~")  # two crashes: without the newline, and within the next mark
    witness.write(anchor(5))
    assert [one.head.entries for one in witness.read_all()] == [1, 4, 5]


def test_damaged_lines_are_named_beside_the_good_anchors(path: Path) -> None:
    """A damaged anchor may be the newest one, so its witness must not pass for a whole one."""
    witness = FileWitness(path)
    for entries in range(4):
        witness.write(anchor(entries))
    lines = path.read_bytes().splitlines(keepends=True)
    for number in (1, 3):
        lines[number] = lines[number].replace(b'"head"', b'"hea\x00"')
    path.write_bytes(b"".join(lines))
    reads: list[Callable[[], object]] = [lambda: witness.read_newest("sotto"), witness.read_all]
    for read in reads:
        with pytest.raises(
            DamagedWitnessError, match=rf"^file://{path}: no anchor in line 2, 4, which is"
        ) as raised:
            read()
        assert {one.head.entries for one in raised.value.anchors} == {0, 2}


def test_file_is_on_the_disk_before_write_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced, and for a new file also its folder."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    FileWitness(path).write(anchor(1))
    FileWitness(path).write(anchor(2))
    assert synced == [False, True, False]


@pytest.mark.parametrize("mode", [0o622, 0o660])
def test_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.write_bytes(b"")
    path.chmod(mode)
    for call in (lambda: FileWitness(path).write(anchor(1)), lambda: FileWitness(path).read_newest("sotto")):
        with pytest.raises(WitnessError, match="others may write to it; run 'chmod 600"):
            call()


def test_file_witness_reads_back_to_its_own_anchors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its anchors are found before many anchors of another installation, and before zeros that a crash has left."""
    monkeypatch.setattr(witness_kinds, "_BLOCK_BYTES", 700)
    witness = FileWitness(path)
    for entries in range(1, 5):
        witness.write(anchor(entries, ends={"state": (entries, 3)}))
    for entries in range(20):
        witness.write(anchor(entries, installation="other"))
    assert [one.head.entries for one in witness.read_newest("sotto")][:1] == [4]
    with path.open("ab") as file:
        file.write(bytes(5_000))
    assert [one.head.entries for one in witness.read_newest("sotto")][:1] == [4]
    assert [one.head.entries for one in witness.read_newest("other")][:1] == [19]
    assert witness.read_newest("new") == []


def test_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a file can change it, whatever its mode."""
    FileWitness(path).write(anchor(1))
    monkeypatch.setattr(witness_kinds, "trusted_users", set)
    for call in (lambda: FileWitness(path).write(anchor(1)), lambda: FileWitness(path).read_newest("sotto")):
        with pytest.raises(WitnessError, match=r"belongs to another user \(uid \d+\), who could change it; run"):
            call()


def test_pipe_is_refused_and_does_not_hang(path: Path) -> None:
    os.mkfifo(path, 0o600)
    for call in (lambda: FileWitness(path).read_newest("sotto"), lambda: FileWitness(path).write(anchor(1))):
        with pytest.raises(WitnessError, match="is no regular file; give the path of a file"):
            call()


def test_anchor_of_an_impossible_time_is_ignored() -> None:
    """The time of every accepted anchor can be shown."""
    assert anchor(1, written=LARGEST_TIME).time.startswith("2286-")
    text = anchor(1, written=LARGEST_TIME).encode().replace(b"%d" % LARGEST_TIME, b"%d")
    assert parse_anchor(text % LARGEST_TIME) is not None
    assert parse_anchor(text % (LARGEST_TIME + 1)) is None


def test_file_in_a_folder_of_others_or_behind_a_link_is_refused(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(WitnessError, match="check its disk and folder"):
        FileWitness(link).write(anchor(1))
    path.parent.chmod(0o777)
    with pytest.raises(WitnessError, match="others may write to /"):
        FileWitness(path).write(anchor(1))


def test_lost_disk_is_an_error_and_no_empty_witness(tmp_path: Path) -> None:
    gone = FileWitness(tmp_path / "mounted" / "anchors.jsonl")
    for call in (lambda: gone.write(anchor(1)), lambda: gone.read_newest("sotto")):
        with pytest.raises(WitnessError, match="No such file or directory; check its disk"):
            call()


def test_newest_generation_binds_in_any_order() -> None:
    """A process that does not know of an accepted rollback may still write anchors of the earlier generation."""
    anchors = [
        anchor(30, ends={"state": (9, 9)}),
        anchor(12, generation=1, reason="restored", ends={"state": (4, 6)}),
        anchor(31, written=99_999),
        anchor(14, generation=1, ends={"state": (5, 5)}),
    ]
    newest = newest_generation(anchors)
    assert [one.head.entries for one in newest] == [14, 12]
    assert [largest_end(newest, "state", partition) for partition in range(3)] == [5, 6, 0]
    assert largest_end(newest, "control", 0) == 0
    assert newest_generation([]) == []


def test_setting_names_witnesses(tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    pytest.importorskip("adbc_driver_postgresql")
    given = f"file://{tmp_path}/a.jsonl, s3://evidence/sotto/,postgresql://db:5433/audit/public/anchors"
    assert [one.name for one in open_witnesses(given)] == [one.strip() for one in given.split(",")]
    assert open_witnesses(Settings().witnesses) == []


@pytest.mark.parametrize(
    "address",
    [
        *("file://relative/a", "file:///folder/", "ftp://secret/", "s3://user:secret@bucket/", "/srv/secret"),
        *("s3://B/", "s3://bucket/x?secret=1", "postgresql://secret/"),
    ],
)
def test_other_addresses_are_refused_without_a_quote(address: str) -> None:
    with pytest.raises(WitnessError, match=r"^SOTTO_WITNESSES: address 2: ") as refused:
        open_witnesses(f"file:///srv/a,{address}")
    assert "secret" not in str(refused.value)


def test_folder_instead_of_a_file_keeps_no_descriptor_open(tmp_path: Path) -> None:
    """A service tries again as long as it runs."""
    witness, before = FileWitness(tmp_path), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(WitnessError, match="Is a directory"):
        witness.read_newest("sotto")
    with pytest.raises(WitnessError, match="Is a directory"):
        witness.read_all()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
