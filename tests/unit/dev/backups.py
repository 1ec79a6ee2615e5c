"""An installation and its backup."""

from __future__ import annotations

from pathlib import Path

from schemas import LedgerProgress, TrailHead
from sotto import Driver
from stream.dev.backup_file import BackupFile, BackupRecord, BackupWriter, Heading
from tests.builders import KEY, source
from tests.unit.budget.budget_service import ledger_codec
from tests.unit.installation import HIGH, spec


def installation() -> Driver:
    """Return an installation of two sources with open, exhausted, closed, closing and halted streams."""
    driver = Driver(KEY, partitions=2)
    driver.register(source())
    driver.register(source("other", accountant="zcdp", delta=1e-6))
    for name in ("open", "dry", "closed", "halted"):
        driver.open(spec(name, cutoff=2))
    driver.open(spec("elsewhere", "other"))
    for name in ("open", "dry", "dry", "closed", "halted"):
        driver.ask_many([{"id": name, "stream": name, "value": HIGH}])
    driver.ask_many([{"id": "after", "stream": "dry", "value": HIGH}])
    driver.extend("feed", "closed", 0.5)
    driver.close("feed", "closed")
    driver.halt("feed", "halted")
    return driver


def back_up(driver: Driver, path: Path) -> BackupFile:
    """Return the backup of an installation in memory, in the form that the command writes for one on Kafka."""
    topics = driver.topics
    head: TrailHead | None = None
    with path.open("wb") as file:
        heading = Heading(prefix=topics.prefix, partitions=topics.partitions, began="now", sotto="0")
        writer = BackupWriter(file, heading)
        for name in ("ledger", "trail", "state"):
            for record in driver.records(getattr(topics, name)):
                writer.write(BackupRecord(name, record.partition, record.key or b"", record.value))
                if record.key == b"@progress" and name == "ledger":
                    progress = ledger_codec.decode(record.value)
                    assert isinstance(progress, LedgerProgress)
                    head = progress.trail
        assert head is not None
        writer.write_end({}, head)
    return BackupFile(path)
