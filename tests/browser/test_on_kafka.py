"""On real Kafka, the page shows committed records, and its operator's requests are carried out."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from sotto import AsyncClient
from stream.services.processes import Service
from stream.settings import Settings
from tests.browser.conftest import OpenPage
from tests.browser.monitors import run_top, wait_until_ready, with_monitor
from tests.builders import source
from tests.conftest import StartService
from tests.names import make_names
from tests.unit.monitor.installation import HIGH, LOW

pytestmark = [
    pytest.mark.browser,
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("preloaded"),
]

SOURCE = source(neighbors="add-remove", epsilon=4.0)
MECHANISM = {"kind": "above_threshold", "threshold": 0.0, "cutoff": 3}


async def rows(page: Page) -> list[str]:
    """Return each stream's name, state and charged answers, which do not change by themselves."""
    found = await page.locator("table.streams tbody tr").all()
    return [
        " ".join(
            [await row.locator(part).first.inner_text() for part in (".name", ".badge", ".cell-tops .figure")]
        )
        for row in found
    ]


async def test_halt_from_the_page_halts_the_stream_on_kafka(
    settings: Settings, start: StartService, tmp_path: Path, open_page: OpenPage
) -> None:
    """A monitor that is killed shows the same after its restart."""
    own = with_monitor(settings, tmp_path)
    start("budget")
    start("worker")
    address = f"http://{own.monitor_host}:{own.monitor_port}"
    tokens = make_names(tmp_path)
    operator, viewer = tokens["operator"], tokens["viewer"]
    log = tmp_path / "monitor.log"
    async with AsyncClient(settings) as client:
        await client.register(SOURCE)
        for name in ("ward/7", "ward/8"):
            await client.open({"stream": name, "source": "feed", "epsilon": 1.0, "mechanism": MECHANISM})
        outcomes = [
            (await client.ask({"stream": "ward/7", "value": value}, outcomes=True)).outcome
            for value in (LOW, HIGH)
        ]
        assert outcomes == ["below", "above"]
        with Service("monitor", own, None, log) as monitor:
            await wait_until_ready(address)
            page = await open_page(address, "streams", operator)
            seven = page.locator("tr", has_text="ward/7")
            await expect(seven.locator(".cell-tops .figure")).to_have_text("1 of 3")
            await expect(seven.locator(".badge")).to_contain_text("open")

            await seven.get_by_role("link", name="ward/7").click()
            await page.get_by_role("button", name="Halt stream…").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Reason").fill("meters replaced")
            await dialog.get_by_role("button", name="Halt stream").click()
            await expect(dialog.get_by_role("alert")).to_contain_text(re.compile(r"Receipt \d+: halted"))
            await dialog.get_by_role("button", name="Done").click()
            await expect(page.locator(".head .badge")).to_contain_text("halted")
            async with asyncio.timeout(120):  # the worker may learn of this a moment later
                while (await client.ask({"stream": "ward/7", "value": LOW}, outcomes=True)).outcome != "halted":
                    await asyncio.sleep(0.1)
            assert (await client.ask({"stream": "ward/8", "value": LOW})).outcome == "below"

            await page.goto(f"{address}/#/streams")
            await expect(seven.locator(".badge")).to_contain_text("halted")
            before = await rows(page)
            monitor.kill()
        await expect(page.get_by_role("alert").filter(has_text="Connection lost")).to_be_visible()
        with Service("monitor", own, None, log):
            # The page shows "live" only when all figures are complete, so the test waits for nothing else.
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
            assert await rows(page) == before
            _, output, _ = await run_top(address, token=viewer)
            assert re.search(r"ward/7 +halted +above_threshold +\S+ 1/3", output)
