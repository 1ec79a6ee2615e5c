"""Starts a monitor on Kafka for tests of its page."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import ClientError, ClientSession

from stream.kafka.broker_addresses import free_port
from stream.settings import Settings
from tests.browser.scene import VIEWER
from tests.names import FILE


def with_monitor(settings: Settings, folder: Path) -> Settings:
    port = free_port()
    return settings.model_copy(
        update={
            "monitor_port": port,
            "monitor_names_file": str(folder / FILE),
        }
    )


async def wait_until_ready(address: str) -> None:
    async with ClientSession() as session, asyncio.timeout(120):
        while True:
            try:
                async with session.get(f"{address}/readyz") as response:
                    if response.status == 200:
                        return
            except ClientError:
                pass
            await asyncio.sleep(0.2)


async def run_top(address: str, *, token: str = VIEWER, columns: int = 140) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sotto", "top", "--once", "--url", address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SOTTO_MONITOR_TOKEN": token, "COLUMNS": str(columns)},
    )
    output, error = await process.communicate()
    return process.returncode or 0, output.decode(), error.decode()
