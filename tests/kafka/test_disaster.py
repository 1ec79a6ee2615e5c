"""A disaster drill: an installation is backed up, continues, and is lost with its broker; the backup is restored elsewhere."""

from __future__ import annotations

import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas import RegisterSource, SourceRecord
from sotto import AsyncClient, Refused
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics, delete_topics
from stream.privacy.noise.keys import NoiseKey
from tests.kafka.sites import FEED, HIGH, WAIT, Site, open_request, spec, wait_for_state

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


def witness(folder: Path) -> str:
    """Return the address of a witness on a disk that is not lost."""
    folder.chmod(0o700)
    return f"file://{folder}/anchors.jsonl"


@contextmanager
def site_to_lose(folder: Path, prefix: str) -> Iterator[Site]:
    """Yield a site whose broker is lost at the end."""
    broker = LocalBroker(folder / "old")
    try:
        yield Site(broker.start(timeout=180).bootstrap, prefix, folder, witnesses=witness(folder))
    finally:
        broker.kill()
        shutil.rmtree(folder / "old")


async def remaining_epsilon(client: AsyncClient) -> float:
    return (await client.budget("feed")).left.epsilon


@dataclass(frozen=True)
class BackedUp:
    """The remains of an installation: a backup, the source's budget in the backup, and two heads that were noted."""

    backup: Path
    source: SourceRecord
    head: str
    later: str


async def run_and_back_up(old: Site, folder: Path) -> BackedUp:
    """Run an installation, back it up, and let it continue; the backup lacks its later work."""
    backup, exported = folder / "ledger.backup", folder / "trail.jsonl"
    await create_topics(old.settings)
    async with old.running_services() as client:
        await client.request(RegisterSource(request="register", source=FEED), WAIT)
        for stream in ("ward", "done", "idle"):
            await client.request(open_request(stream), WAIT)
        for stream in ("ward", "done"):
            assert (await client.ask(stream, value=HIGH, timeout=WAIT)).outcome == "above"
        await client.close("feed", "done")
        await wait_for_state(client, "done", "closed")
        old.run_successfully("ledger", "export", str(backup))
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        source, head = await client.budget("feed"), old.read_trail_head()
        await client.request(open_request("late"), WAIT)
        assert (await client.ask("ward", value=HIGH, timeout=WAIT)).outcome == "above"
        assert (await client.ask("late", value=HIGH, timeout=WAIT)).outcome == "above"
    later = old.read_trail_head()
    old.run_successfully("ledger", "trail", "--export", str(exported))
    assert "only the trail was checked" in old.run_successfully(
        "ledger", "verify", str(exported), "--head", head, "--head", later
    )
    assert 1.0 < source.left.epsilon < 2.0
    return BackedUp(backup, source, head, later)


async def check_restored_halted(new: Site, kept: BackedUp) -> None:
    """Restore the backup with halted sources: nothing is granted, answered or refunded."""
    backup = str(kept.backup)
    assert "follows from it" in new.run_successfully("ledger", "verify", backup, "--head", kept.head)
    assert "topics are missing" in new.run_refused("ledger", "import", backup, "--since", "halt")
    new.run_successfully("topics", "create", "--partitions", "2")
    assert "Missing option '--since'" in new.sotto("ledger", "import", backup).stderr
    # The noted head shows that requests are missing.
    error = new.run_refused("ledger", "import", backup, "--since", "nothing", "--head", kept.later)
    assert "there were requests since the backup" in error
    assert error == new.run_refused("ledger", "import", backup, "--since", "nothing")  # the witness shows it too
    assert "streams that were not closed (2)" in new.run_successfully(
        "ledger", "import", backup, "--since", "halt"
    )
    assert "not empty" in new.run_refused("ledger", "import", backup, "--since", "halt")
    new.run_successfully("ledger", "verify", "--head", kept.head)
    async with new.running_services() as client:
        source = await client.budget("feed")
        assert (source.state, source.granted, source.refunded) == (
            "halted",
            kept.source.granted,
            kept.source.refunded,
        )
        assert source.spent.epsilon == pytest.approx(source.granted.epsilon - source.refunded.epsilon)
        for stream in ("ward", "idle", "done"):
            result = await client.ask(stream, value=HIGH, timeout=WAIT, outcomes=True)
            assert result.outcome == "halted"
        with pytest.raises(Refused, match="is halted"):
            await client.open(spec("more"))
        # A repeated request that was granted before gets its receipt again, and grants nothing.
        assert (await client.request(open_request("ward"), WAIT)).outcome == "opened"
        for stream in ("ward", "idle"):
            await client.close("feed", stream)
            await wait_for_state(client, stream, "closed")
        assert await remaining_epsilon(client) == kept.source.left.epsilon
    new.run_successfully("ledger", "verify", "--head", kept.head)


async def check_restored_continuing(new: Site, kept: BackedUp) -> None:
    """Restore the backup with continuing sources: they have the budget left in the backup, and only new streams answer."""
    new.run_successfully("ledger", "import", str(kept.backup), "--since", "accept-loss")
    async with new.running_services() as client:
        assert await remaining_epsilon(client) == kept.source.left.epsilon
        await client.request(open_request("afresh"), WAIT)
        assert (await client.ask("afresh", value=HIGH, timeout=WAIT)).outcome == "above"
        with pytest.raises(Refused, match="cannot pay"):
            await client.open(spec("too-much"))
        with pytest.raises(Refused, match="cannot be extended"):
            await client.extend("feed", "ward", 0.1)
        entries = [entry async for entry in client.trail()]
        [restored] = [entry for entry in entries if entry.kind == "restored"]
        assert (restored.since, restored.lost) == ("accept_loss", 2)
    assert "restored" in new.run_successfully("ledger", "trail")
    new.run_successfully("ledger", "verify", "--head", kept.head)


async def test_restored_installation_repeats_no_grant_or_answer(bootstrap: str, tmp_path: Path) -> None:
    NoiseKey.generate().save(tmp_path / "noise.key")
    prefix = f"drill-{uuid.uuid4().hex[:6]}"
    with site_to_lose(tmp_path, prefix) as old:
        kept = await run_and_back_up(old, tmp_path)
    new = Site(bootstrap, prefix, tmp_path, witnesses=witness(tmp_path))
    await check_restored_halted(new, kept)
    await delete_topics(new.settings)
    new.run_successfully("topics", "create", "--partitions", "2")
    await check_restored_continuing(new, kept)
