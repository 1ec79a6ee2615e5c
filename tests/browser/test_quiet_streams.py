"""For a stream with few records, the page shows no invented figures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.scene import CENSUS, VIEWER, Scene, above, values

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def fact(page: Page, name: str) -> Any:
    return page.locator("dt", has_text=re.compile(f"^{name}$")).locator("+ dd")


async def test_stream_without_questions_has_no_last_answer(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.driver.halt("feed", "ward", "under review")
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/ward", VIEWER)
        await expect(fact(page, "Last answer")).to_have_text("none yet")
        await expect(page.get_by_text(re.compile("^Incarnation [0-9a-f]{32}$"))).to_be_visible()


async def test_last_answer_is_not_the_last_change(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.driver.ask_many([{"id": "a", "stream": "ward", "value": -1e9}])
    scene.flow()
    scene.now += 7200
    scene.driver.halt("feed", "ward", "under review")
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams", VIEWER)
        await expect(page.locator("[title^='last ']")).to_have_count(1)
        row = scene.tables.streams["ward"]
        assert row.last_answered == pytest.approx(scene.now - 7200)
        assert row.updated == pytest.approx(scene.now)


@pytest.mark.parametrize(
    ("source", "mechanism", "options"),
    [
        (values("feed", 4.0), {"kind": "laplace", "answers": 4}, "--value 12"),
        (CENSUS, {"kind": "laplace", "answers": 4}, "--where TRUE"),
        (CENSUS, {"kind": "pmw", "attributes": ["age", "sex"]}, "--where TRUE"),
        (CENSUS, {"kind": "noisy_max", "answers": 4}, "--question question.json"),
    ],
)
async def test_suggested_question_is_one_that_the_stream_accepts(
    source: dict[str, Any], mechanism: dict[str, Any], options: str, open_page: OpenPage
) -> None:
    scene = Scene()
    table = {"age": [30, 40], "sex": ["F", "M"]}
    scene.driver.register(source, *([table] if source["kind"] == "table" else []))
    spec = {"stream": "quiet", "source": source["source"], "epsilon": 1.0, "mechanism": mechanism}
    scene.driver.open(spec, acknowledge=True)
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/quiet", VIEWER)
        await expect(page.get_by_text(f"sotto ask quiet {options}")).to_be_visible()


async def test_counts_have_whole_numbers_on_their_axis(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("once", "feed", 1.0, 1))
    scene.driver.ask_many([{"id": "a", "stream": "once", "value": 1e9}])
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/once", VIEWER)
        chart = page.get_by_role("img", name="Answers above so far")
        await expect(chart.locator(".tick:not(.time):not(.zone)")).to_have_text(["0", "1"])
        await expect(chart.locator(".limit-text")).to_have_text("1 is paid for")
