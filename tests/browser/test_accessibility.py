"""The page's views have no violation of WCAG 2.1 AA that axe-core finds, in both themes and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest

from tests.browser.conftest import OpenPage
from tests.browser.places import PLACES, STEPS, wait_for_rows
from tests.browser.scene import OPERATOR, Scene
from tests.browser.screens import SCREENS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

RUN = """async () => {
  const found = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] });
  return found.violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html.slice(0, 200))]);
}"""


def read_axe() -> str:
    return Path(axe_playwright_python.__path__[0], "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("screen", SCREENS)
async def test_axe_finds_no_violation_in_any_view(scene: Scene, open_page: OpenPage, screen: str) -> None:
    """The views are those of the pictures, with filled forms and answers."""
    axe = read_axe()
    found: dict[str, Any] = {}
    async with scene.served() as address:
        page = await open_page(address, token=OPERATOR, reduced_motion="reduce", **SCREENS[screen])
        for name, place in PLACES.items():
            await page.goto(f"{address}/#/{place}")
            await STEPS.get(name, wait_for_rows)(page)
            await page.evaluate(axe)
            if violations := await page.evaluate(RUN):
                found[name] = violations
    assert found == {}
