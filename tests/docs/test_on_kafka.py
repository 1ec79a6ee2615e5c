"""README, tutorial and the client's examples, as a reader runs them: on one real installation, one after the other."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stream.settings import Settings
from tests.conftest import StartService
from tests.docs.pages import DOCS, PAGES, PROJECT, label, matches, needs_installation, page

pytestmark = pytest.mark.kafka

WITH_CLIENT = [
    path for path in PAGES if any(needs_installation(one.text) for one in page(path).of_language("python"))
]


def follow(command: list[str], settings: Settings) -> subprocess.CompletedProcess[str]:
    """Do what a page says, as a reader does: in a program of its own."""
    programs = Path(sys.executable).parent
    return subprocess.run(
        command,
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


async def test_the_documents_can_be_followed_one_after_the_other_and_show_what_is_printed(
    settings: Settings, start: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start("budget")
    start("worker")
    followed: Counter[str] = Counter()
    for path in (PROJECT / "README.md", DOCS / "tutorial.md", *(set(WITH_CLIENT) - {PROJECT / "README.md"})):
        for block in page(path).blocks:
            if block.language == "sh":
                command = ["bash", "-e", "-u", "-o", "pipefail", "-c", block.text]
            elif block.language == "python" and needs_installation(block.text):
                command = [sys.executable, "-c", block.text]
            else:
                continue
            result = await asyncio.to_thread(follow, command, settings)
            refused = result.stdout.startswith("error: ") or " halted: " in result.stdout
            assert (result.returncode != 0) == (refused and block.output is not None), (block.place, result.stdout)
            followed[label(path)] += 1
            if block.output is not None:
                shown = block.output.splitlines()
                printed = result.stdout.splitlines()
                assert len(shown) == len(printed), (block, result.stdout)
                for wanted, line in zip(shown, printed, strict=True):
                    assert matches(line, wanted), (block.place, wanted, line)
    assert followed["README.md"] == 2
    assert followed["docs/tutorial.md"] == 11
