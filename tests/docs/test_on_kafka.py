"""The tutorial and the client's examples, as a reader runs them: on a real Kafka, line by line."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stream.settings import Settings
from tests.conftest import StartService
from tests.docs.checks import run
from tests.docs.pages import DOCS, PAGES, Block, label, matches, page

pytestmark = pytest.mark.kafka

WITH_CLIENT = [
    path for path in PAGES if any("stream.client" in one.text for one in page(path).of_language("python"))
]


def shell(block: Block, settings: Settings) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    return subprocess.run(
        [shutil.which("bash") or "bash", "-u", "-o", "pipefail", "-c", block.text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "COLUMNS": "200",
            "SOTTO_BOOTSTRAP": settings.bootstrap,
            "SOTTO_PREFIX": settings.prefix,
        },
    )


async def test_the_tutorial_shows_what_its_commands_print(
    settings: Settings, start: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start("budget")
    start("worker")
    blocks = page(DOCS / "tutorial.md").of_language("sh")
    assert len(blocks) == 11
    for block in blocks:
        result = await asyncio.to_thread(shell, block, settings)
        assert (result.returncode != 0) == result.stdout.startswith("error: "), (block, result.stdout)
        if block.output is not None:
            shown = block.output.splitlines()
            printed = result.stdout.splitlines()
            assert len(shown) == len(printed), (block, result.stdout)
            for wanted, line in zip(shown, printed, strict=True):
                assert matches(line, wanted), (block.place, wanted, line)


@pytest.mark.parametrize("path", WITH_CLIENT, ids=label)
async def test_the_clients_examples_run(
    path: Path, settings: Settings, start: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTO_BOOTSTRAP", settings.bootstrap)
    monkeypatch.setenv("SOTTO_PREFIX", settings.prefix)
    start("budget")
    start("worker")
    for block in page(path).of_language("python"):
        if "stream.client" in block.text and (coroutine := run(block.text, {"__name__": "page"})) is not None:
            await asyncio.wait_for(coroutine, 60)
