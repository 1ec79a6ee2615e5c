"""The alerts view: firing alerts, live; the history; and the text without any alerts."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from stream.monitor.api.service_models import WorkersView
from tests.browser.conftest import OpenPage
from tests.browser.scene import BEGINS, VISITS, Scene, above, values
from tests.builders import stream

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOUR = 3600


async def test_alerts_appear_and_disappear_without_a_reload(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.register(values("other", 4.0))
    scene.driver.open(above("late", "feed", 1.0, 30))
    scene.driver.open(above("else", "other", 1.0, 30))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "alerts")
        await expect(page.get_by_text("Nothing is firing")).to_be_visible()
        await expect(page.get_by_text("No alert yet")).to_be_visible()
        scene.answer_window(
            "late", 0, {"<b>EWR</b>": "above", "JFK": "above"}, estimate=12_345_678.0, alpha=4.00004
        )
        scene.answer_window("else", 0, {"LGA": "above"})
        firing = page.get_by_role("table", name="Firing").locator("tbody tr")
        history = page.get_by_role("table", name="History").locator("tbody tr")
        await expect(firing).to_have_count(3)
        await expect(history).to_have_count(3)
        await expect(page.get_by_role("heading", name="Alerts")).to_contain_text("3 firing")
        row = firing.filter(has_text="zone <b>EWR</b>")
        await expect(row).to_contain_text("1970-01-01 00:00–01:00")
        await expect(row).to_contain_text("12,345,678 ± 4.001")
        scene.answer_window("late", HOUR, {"<b>EWR</b>": "below", "JFK": "above"})
        await expect(firing).to_have_count(2)
        await expect(history).to_have_count(4)
        await page.get_by_label("Source").select_option("other")
        await expect(firing).to_have_count(1)
        await expect(firing).to_contain_text("LGA")
        await page.get_by_label("Source").select_option("")
        await page.get_by_role("searchbox").fill("jfk")
        await expect(history).to_have_count(2)
        await expect(firing).to_contain_text("JFK")
        await page.get_by_role("searchbox").fill("nowhere")
        await expect(page.get_by_text("No firing alert matches")).to_be_visible()
        await expect(page.get_by_text("Nothing is firing")).to_be_hidden()
        await page.get_by_role("searchbox").fill("jfk")
        await page.get_by_role("link", name="late").first.click()
        await expect(page.get_by_role("heading", name="late")).to_be_visible()


async def test_alerts_view_without_answers_names_the_setting(open_page: OpenPage) -> None:
    scene = Scene()
    scene.monitor.alerts = None
    async with scene.served() as address:
        page = await open_page(address, "alerts")
        await expect(page.locator(".empty:visible pre")).to_contain_text("SOTTO_MONITOR_ALERTS=true")
        await expect(page.get_by_text("Nothing is firing")).to_be_hidden()


async def test_page_is_amber_while_no_feed_runs(open_page: OpenPage) -> None:
    """With open streams on a live topic and no feed, neither Alerts nor the overview shows a good state."""
    scene = Scene()
    scene.driver.register({name: value for name, value in VISITS.items() if name not in {"unit", "period"}})
    standing = {"by": ["zone"], "window": {"size": "15m"}, "begins": BEGINS}
    scene.driver.open(
        stream("counts", "visits", mechanism={"kind": "laplace", "answers": 16}, standing=standing),
        acknowledge=True,
    )
    scene.flow()
    scene.monitor.set_workers(WorkersView(time=1.0, members=[], partitions=[]))
    async with scene.served() as address:
        page = await open_page(address, "alerts")
        line = page.get_by_role("link", name="visits: not asked yet, no feed runs")
        await expect(line).to_be_visible()
        await expect(page.get_by_text("Nothing is firing")).to_be_hidden()
        await page.goto(f"{address}/#/overview")
        tile = page.get_by_role("link", name="Live topics not asked")
        await expect(tile).to_contain_text("no feed runs")
        await expect(page.get_by_role("link", name="Rejected questions")).to_contain_text(
            "not counting price and busy"
        )
        scene.driver.close("visits", "counts")
        scene.flow()
        await expect(tile).to_be_hidden()
        await page.goto(f"{address}/#/rejected")
        await expect(page.get_by_text("No refused question is listed")).to_be_visible()


async def test_topic_that_a_feed_does_not_ask_points_to_the_logs(open_page: OpenPage) -> None:
    """A feed that refuses a topic's timestamps runs, and only its log has the reason."""
    scene = Scene()
    scene.driver.register(
        {name: value for name, value in VISITS.items() if name not in {"unit", "period", "clock"}}
    )
    standing = {"by": ["zone"], "window": {"size": "15m"}}
    scene.driver.open(
        stream("counts", "visits", mechanism={"kind": "laplace", "answers": 999}, standing=standing),
        acknowledge=True,
    )
    scene.flow()
    scene.show_services()
    feed = scene.monitor.workers.members[0].model_copy(update={"role": "feed"})
    scene.monitor.set_workers(WorkersView(time=1.0, members=[feed], partitions=[]))
    scene.now += 2 * HOUR
    async with scene.served() as address:
        page = await open_page(address, "overview")
        tile = page.get_by_role("link", name="Live topics not asked")
        await expect(tile).to_contain_text("feed or workers are behind, or refuse the topic: see their logs")
        await page.goto(f"{address}/#/sources/visits")
        stalled = page.locator("p.reason", has_text="not asked yet, feed or workers are behind")
        await expect(stalled).to_be_visible()
