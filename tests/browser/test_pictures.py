"""Pictures of the page, for people to judge: written where SOTTO_SCREENSHOTS says, else only taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.scene import Scene

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 1030}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2}
SCREENS: dict[str, dict[str, Any]] = {
    "light": DESKTOP,
    "dark": {**DESKTOP, "color_scheme": "dark"},
    "phone": PHONE,
}
PLACES = {
    "monitor": "overview",
    "streams": "streams",
    "stream": "streams/ward-9%2Foxygen",
    "source": "sources/payments",
    "workers": "workers",
}


@pytest.fixture
def keep(screen: str) -> Callable[[str, bytes], None]:
    folder = os.environ.get("SOTTO_SCREENSHOTS")

    def write(name: str, picture: bytes) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f"{name}-{screen}.png").write_bytes(picture)

    return write


@pytest.mark.parametrize("screen", SCREENS)
async def test_pictures_show_every_place_with_its_figures(
    scene: Scene, open_page: OpenPage, screen: str, keep: Callable[[str, bytes], None]
) -> None:
    async with scene.served() as address:
        page = await open_page(address, reduced_motion="reduce", **SCREENS[screen])
        for name, place in PLACES.items():
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator("tbody tr").first).to_be_visible()
            for chart in await page.locator(".chart").all():
                await expect(chart.locator(".line").first).to_be_visible()
            picture = await page.screenshot(full_page=screen == "phone")
            assert len(picture) > 10_000
            keep(name, picture)
