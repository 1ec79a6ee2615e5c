"""``sotto top`` shows the page's figures in a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from typing import Self

import pytest

from tests.browser.monitors import run_top
from tests.browser.scene import VIEWER, Scene, above, values
from tests.unit.monitor.installation import HIGH, LOW


def small_scene() -> Scene:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.ask("ward", LOW, LOW, HIGH)
    scene.driver.send(0, b"no JSON")
    scene.flow()
    return scene


@pytest.mark.parametrize("columns", [60, 140])
async def test_top_shows_the_ledgers_figures_in_any_width(columns: int) -> None:
    scene = small_scene()
    async with scene.served() as address:
        status, output, error = await run_top(address, columns=columns)
    assert (status, error) == (0, "")
    assert max(map(len, output.splitlines())) <= columns
    budget = scene.driver.budget("feed")
    assert f"ε {budget.spent.epsilon:.4g}" in output
    assert "75.0%" in output
    assert "1/3" in output
    assert "1 open" in output
    assert "Rejected 1: malformed 1" in output


async def test_top_follows_changes_until_it_is_interrupted() -> None:
    scene = small_scene()
    async with scene.served() as address, Terminal(address) as terminal:
        await terminal.shows("1/3")
        scene.ask("ward", HIGH)
        await terminal.shows("2/3")
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.process.wait() == 130


class Terminal:
    """``sotto top`` in a terminal, as a person sees it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._seen = b""

    async def __aenter__(self) -> Self:
        self._screen, shown = pty.openpty()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sotto", "top", "--url", self._address),
            stdout=shown,
            env={
                **os.environ,
                "SOTTO_MONITOR_TOKEN": VIEWER,
                "COLUMNS": "120",
                "LINES": "50",
                "TERM": "xterm",
            },
        )
        os.close(shown)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        os.close(self._screen)

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(120):
            while text.encode() not in self._seen:
                self._seen += await asyncio.to_thread(os.read, self._screen, 65536)


async def test_top_shows_hostile_names_without_control_characters() -> None:
    scene = small_scene()
    scene.add_grant(scene.a_grant, "\x1b[2J\x1b]0;title\x07[bold]gone[/bold]")
    async with scene.served() as address:
        _, output, _ = await run_top(address)
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "\\x1b[2J\\x1b]0;title\\x07[bold]gone[/bold]" in output


async def test_top_names_the_remedy_without_monitor_or_valid_token() -> None:
    async with Scene().served() as address:
        status, output, error = await run_top(address, token="wrong-" + "3" * 32)
        assert (status, output) == (1, "")
        assert "the monitor refused: send 'Authorization: Bearer TOKEN'" in error
    status, _, error = await run_top(address)
    assert status == 1
    assert "start one with 'sotto serve monitor'" in error
