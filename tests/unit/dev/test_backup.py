"""Changed backup files are refused, and a restored installation grants and answers nothing twice."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest

from schemas import TrailHead
from schemas.ledger import LostTimeStatement
from sotto import Driver, Refused
from stream.dev import backup_file, ledger_restoration
from stream.dev.backup_file import (
    BackupError,
    BackupFile,
    BackupRecord,
    BackupWriter,
    Heading,
    TopicName,
    check_backup,
    is_backup,
)
from stream.dev.ledger_restoration import (
    HALTED_REASON,
    LOST_ANSWERS_REASON,
    ROLLBACK_REASONS,
    RestoredLedger,
    _records_of_backup,
    _require_empty,
)
from stream.kafka.topic_creation import FoundTopics
from stream.optional_packages import EXTRA_OF_PACKAGE
from stream.processing.topic_names import Topics
from stream.settings import Settings
from tests.builders import KEY, source
from tests.unit.dev.backups import back_up, installation
from tests.unit.installation import HIGH, spec

FORGED = 1_000
"""In an order of entries, the last one with another time."""


def restore_elsewhere(backup: BackupFile, since: LostTimeStatement) -> Driver:
    """Return another installation, restored from a backup."""
    checked = check_backup(backup)
    assert checked.findings == []
    driver = Driver(KEY, partitions=backup.heading.partitions)
    returning = RestoredLedger(driver.topics, checked.ledger_records)
    streams = {stream.encode() for _, stream in returning.streams()}
    changes = returning.make_outputs(since, checked.ending.digest)
    for outputs in chain(_records_of_backup(backup, driver.topics, streams), changes):
        driver.write(outputs)
    driver.crash()
    driver._id_count = 1_000  # the ids of requests are used already
    return driver


@pytest.mark.parametrize("since", get_args(LostTimeStatement))
def test_restored_streams_count_as_spent_and_never_answer(since: LostTimeStatement, tmp_path: Path) -> None:
    """A stream that was not closed counts as wholly spent and never answers again."""
    old = installation()
    kept = {one.spec.stream: one for one in old.list_streams()}
    backup = back_up(old, tmp_path / "backup")
    # These requests and answers are not in the backup.
    old.open(spec("late"))
    old.ask_many([{"id": "more", "stream": "open", "value": HIGH}])
    new = restore_elsewhere(backup, since)
    assert {one.spec.stream for one in new.list_streams()} == kept.keys()
    for grant in new.list_streams():
        name, source = grant.spec.stream, grant.spec.source
        if kept[name].state == "closed":
            assert grant == kept[name]
            continue
        assert (grant.lost, grant.ending, grant.spent, grant.cost) == (True, "halted", grant.cost, kept[name].cost)
        assert grant.reason == LOST_ANSWERS_REASON
        [answer] = new.ask_many([{"id": "again", "stream": name, "value": HIGH}])
        assert answer.outcome == "halted"
        with pytest.raises(Refused):
            new.extend(source, name, 0.1)
        new.close(source, name)
        assert new.grant(source, name).refunded.epsilon == 0.0
    for record in new.list_sources():
        assert record.state == ("halted" if since == "halt" else "open")
        if since == "halt":
            with pytest.raises(Refused, match="is halted"):
                new.open(spec("afresh", record.source.source))
        else:
            new.open(spec("afresh-" + record.source.source, record.source.source))
    [restored] = [entry for entry in new.trail() if entry.kind == "restored"]
    assert (restored.since, restored.lost) == (since, 4)
    assert check_backup(back_up(new, tmp_path / "next")).findings == []


def test_reasons_of_an_accepted_rollback_name_no_backup(tmp_path: Path) -> None:
    old = installation()
    ledger = RestoredLedger(old.topics, check_backup(back_up(old, tmp_path / "backup")).ledger_records)
    assert list(ledger.make_outputs("halt", "0" * 64, "disk of broker 2 restored"))
    accounts = ledger.ledger.accounts.values()
    lost = {grant.reason for account in accounts for grant in account.grants.values() if grant.lost}
    assert (lost, {account.reason for account in accounts}) == ({ROLLBACK_REASONS[0]}, {ROLLBACK_REASONS[1]})


@pytest.mark.parametrize("since", get_args(LostTimeStatement))
def test_restored_population_grants_nothing_if_joins_are_unknown(since: LostTimeStatement, tmp_path: Path) -> None:
    """A population is halted if sources may have joined it after the backup."""
    old = Driver(KEY, partitions=2)
    old.register_population({"population": "patients", "epsilon": 2.0})
    old.register(source(population="patients"))
    old.allot("ann", 1.0, population="patients")
    backup = back_up(old, tmp_path / "backup")
    new = restore_elsewhere(backup, since)
    record = new.population("patients")
    if since != "halt":
        assert (record.state, record.reason) == ("open", None)
        new.register(source("other", population="patients"))
        new.open(spec("hers", "other"), analyst="ann")
        return
    assert (record.state, record.reason) == ("halted", HALTED_REASON)
    new.register(source("other"))
    new.open(spec("free", "other"))
    for crash in (False, True):
        if crash:
            new.crash()
        with pytest.raises(Refused, match="population 'patients' is halted: restored from a backup"):
            new.register(source("another", population="patients"))
        with pytest.raises(Refused, match="population 'patients' is halted"):
            new.join("other", "patients")
        with pytest.raises(Refused, match="is halted"):
            new.open(spec("hers"), analyst="ann")
    assert new.population("patients").granted.epsilon == 0.0
    assert check_backup(back_up(new, tmp_path / "next")).findings == []


def test_restored_population_and_allotments_count_loss_as_spent(tmp_path: Path) -> None:
    old = Driver(KEY, partitions=2)
    old.register_population({"population": "patients", "epsilon": 3.0})
    old.register(source(population="patients"))
    old.allot("ann", 1.5, population="patients")
    old.open(spec("hers", cutoff=4), analyst="ann")
    old.ask_many([{"id": "one", "stream": "hers", "value": HIGH}])
    before = old.population("patients")
    assert before.spent.epsilon < before.granted.epsilon == 1.0
    new = restore_elsewhere(back_up(old, tmp_path / "backup"), "accept_loss")
    new.close("feed", "hers")
    after = new.population("patients")
    assert (after.granted, after.spent, after.left) == (before.granted, before.granted, before.left)
    with pytest.raises(Refused, match="allotment 'ann'"):
        new.open(spec("more"), analyst="ann")
    new.open(spec("less", epsilon=0.5), analyst="ann")
    assert check_backup(back_up(new, tmp_path / "next")).findings == []


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (range(5, 8), "entry 0: the record at its place is entry 5, so no backup"),
        ([0, 1, 2, 0, 3, 4], "entry 3: the record at its place is entry 0, so no backup"),
        (range(3), "ends after 3"),
        (range(0), "ends after 0"),
        ([*range(13), FORGED], "entry 13 is not the entry that the ledger names"),
    ],
)
async def test_backup_is_refused_if_trail_is_broken(
    order: Sequence[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such file could be imported, also if another program only added an entry."""
    driver = installation()

    async def read(_: object, name: TopicName, number: int) -> AsyncIterator[BackupRecord]:
        found = driver.records(getattr(driver.topics, name))
        for at in order if name == "trail" else range(len(found)):
            record = found[-1 if at == FORGED else at]
            value = (record.value or b"").replace(b'"time":', b'"time":9', 1) if at == FORGED else record.value
            yield BackupRecord(name, number, record.key or b"", value)

    monkeypatch.setattr(backup_file._BackupReader, "_read", read)
    copy = backup_file._BackupReader(Settings(), driver.topics, None)
    heading = Heading(prefix=driver.topics.prefix, partitions=2, began="now", sotto="0")
    writer = BackupWriter(io.BytesIO(), heading)
    head = await copy.copy_ledger(writer)
    with pytest.raises(BackupError, match=message):
        await copy.copy_trail(writer, head)


def test_restore_writes_no_state_of_streams_unknown_to_backup(tmp_path: Path) -> None:
    old = installation()
    path = tmp_path / "backup"
    back_up(old, path)
    old.ask_many([{"id": "more", "stream": "open", "value": HIGH}])
    lines = path.read_bytes().splitlines(keepends=True)
    assert any(b'"state"' in line and b'"open"' in line for line in lines)
    written = [
        message
        for outputs in _records_of_backup(BackupFile(path), old.topics, {b"dry"})
        for topic, _, messages in outputs
        if topic == old.topics.state
        for message in messages
    ]
    assert {key for key, _, _ in written} == {b"dry", b"@progress"}
    positions = [json.loads(value or b"") for key, value, _ in written if key == b"@progress"]
    assert {one["offset"] for one in positions} == {0}


def lines_without(*numbers: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [line for number, line in enumerate(lines) if number not in numbers]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lines_without(-1), ""),
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: [*lines[:-1], lines[-1][:40]], "cut off"),
        (lambda lines: lines[: len(lines) // 2], "cut off"),
        (lines_without(5), "its digest does not match"),
        (lambda lines: [*lines[:5], lines[5], *lines[5:]], "its digest does not match"),
        (lambda lines: [*lines[:5], lines[5].replace(b"1", b"2"), *lines[6:]], "its digest does not match"),
        (lambda lines: [*lines[:5], b"{}\n", *lines[6:]], "is not a record"),
        (lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]], "another version"),
        (lambda lines: lines[1:], "is not a backup"),
        (lambda _: [], "is not a backup"),
    ],
)
def test_check_backup_refuses_changed_file(
    damage: Callable[[list[bytes]], list[bytes]], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "backup"
    back_up(installation(), path)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    if not message:
        assert check_backup(BackupFile(path)).findings == []
        return
    with pytest.raises(BackupError, match=message):
        check_backup(BackupFile(path))


def forged_records(lines: list[bytes], change: Callable[[list[Any]], list[Any] | None]) -> list[list[Any]]:
    return [kept for line in lines[1:-1] if (kept := change(json.loads(line))) is not None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda one: None if one[0] == "ledger" and one[2] == "grant|feed|open" else one,
            "does not have the stream",
        ),
        (
            lambda one: None if one[0] == "trail" and '"number":4,' in one[3] else one,
            "the record at its place is entry",
        ),
        (
            lambda one: (
                [*one[:3], one[3].replace('"epsilon":10.0', '"epsilon":11.0')] if one[0] == "trail" else one
            ),
            "its digest of entry",
        ),
        (
            lambda one: [*one[:3], one[3].replace('"tops":1', '"tops":0')] if one[2] == "grant|feed|open" else one,
            "is not the sum over its grants",
        ),
    ],
)
def test_check_backup_finds_forged_ledger_or_trail(
    change: Callable[[list[Any]], list[Any] | None], message: str, tmp_path: Path
) -> None:
    """A forger can give a file a correct digest, but its ledger must still follow from its trail."""
    path, forged = tmp_path / "backup", tmp_path / "forged"
    backup = back_up(installation(), path)
    checked = check_backup(backup)
    with forged.open("wb") as file:
        writer = BackupWriter(file, backup.heading)
        for topic, partition, key, value in forged_records(path.read_bytes().splitlines(), change):
            writer.write(BackupRecord(topic, partition, key.encode(), None if value is None else value.encode()))
        writer.write_end({}, checked.ending.head)
    assert any(message in finding for finding in check_backup(BackupFile(forged)).findings)


def test_check_backup_compares_rewritten_trail_with_noted_head(tmp_path: Path) -> None:
    old = back_up(installation(), tmp_path / "old")
    head = check_backup(old).ending.head
    rewritten = Driver(KEY, partitions=2)
    rewritten.register(source())
    rewritten.wait(1.0)
    for number in range(20):
        rewritten.open(spec(f"other-{number}", epsilon=0.1))
    checked = check_backup(back_up(rewritten, tmp_path / "rewritten"), [head])
    assert any("differs from the noted head of " in finding for finding in checked.findings)
    shorter = check_backup(old, [TrailHead(entries=head.entries + 1, digest="0" * 64, time=0)])
    assert shorter.missing_heads
    assert check_backup(old, [head]).findings == check_backup(old, [head]).missing_heads == []


def test_is_backup_distinguishes_backup_from_other_file(tmp_path: Path) -> None:
    back_up(installation(), tmp_path / "backup")
    (tmp_path / "other").write_text('{"number":0}\n')
    assert is_backup(tmp_path / "backup")
    assert not is_backup(tmp_path / "other")


def test_verify_checks_a_backup_without_any_extra(tmp_path: Path) -> None:
    """``sotto ledger verify`` checks that a ledger follows from its trail even if only the client's packages are installed."""
    back_up(installation(), tmp_path / "backup")
    code = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(EXTRA_OF_PACKAGE)}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Without())
sys.argv = ["sotto", "ledger", "verify", "backup"]
from sotto.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the ledger follows from it" in done.stdout


async def test_import_without_rights_names_the_hidden_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that Kafka hides has no end offset, so its end would be awaited in vain."""
    topics = Topics("sotto", 1)

    async def read_topics(_: Settings) -> FoundTopics:
        return FoundTopics(topics, {name: [1] for name in (topics.ledger, topics.trail, topics.state)})

    monkeypatch.setattr(ledger_restoration, "read_topics", read_topics)
    with pytest.raises(
        backup_file.BackupError, match=r"^Kafka hides .*: sotto\.answers, .*; import as an administrator$"
    ):
        await _require_empty(Settings(), topics)
