"""Workers of the last release and of this version share a group on a real broker, while some of them are killed.

The questions and requests are from the recordings of that release, so it knows all of them. The steps are those of
`docs/production.md` (Upgrade), each interrupted by a kill. There is no limit on outstanding work, because versions may measure
the work of a question differently, and would refuse different questions as ``busy``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas import Receipt, Request, StreamSpec
from schemas.answers import HEADER_PREFIX
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from tests.chaos.checker import committed
from tests.chaos.load import write_table
from tests.chaos.loaded_installation import LoadedInstallation, open_installation
from tests.upgrade.recordings import recordings
from tests.upgrade.released import kept_code, services_of, unpack, version_of

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

PATIENCE = 120.0
_requests: TypeAdapter[Request] = TypeAdapter(Request)


class Release:
    """The last release in an installation: its services, and its recorded events."""

    def __init__(self, installation: LoadedInstallation) -> None:
        self.installation = installation
        self._code = unpack(installation.folder)
        version = version_of(kept_code())
        self.recordings = [one for name, one in recordings().items() if name.rpartition("-")[0] == version]
        self._turns = itertools.cycle(self._questions())

    def start(self, role: RoleName) -> Service:
        """Start a service of the release."""
        with services_of(self._code):
            return self.installation.start(role)

    def _questions(self) -> Iterator[dict[str, Any]]:
        each = ([json.loads(one.value or b"") for one in found.records("queries")] for found in self.recordings)
        return (asked for turn in itertools.zip_longest(*each) for asked in turn if asked is not None)

    async def ask(self, count: int) -> None:
        """Ask the next recorded questions, and begin again after the last one; one in fifty is malformed."""
        client = self.installation.client
        for asked in itertools.islice(self._turns, count):
            identifier = f"q{len(self.installation.asked)}"
            malformed = {} if len(self.installation.asked) % 50 else {"surplus": True}
            value = json.dumps({**asked, "id": identifier, **malformed}).encode()
            await client._connection.send(client.topics.queries, asked["stream"], value)
            self.installation.asked.append(identifier)
        await client.flush()

    async def request(self, *kinds: str) -> list[Receipt]:
        """Make the recorded requests of these kinds, each once, even if several recordings have it."""
        table = self.installation.folder / "people.csv"
        if not table.exists():  # a worker that reads it at this moment would see it change
            write_table(table)
        made: dict[str, Request] = {}
        for recording in self.recordings:
            for record in recording.records("requests"):
                said = json.loads(record.value or b"")
                if said["kind"] in kinds:
                    if said.get("source", {}) and said["kind"] == "register" and "path" in said["source"]:
                        said["source"]["path"] = str(table)
                    name = json.dumps({**said, "request": ""})
                    made.setdefault(
                        name, _requests.validate_python({**said, "request": f"{kinds[0]}-{len(made)}"})
                    )
        return await self.installation.client.requests(list(made.values()), PATIENCE)

    def specs(self) -> list[StreamSpec]:
        """Return the streams of the recordings."""
        return [spec for one in self.recordings for spec in one.specs()]


async def shared(installation: LoadedInstallation, *workers: Service) -> None:
    """Wait until the workers own all partitions together, and each owns some."""
    everything = list(range(installation.settings.partitions))
    async with asyncio.timeout(PATIENCE):
        while True:
            latest = [(installation.assigned(one) or [[]])[-1] for one in workers]
            if all(latest) and sorted(number for own in latest for number in own) == everything:
                return
            await asyncio.sleep(0.1)


async def topics_of_refused_events(installation: LoadedInstallation) -> set[str]:
    """Return the topics with refused events: only the load's malformed questions are refused, and no event of a service."""
    topics = installation.client.topics
    letters = [
        one
        for number in range(topics.partitions)
        for one in await committed(installation.settings, topics.rejected, number)
    ]
    return {value.decode() for one in letters for name, value in one.headers if name == f"{HEADER_PREFIX}topic"}


async def test_mixed_pair_of_workers_serves_without_loss_when_killed(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    async with open_installation(settings, key, tmp_path) as installation:
        installation.work_outstanding = 0.0
        release = Release(installation)
        assert len({spec.mechanism.kind for spec in release.specs()}) == 11
        budget = release.start("budget")
        old = release.start("worker")
        receipts = await release.request("register", "open")
        assert {one.outcome for one in receipts} == {"registered", "opened"}
        await release.ask(300)
        await installation.answered(seconds=PATIENCE)
        new = installation.start("worker")
        await shared(installation, old, new)
        await release.ask(600)
        await installation.answered(missing=400, seconds=PATIENCE)
        old.kill()  # the new worker continues from the release's state
        installation.injected["SIGKILL worker of the last release"] += 1
        await release.ask(300)
        await installation.answered(seconds=PATIENCE)
        old = release.start("worker")
        await shared(installation, old, new)
        await release.ask(600)
        await installation.answered(missing=400, seconds=PATIENCE)
        new.kill()  # and the release's worker from the new worker's state
        installation.injected["SIGKILL worker of today, one of the last release goes on"] += 1
        await release.ask(300)
        await installation.answered(seconds=PATIENCE)
        new = installation.start("worker")
        await shared(installation, old, new)
        await asyncio.to_thread(old.stop)
        budget.kill()
        installation.injected["SIGKILL budget service of the last release"] += 1
        await release.ask(200)
        installation.start("budget")
        receipts = await release.request("halt", "close")
        assert {one.outcome for one in receipts} <= {"halted", "closed", "closing"}
        await release.ask(100)
        await installation.answered(seconds=PATIENCE)
        findings = await installation.verified(same_version=False)
        kinds = {findings.grants[answer.stream].spec.mechanism.kind for answer in findings.answers}
        assert kinds == {spec.mechanism.kind for spec in release.specs()}
        assert await topics_of_refused_events(installation) == {installation.client.topics.queries}
