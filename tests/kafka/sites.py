"""An installation on a separate broker, with its commands and its running services."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from schemas import OpenStream
from sotto import AsyncClient
from stream.services.processes import Service
from stream.settings import Settings
from tests.builders import parse_source, parse_stream, source, stream
from tests.preloaded import command

FEED = parse_source(source(neighbors="add-remove", epsilon=4.0))
HIGH = 1e9
"""A value so far above the threshold that noise changes no decision."""
WAIT = 120.0
"""Longest wait for a service that may just have been started, in seconds."""


def spec(name: str, cutoff: int = 4) -> dict[str, Any]:
    return stream(name, mechanism={"threshold": 1000.0, "cutoff": cutoff})


def open_request(name: str) -> OpenStream:
    return OpenStream(request=f"open {name}", stream=parse_stream(spec(name)))


class Site:
    """A broker, and the commands and services that use it."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path, **settings: Any) -> None:
        given: dict[str, Any] = {
            "bootstrap": bootstrap,
            "prefix": prefix,
            "partitions": 2,
            "session_timeout_ms": 6000,
        }
        self.settings = Settings(**given | settings)
        self.services: list[Service] = []
        """The services that run now."""
        self._folder = folder

    def sotto(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOTTO_")}
        named = {"SOTTO_BOOTSTRAP": self.settings.bootstrap, "SOTTO_PREFIX": self.settings.prefix}
        here = {**named, "SOTTO_WITNESSES": self.settings.witnesses}
        return command(arguments, {**kept, **here, "COLUMNS": "200"})

    def run_successfully(self, *arguments: str) -> str:
        result = self.sotto(*arguments)
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def run_refused(self, *arguments: str) -> str:
        result = self.sotto(*arguments)
        assert result.returncode == 1, result.stderr + result.stdout
        return result.stderr

    def read_trail_head(self) -> str:
        """Return the trail's head, as a person notes it."""
        return str(json.loads(self.run_successfully("ledger", "verify", "--json"))["head"])

    @asynccontextmanager
    async def running_services(self, budget_metrics_port: int = 0) -> AsyncIterator[AsyncClient]:
        """Yield a client of the installation, while its services run."""
        with ExitStack() as stack:
            for role in ("budget", "worker"):
                log = self._folder / f"{role}-{uuid.uuid4().hex[:6]}.log"
                port = budget_metrics_port if role == "budget" else 0
                settings = self.settings.model_copy(update={"metrics_port": port})
                service = Service(role, settings, self._folder / "noise.key", log)
                self.services.append(stack.enter_context(service))
            stack.callback(self.services.clear)
            async with AsyncClient(self.settings) as client:
                yield client


async def wait_for_state(client: AsyncClient, stream: str, state: str) -> None:
    async with asyncio.timeout(120):
        while (await client.grant("feed", stream)).state != state:
            await asyncio.sleep(0.2)
