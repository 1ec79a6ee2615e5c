"""Names and reasons are always shown as text, and the page runs only scripts of the package."""

from __future__ import annotations

import pytest
from aiohttp import ClientSession
from playwright.async_api import expect

from schemas import RejectedHeaders
from stream.monitor.api.server import FOLDER
from tests.browser.conftest import OpenPage
from tests.browser.scene import OPERATOR, Scene, above, values

HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    '"><script>window.hacked=1</script>',
    "javascript:window.hacked=1//%2F..%2F#/sources?x=<svg/onload=window.hacked=1>",
    "{{constructor.constructor('window.hacked=1')()}}",
)

browser_test = pytest.mark.browser
in_session = pytest.mark.asyncio(loop_scope="session")


def hostile_scene() -> Scene:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.flow()
    model = scene.a_grant
    for name in HOSTILE:
        scene.add_grant(model, name, state="halted", reason=name)
        scene.add_dead_letter(
            RejectedHeaders(topic=scene.driver.topics.queries, partition=0, offset=1, code=name, message=name)
        )
    scene.driver.halt("feed", "ward", HOSTILE[0])
    scene.flow()
    return scene


@browser_test
@in_session
async def test_hostile_names_and_reasons_do_not_become_markup(open_page: OpenPage) -> None:
    scene = hostile_scene()
    async with scene.served() as address:
        page = await open_page(address, "streams", OPERATOR)
        rows = page.locator("table.streams tbody tr")
        await expect(rows).to_have_count(len(HOSTILE) + 1)
        shown = set(await rows.locator(".cell-stream .name:not(.quiet)").all_text_contents())
        assert shown == {"ward", *HOSTILE}
        for place in ("overview", "rejected", "streams/ward", "sources/feed"):
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator("h1")).to_be_visible()
            await expect(page.get_by_text(HOSTILE[0]).or_(page.get_by_text("feed")).first).to_be_visible()
            assert await page.locator("#page img, #page script, #page svg[onload], #page iframe").count() == 0
        assert await page.evaluate("window.hacked") is None


@browser_test
@in_session
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_name_is_text_on_its_page_and_in_the_dialog(open_page: OpenPage, name: str) -> None:
    scene = hostile_scene()
    async with scene.served() as address:
        page = await open_page(address, "streams", OPERATOR)
        await page.get_by_role("link", name=name, exact=True).click()
        # Such a name violates the contract, so the monitor serves no details of it, but the page shows the name.
        await expect(page.locator("h1")).to_have_text(name)
        assert await page.locator("#page img, #page script").count() == 0
        assert await page.evaluate("window.hacked") is None


@browser_test
@in_session
async def test_browser_refuses_to_make_markup_or_code_of_text(open_page: OpenPage, complaints: list[str]) -> None:
    async with Scene().served() as address:
        page = await open_page(address)
        for attempt in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.createElement('script').src = 'data:,1'",
        ):
            assert await page.evaluate(f"() => {{ try {{ {attempt}; return false; }} catch {{ return true; }} }}")
        assert len(complaints) == 2
        assert all("has been blocked" in complaint for complaint in complaints)
        complaints.clear()


async def test_every_response_of_the_page_has_the_policy() -> None:
    async with Scene().served() as address, ClientSession() as session:
        for path in ("/", "/static/main.js", "/static/theme.css", "/favicon.ico"):
            async with session.get(address + path) as response:
                assert response.status == 200, path
                policy = response.headers["Content-Security-Policy"].split("; ")
                assert policy[0] == "default-src 'none'"
                assert not any("unsafe" in directive or "http" in directive for directive in policy)
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                tag = {"If-None-Match": response.headers["ETag"]}
            async with session.get(address + path, headers=tag) as again:
                assert again.status == 304
                assert await again.read() == b""


@pytest.mark.parametrize(
    "path", ["/static/", "/static/nothing.js", "/static/../pages.py", "/static/%2e%2e/pages.py"]
)
async def test_only_files_of_the_page_are_served(path: str) -> None:
    async with Scene().served() as address, ClientSession() as session, session.get(address + path) as response:
        assert response.status in {401, 404}


def test_files_of_the_page_make_no_markup_from_text() -> None:
    """They have no inline script or style, and no call that makes markup of a text."""
    start = (FOLDER / "index.html").read_text()
    assert "<style" not in start
    assert "style=" not in start
    assert start.count("<script") == start.count('<script type="module" src="/static/') == 1
    for path in FOLDER.rglob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "://",
            'attribute("style',
        ):
            allowed = word == "://" and text.count("://") == text.count("http://www.w3.org/2000/svg")
            assert word not in text or allowed, (path.name, word)
