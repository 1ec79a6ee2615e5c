"""Populations, allotments, forecasts and the trail on the page; changes need a confirmation and happen once."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from schemas import Allot, JoinPopulation, RegisterPopulation
from stream.dev.ledger_restoration import HALTED_REASON
from stream.processing.protocol import Outputs
from tests import builders
from tests.browser.conftest import OpenPage
from tests.browser.scene import OPERATOR, VIEWER, Scene, above, values
from tests.browser.screens import SCREENS
from tests.unit.budget.budget_service import ledger_codec
from tests.unit.monitor.installation import ANALYST

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

DAY = 86_400.0


def shared() -> Scene:
    """Two sources of one population with allotments of ana and of a team, after two weeks of openings, some refused."""
    scene = Scene()
    end = scene.now
    scene.now = end - 14 * DAY
    scene.driver.register_population({"population": "patients", "epsilon": 14.0, "renews": "30d"})
    for source in ("vitals", "alarms"):
        scene.driver.register({**values(source, 9.0), "population": "patients"})
    scene.driver.register(values("energy", 3.0))
    scene.driver.allot("ana", 3.0, source="vitals")
    scene.driver.allot("night-shift", 5.0, population="patients", analysts=["ana", "ben"])
    for day in range(7):
        scene.now = end - (13 - day) * DAY
        scene.driver.open(above(f"ward-{day}/heart-rate", "vitals", 0.7, 6), analyst="ana" if day % 2 else None)
        scene.driver.ask_many([{"id": f"{day}", "stream": f"ward-{day}/heart-rate", "value": 1e6}])
    scene.driver.open(above("alarms/night", "alarms", 1.0, 6), analyst="ben")
    scene.driver.close("vitals", "ward-0/heart-rate")
    scene.now = end - 3600.0
    scene.driver.open(above("ward-9/heart-rate", "vitals", 0.5, 6))
    scene.now = end
    scene.flow()
    scene.monitor.clock = lambda: scene.now
    return scene


def keep_screenshot(name: str, picture: bytes) -> None:
    if folder := os.environ.get("SOTTO_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_bytes(picture)


def row_of(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr", has_text=text)


async def confirm_dialog(page: Page, verb: str, *, expected: str) -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=verb).click()
    await expect(dialog.get_by_role("alert")).to_contain_text(expected)
    await dialog.get_by_role("button", name="Done").click()


async def opened_form(page: Page, title: str) -> Locator:
    form = page.locator("details", has=page.get_by_text(title, exact=True))
    await form.locator("summary").click()
    return form


async def test_population_and_allotment_changes_are_confirmed_and_once(open_page: OpenPage) -> None:
    scene = shared()
    async with scene.served() as address:
        page = await open_page(address, "people", OPERATOR)
        form = await opened_form(page, "Register a population")
        await form.get_by_role("button", name="Register population…").click()
        await expect(form.get_by_role("alert")).to_contain_text("Give a name")
        await form.get_by_label("Name").fill("consumers")
        for epsilon, delta, wrong in (("0,5", "", "ε: "), ("1e999", "", "ε: "), ("5", "5%", "δ: ")):
            await form.get_by_label("Budget ε").fill(epsilon)
            await form.get_by_label("Budget δ").fill(delta)
            await form.get_by_role("button", name="Register population…").click()
            await expect(form.get_by_role("alert")).to_contain_text(f"{wrong}give a number")
        await form.get_by_label("Budget δ").fill("")
        await form.get_by_label("Renews every").fill("7d")
        await form.get_by_role("button", name="Register population…").click()
        await expect(page.get_by_role("dialog")).to_contain_text("privacy is then per period, not for ever")
        assert scene.requested == []
        await confirm_dialog(page, "Register population", expected="Privacy is per period, not for ever")
        await expect(page.locator("li.source", has_text="consumers")).to_contain_text("Privacy is per period")

        form = await opened_form(page, "Let a source join a population")
        await form.get_by_label("Source").fill("energy")
        await form.get_by_label("Population").fill("consumers")
        await form.get_by_role("button", name="Join population…").click()
        await confirm_dialog(page, "Join population", expected="belongs to the population")
        await expect(page.locator("li.source", has_text="consumers")).to_contain_text("1 source")

        form = await opened_form(page, "Allot a part of a budget")
        await form.get_by_label("Name of the allotment").fill("grid-team")
        await form.get_by_label("Part of the budget of").select_option("population")
        await form.get_by_label("Named").fill("consumers")
        await form.get_by_label("Analysts").fill("carl, dora")
        await form.get_by_label("ε", exact=True).fill("2")
        await form.get_by_role("button", name="Allot…").click()
        effect = "carl, dora share ε 2 and the budget's δ of population consumers"
        await expect(page.get_by_role("dialog")).to_contain_text(effect)
        await expect(page.get_by_role("dialog")).to_contain_text("Allot ε 2 of consumers to grid-team?")
        await confirm_dialog(page, "Allot ε 2", expected="It is allotted")
        await expect(row_of(page, "Allotments", "grid-team")).to_contain_text("carl, dora")
    kinds = [type(one) for one in scene.requested]
    assert kinds == [RegisterPopulation, JoinPopulation, Allot]


async def test_request_with_a_lost_response_is_repeated_under_its_id(
    open_page: OpenPage, complaints: list[str]
) -> None:
    scene = shared()
    async with scene.served() as address:
        page = await open_page(address, "people/patients", OPERATOR)
        lost: list[Any] = []

        async def lose(route: Any) -> None:
            if lost:
                await route.continue_()
                return
            lost.append(await route.fetch())
            await route.abort()

        await page.route("**/api/allotments", lose)
        form = await opened_form(page, "Allot a part of this budget")
        await form.get_by_label("Name of the allotment").fill("eva")
        await form.get_by_label("ε", exact=True).fill("1")
        await form.get_by_role("button", name="Allot…").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Allot ε 1").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("does not answer")
        await dialog.get_by_role("button", name="Send again").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("It is allotted")
        await dialog.get_by_role("button", name="Done").click()
        await expect(row_of(page, "Allotments", "eva")).to_have_count(1)
    assert len({one.request for one in scene.requested}) == 1
    assert len(scene.requested) == 2
    complaints.clear()


@pytest.mark.parametrize("token", [VIEWER, ANALYST])
async def test_changes_are_offered_to_operators_only(open_page: OpenPage, token: str) -> None:
    async with shared().served() as address:
        for place in ("people", "people/patients"):
            page = await open_page(address, place, token)
            await expect(row_of(page, "Allotments", "night-shift")).to_contain_text("ana, ben")
            await expect(page.locator("details", has_text="Allot")).to_have_count(0)


async def test_used_up_population_is_shown_with_its_sources(open_page: OpenPage) -> None:
    """Overview, sources and the source's page say that no stream can be opened, although its own budget is left."""
    scene = Scene()
    scene.driver.register_population({"population": "patients", "epsilon": 1.0})
    scene.driver.register({**values("vitals", 9.0), "population": "patients"})
    scene.driver.register(values("energy", 3.0))
    scene.driver.open(above("ward/heart-rate", "vitals", 1.0, 6))
    scene.flow()
    said = "Nothing is left of the budget of its population patients: no stream can be opened"
    async with scene.served() as address:
        page = await open_page(address, "overview", OPERATOR)
        await expect(page.locator("li.source").first).to_contain_text(said)
        for place in ("sources", "sources/vitals"):
            await page.goto(f"{address}/#/{place}")
            await expect(page.get_by_text(said)).to_have_count(1)
            await expect(page.get_by_text(said)).to_be_visible()


async def test_allotment_beyond_its_source_shows_what_can_be_spent(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("vitals", 8.0))
    scene.driver.allot("ana", 9.0, source="vitals")
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "people")
        await expect(row_of(page, "Allotments", "ana")).to_contain_text("ε 8 (89%), limited by source vitals (ε)")
        keep_screenshot("allotments.png", await page.screenshot(full_page=True))


async def test_left_is_rounded_down_and_only_exact_shares_are_whole(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("vitals", 1.0))
    scene.driver.open(above("ward/heart-rate", "vitals", 0.00333, 6), acknowledge=True)
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "sources/vitals")
        await expect(page.locator(".share")).to_have_text("99.7% left of ε 1")
        assert scene.driver.budget("vitals").left.epsilon == 0.99667
        await expect(page.locator("dt", has_text="left").locator("+ dd")).to_have_text("ε 0.9966")
        shares = "import('/static/format.js').then(({ percent }) => [0, 1e-9, 0.9996, 1].map(percent))"
        assert await page.evaluate(shares) == ["0%", "< 0.1%", "> 99.9%", "100%"]


async def test_halted_population_shows_its_reason(open_page: OpenPage) -> None:
    scene = shared()
    halted = scene.driver.population("patients").model_copy(update={"state": "halted", "reason": HALTED_REASON})
    outputs = Outputs()
    outputs.add(scene.driver.topics.ledger, 0, (b"population|patients", ledger_codec.encode(halted), ()))
    scene.driver.write(outputs)
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "people")
        await expect(page.locator(".source", has_text="patients").locator(".state-halted")).to_be_visible()
        await page.goto(f"{address}/#/people/patients")
        await expect(page.locator(".reason")).to_have_text(f"Halted: {HALTED_REASON}")
        keep_screenshot("population-halted.png", await page.screenshot(full_page=True))


async def test_source_shows_meaning_forecast_and_spenders_of_its_budget(open_page: OpenPage) -> None:
    scene = shared()
    async with scene.served() as address:
        page = await open_page(address, "sources/vitals")
        await expect(page.locator(".promise-line")).to_contain_text("Privacy is for ever")
        await expect(page.locator(".promise-line").get_by_role("link", name="patients")).to_be_visible()
        for window, words in (("last day", "left in"), ("last 7 days", "left in"), ("last 30 days", "left in")):
            await expect(row_of(page, "How long it lasts", window)).to_contain_text(words)
        await expect(row_of(page, "How long it lasts", "last 30 days")).to_contain_text("since")
        rows = row_of(page, "By analyst", "ana").filter(has_not_text="no analyst")
        await expect(rows).to_contain_text("3")
        await expect(row_of(page, "By analyst", "no analyst")).to_be_visible()
        await expect(row_of(page, "By stream", "ward-1/heart-rate")).to_contain_text("ana")
        await page.goto(f"{address}/#/sources/energy")
        await expect(row_of(page, "How long it lasts", "last 7 days")).to_contain_text("never at this pace")
        await page.goto(f"{address}/#/people/patients")
        await expect(page.locator(".promise-line")).to_contain_text("Privacy is per period, not for ever")
        await expect(row_of(page, "How long it lasts", "last 30 days")).to_contain_text("lasts until it renews")


async def test_trail_is_filtered_by_address_and_saved(open_page: OpenPage, tmp_path: Path) -> None:
    scene = shared()
    async with scene.served() as address:
        page = await open_page(address, "trail")
        await expect(page.get_by_text("entries is intact")).to_be_visible()
        await expect(row_of(page, "Entries", "ward-3/heart-rate")).to_contain_text("ana")
        await page.get_by_label("Analyst").fill("ben")
        await expect(page.get_by_role("table", name="Entries").locator("tbody tr")).to_have_count(1)
        await expect(row_of(page, "Entries", "alarms/night")).to_contain_text("opened")
        assert "analyst=ben" in page.url
        async with page.expect_download() as saving:
            await page.get_by_role("button", name="Save as CSV").click()
        await (await saving.value).save_as(tmp_path / "trail.csv")
        with (tmp_path / "trail.csv").open() as file:
            assert [row["stream"] for row in csv.DictReader(file)] == ["alarms/night"]
        await page.goto(f"{address}/#/trail?action=closed")
        await expect(page.get_by_role("table", name="Entries").locator("tbody tr")).to_have_count(1)
        scene.tables.trail.unread = 3
        scene.tables.changes["trail"] += 1
        await expect(page.get_by_text("3 earlier ones are still being checked")).to_be_visible()
        scene.tables.trail.broken = "entry 7 does not contain the digest of the entry before it"
        scene.tables.changes["trail"] += 1
        await expect(page.get_by_text("The chain is broken: entry 7")).to_be_visible()


LINES_OF_WORDS = """() => [...document.querySelectorAll(".trail td:not(.cell-subject, .cell-request)")].flatMap((cell) =>
  [...cell.textContent.matchAll(/\\S+/g)].map((word) => {
    const range = document.createRange();
    range.setStart(cell.firstChild, word.index);
    range.setEnd(cell.firstChild, word.index + word[0].length);
    return [word[0], range.getClientRects().length];
  }))"""


@pytest.mark.parametrize("width", [360, 900, 1280])
async def test_trail_breaks_no_word(open_page: OpenPage, width: int) -> None:
    """Each word of an entry is on one line; only names and request ids may break."""
    scene = Scene()
    scene.at_work()
    async with scene.served() as address:
        page = await open_page(address, "trail", viewport={"width": width, "height": 800})
        await expect(page.locator(".trail tbody tr").first).to_be_visible()
        words = await page.evaluate(LINES_OF_WORDS)
        assert len(words) > 100
        # A word in a cell has one box; on a phone it may have two, next to the cell's heading.
        assert [word for word, boxes in words if boxes > 1] == []


@pytest.mark.parametrize("screen", SCREENS)
async def test_views_of_people_and_budgets_make_pictures(open_page: OpenPage, screen: str) -> None:
    async with shared().served() as address:
        page = await open_page(address, token=OPERATOR, reduced_motion="reduce", **SCREENS[screen])
        for name, place in (
            ("people", "people"),
            ("population", "people/patients"),
            ("trail", "trail"),
            ("forecast", "sources/vitals"),
        ):
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator("tbody tr:visible").first).to_be_visible()
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, name
            picture = await page.screenshot(full_page=True)
            keep_screenshot(f"{name}-{screen}.png", picture)


async def test_share_that_is_left_names_the_part_of_the_budget_that_it_is_of(open_page: OpenPage) -> None:
    """Of δ if it is scarcer than ε; under zCDP of ε or ρ, of which more is left, since a grant has to fit only one."""
    scene = Scene()
    table: dict[str, Any] = {"attributes": {"sex": ["F", "M"]}, "delta": 1e-6}
    scene.driver.register(builders.source("people", "table", epsilon=3.0, **table), {"sex": ["F", "M"] * 50})
    scene.driver.register(
        builders.source("wards", "table", epsilon=8.0, accountant="zcdp", **table), {"sex": ["F"] * 50}
    )
    counts: dict[str, Any] = {"mechanism": {"kind": "laplace", "answers": 9}, "epsilon": 0.5}
    scene.driver.open(builders.stream("counts", "people", **{**counts, "delta": 1e-6}), acknowledge=True)
    scene.driver.open(builders.stream("sums", "wards", **{**counts, "epsilon": 4.0}), acknowledge=True)
    scene.flow()
    left = scene.driver.budget("wards").left
    assert left.epsilon == 4.0
    assert left.rho is not None
    assert left.rho < 0.5
    async with scene.served() as address:
        for name, said in (("people", "< 0.1% left of δ 1·10⁻⁶"), ("wards", "50% left of ε 8")):
            page = await open_page(address, f"sources/{name}")
            await expect(page.locator(".share:visible")).to_have_text(said)
