"""Takes pictures of the page for people to judge, and writes them to the folder SOTTO_SCREENSHOTS, if that is set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.async_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.places import PLACES, STEPS, wait_for_rows
from tests.browser.scene import OPERATOR, Scene
from tests.browser.screens import SCREENS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("screen", SCREENS)
async def test_pictures_show_every_place_with_its_figures(
    scene: Scene, open_page: OpenPage, screen: str, keep_screenshot: Callable[[str, bytes], None]
) -> None:
    async with scene.served() as address:
        page = await open_page(address, token=OPERATOR, reduced_motion="reduce", **SCREENS[screen])
        for name, place in PLACES.items():
            await page.goto(f"{address}/#/{place}")
            await STEPS.get(name, wait_for_rows)(page)
            for chart in await page.locator(".chart:visible").all():
                await expect(chart.locator("path.line, .estimate").first).to_be_visible()
            await page.evaluate("scrollTo(0, 0)")
            # The picture of the front page is one screen; other pages are shown completely.
            picture = await page.screenshot(full_page=name != "monitor" or screen.startswith("phone"))
            assert len(picture) > 8_000
            keep_screenshot(name, picture)
        await page.goto(f"{address}/#/streams/ward-9%2Foxygen")
        await page.get_by_role("button", name="Extend stream…").click()
        keep_screenshot("dialog", await page.screenshot())
