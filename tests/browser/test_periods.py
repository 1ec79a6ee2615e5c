"""The page lists each source and stream with periods in one line with its latest period; one click shows all periods, page by page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.async_api import expect

from schemas import RejectedHeaders
from stream.monitor.api.service_models import WorkersView
from tests.browser.conftest import OpenPage
from tests.browser.scene import OPERATOR, VIEWER, VISITS, Scene
from tests.browser.screens import SCREENS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOURS = 54


@pytest.fixture(scope="module")
def hourly() -> Scene:
    scene = Scene()
    scene.with_periods(HOURS)
    return scene


async def test_source_with_periods_is_one_line_that_opens_all_periods(hourly: Scene, open_page: OpenPage) -> None:
    async with hourly.served() as address:
        page = await open_page(address, token=OPERATOR)
        await page.goto(f"{address}/#/sources")
        lines = page.locator("li.source")
        await expect(lines).to_have_count(2)
        line = lines.filter(has_text="visits")
        await expect(line).to_contain_text("period 2026-03-03 05:00")
        await expect(line.locator("dl")).to_contain_text("spent")
        await line.get_by_role("link", name="all 54 periods").click()
        await expect(lines).to_have_count(50)
        await expect(lines.first.get_by_role("link")).to_have_text("2026-03-03 05:00")
        await expect(page.locator(".pager").get_by_role("status")).to_contain_text("1–50 of 54 periods")
        await page.get_by_role("button", name="Next").click()
        await expect(lines).to_have_count(4)
        await expect(lines.last.get_by_role("link")).to_have_text("2026-03-01")
        await page.get_by_role("searchbox").fill("03-02T23")
        await expect(lines).to_have_count(1)
        await lines.first.get_by_role("link").click()
        await expect(page.locator("h1")).to_have_text("visits@2026-03-02T23:00:00Z")
        await expect(page.get_by_text("the account of visits for the period of 1h")).to_be_visible()
        await expect(page.get_by_role("button", name="Halt")).to_be_hidden()
        await page.goto(f"{address}/#/sources?of=visits")
        await page.get_by_role("link", name="Show all sources").click()
        await expect(lines).to_have_count(2)


async def test_stream_with_periods_is_one_line_that_opens_all_periods(hourly: Scene, open_page: OpenPage) -> None:
    async with hourly.served() as address:
        page = await open_page(address, token=OPERATOR)
        await page.goto(f"{address}/#/streams")
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(3)
        row = rows.filter(has_text="visits/counts")
        await expect(row).to_contain_text("period 2026-03-03 05:00")
        await expect(row).to_contain_text("16 of 16")
        await row.get_by_role("link", name="all 54 periods").click()
        await expect(rows).to_have_count(50)
        await page.get_by_role("group", name="States").get_by_role("button", name="open", exact=True).click()
        # The latest period has no budget left, and the earlier ones are closed.
        await expect(page.locator(".pager").get_by_role("status")).to_have_text("none of 54 periods")
        await page.goto(f"{address}/#/streams/visits%2Fbusy")
        latest = page.get_by_role("region", name="Latest period")
        await expect(latest).to_contain_text("from 2026-03-03 05:00 UTC on")
        await expect(latest).to_contain_text("answers above used")
        await expect(page.get_by_role("button", name="Extend")).to_be_hidden()
        await expect(page.get_by_text("No answer yet").locator("visible=true")).to_have_count(0)
        await expect(page.get_by_text("not answering")).to_have_count(0)
        await expect(page.get_by_text("nothing: its periods are asked")).to_be_visible()
        await latest.get_by_role("link", name="from 2026-03-03").click()
        await expect(page.locator("h1")).to_have_text("visits/busy@2026-03-03T05:00:00Z")
        await page.get_by_role("link", name="visits/busy", exact=True).click()
        await expect(page.locator("h1")).to_have_text("visits/busy")
        await page.get_by_role("link", name="All 54 periods").click()
        await expect(rows).to_have_count(50)


async def test_feed_of_a_live_topic_shows_its_public_part(hourly: Scene, open_page: OpenPage) -> None:
    hourly.show_services()
    hourly.monitor.set_workers(
        WorkersView(
            time=hourly.now,
            members=[
                one.model_copy(update={"role": "feed", "member": "sotto-feed-11aa"})
                for one in hourly.monitor.workers.members[:1]
            ],
            partitions=[],
        )
    )
    async with hourly.served() as address:
        page = await open_page(address, "sources/visits", token=OPERATOR)
        feed = page.get_by_role("region", name="Feed")
        await expect(feed).to_contain_text("city.visits")
        await expect(feed).to_contain_text("marks in the topic")
        await expect(feed).to_contain_text("the window that ends 3 Mar 2026, 06:00:00")
        await expect(feed).to_contain_text("sotto-feed-11aa, up for 2 h")
        await page.goto(f"{address}/#/sources/vitals")
        await expect(page.get_by_role("region", name="Budget")).to_be_visible()
        await expect(feed).to_be_hidden()


async def test_history_names_windows_and_groups_without_ids(hourly: Scene, open_page: OpenPage) -> None:
    """The standing query says that the numbers are counts, so their α has their unit."""
    async with hourly.served() as address:
        page = await open_page(address, "streams/visits%2Fcounts%402026-03-03T05%3A00%3A00Z", OPERATOR)
        table = page.get_by_role("table", name="Answers of the stream")
        newest = table.locator("tbody tr").first.locator("td")
        await expect(newest.nth(1)).to_have_text("2026-03-03 05:45–06:00 UTC · zone east")
        await expect(table.locator("th").nth(4)).to_have_text("± (α)")


async def test_ask_explains_streams_of_windows(hourly: Scene, open_page: OpenPage) -> None:
    """They are asked by Sotto, so there is no request, and no SELECT is suggested."""
    async with hourly.served() as address:
        page = await open_page(address, "ask?stream=visits%2Fbusy", OPERATOR)
        await expect(page.get_by_text("No questions needed")).to_be_visible()
        await expect(page.get_by_label("SELECT")).to_have_attribute("placeholder", re.compile("takes no SELECT"))
        await expect(page.get_by_role("region", name="Request").first).to_be_hidden()


PLACES = {
    "overview": "overview",
    "sources": "sources",
    "all-sources": "sources?of=visits&descending=true",
    "source": "sources/visits",
    "source-period": "sources/visits%402026-03-03T04%3A00%3A00Z",
    "streams": "streams",
    "all-streams": "streams?of=visits%2Fbusy&descending=true",
    "stream": "streams/visits%2Fbusy",
    "stream-period": "streams/visits%2Fbusy%402026-03-03T05%3A00%3A00Z",
}


@pytest.mark.parametrize("screen", SCREENS)
async def test_views_of_periods_make_pictures(
    hourly: Scene, open_page: OpenPage, screen: str, keep_screenshot: Callable[[str, bytes], None]
) -> None:
    async with hourly.served() as address:
        page = await open_page(address, token=OPERATOR, reduced_motion="reduce", **SCREENS[screen])
        for name, place in PLACES.items():
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator(":is(tbody tr, li.source, .facts):visible").first).to_be_visible()
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (name, wide)
            picture = await page.screenshot(full_page=not name.startswith("all"))
            assert len(picture) > 8_000
            keep_screenshot(f"periods-{name}", picture)


async def test_refused_events_are_on_the_sources_page_for_operators(open_page: OpenPage) -> None:
    """Operators see the share of refused events and the remedy; viewers see neither."""
    scene = Scene()
    scene.driver.register(VISITS | {"source": "again"})
    scene.with_periods(1)
    for offset in range(300):
        scene.add_dead_letter(
            RejectedHeaders(
                topic="city.visits",
                partition=offset % 2,
                offset=offset,
                code="partition",
                message="person: wrong; set partitioner=murmur2_random",
            )
        )
    async with scene.served() as address:
        page = await open_page(address, token=OPERATOR)
        await page.goto(f"{address}/#/sources/visits")
        refused = page.get_by_text(
            "of the 599 records in partitions with refused events, up to the latest refused one, "
        )
        await expect(refused).to_contain_text(
            re.compile(
                "refused one, .*, were refused by at least one source of its topic .*again.*; feeds' logs name it.*Most"
            )
        )
        await expect(refused).to_contain_text("partitioner=murmur2_random")
        page = await open_page(address, token=VIEWER)
        await page.goto(f"{address}/#/sources/visits")
        await expect(page.get_by_text("Feed", exact=True)).to_be_visible()
        await expect(page.get_by_text("were refused")).to_have_count(0)
