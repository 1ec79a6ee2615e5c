"""The plan view compares mechanisms, shows warnings, and shows the progress of the error curve."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Route, expect
from typer.testing import CliRunner

from stream.cli.app import app
from tests.browser.conftest import OpenPage
from tests.browser.scene import CENSUS, OPERATOR, Scene, values

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PEOPLE: dict[str, Any] = {
    **CENSUS,
    "source": "people",
    "neighbors": "add-remove",
    "accountant": "pure",
    "delta": 0.0,
    "epsilon": 8.0,
}


def registered() -> Scene:
    scene = Scene()
    scene.driver.register(values("feed", 2.0))
    scene.driver.register(PEOPLE, {"age": [30] * 50, "sex": ["F"] * 50})
    scene.flow()
    return scene


async def test_plan_warns_by_threshold_rows_and_expected_answer(open_page: OpenPage) -> None:
    """A promised error that is too large for its threshold, rows or expected answer is never shown as good."""
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        verdict = page.locator(".verdict")
        await page.get_by_label("Mechanism").select_option("laplace")
        await expect(verdict).to_contain_text("depends on the number of rows")
        await expect(verdict).to_contain_text("for 100 answers")
        await expect(page.get_by_role("region", name="Comparison")).to_contain_text("α for 1,000 questions")
        await page.get_by_label("Rows, about").fill("900")
        await expect(verdict).to_contain_text("more than a third of the 900 rows")
        await expect(verdict).to_have_attribute("data-level", "vacuous")
        await page.get_by_label("Rows, about").fill("900000")
        await expect(verdict).to_have_attribute("data-level", "good")
        await page.get_by_label("Expected answer, about").fill("12")
        await expect(verdict).to_contain_text("more than the expected answer 12")
        await page.get_by_label("Expected answer, about").fill("")
        await page.get_by_label("Mechanism").select_option("above_threshold")
        await page.get_by_label("Threshold").fill("3")
        await expect(verdict).to_contain_text("more than the threshold 3")
        await expect(verdict).to_have_attribute("data-level", "vacuous")


async def test_plan_says_if_it_pays_for_more_answers_than_expected(open_page: OpenPage) -> None:
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        await page.get_by_label("Mechanism").select_option("laplace")
        verdict = page.locator(".verdict")
        await page.get_by_label("Expected questions").fill("5")
        await expect(verdict).to_contain_text("It pays for 100 answers, and 5 questions are expected: with fewer")
        await page.get_by_label("Answers to pay for").fill("5")
        await expect(verdict).not_to_contain_text("are expected")
        await expect(verdict).to_contain_text("for 5 answers")


async def test_plan_of_a_histogram_names_its_cells(open_page: OpenPage) -> None:
    """Two attributes are ticked at first, and a histogram of all their cells costs more error than of one attribute."""
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        await page.get_by_label("Mechanism").select_option("histogram")
        await expect(page.locator(".verdict")).to_contain_text("It covers 200 cells, of age, sex.")
        await page.get_by_label("age", exact=True).uncheck()
        await expect(page.locator(".verdict")).to_contain_text("It covers 2 cells, of sex.")


async def test_plan_compares_mechanisms_as_the_command(open_page: OpenPage) -> None:
    """The view has the order and the choice of ``sotto plan``, and a click selects a mechanism."""
    arguments = ["plan", "--source", json.dumps(PEOPLE), "--json", "--epsilon", "0.5", "--form", "alarm"]
    printed = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        card = page.get_by_role("region", name="Comparison")
        await card.get_by_label("Questions").select_option("alarm")
        rows = card.locator("tbody tr")
        await expect(rows).to_have_count(sum(one["applies"] for one in printed["mechanisms"]))
        await expect(rows.first).to_contain_text("→ Above threshold")
        assert printed["choice"] == "above_threshold"
        for place, one in enumerate(each for each in printed["mechanisms"] if each["applies"]):
            await expect(rows.nth(place)).to_contain_text(one["why"])
        await card.get_by_text("Mechanisms that do not apply").click()
        await expect(card).to_contain_text("Randomized response: takes one person's category")
        await card.get_by_label("Error wanted").fill("40")
        await card.get_by_label("Error wanted").press("Tab")
        await expect(rows.first).to_contain_text("for 40: ε ")
        await card.get_by_role("button", name="Take Numeric sparse").click()
        await expect(page.get_by_label("Mechanism")).to_have_value("numeric_sparse")
        await page.get_by_label("Source").select_option("feed")
        await expect(card.get_by_label("Questions")).to_have_value("value")


async def test_plan_compares_over_the_ticked_attributes(open_page: OpenPage) -> None:
    """The comparison names its attributes, and says if the number of rows is missing."""
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        card = page.get_by_role("region", name="Comparison")
        await page.get_by_label("Mechanism").select_option("pmw")
        await expect(card).to_contain_text(f"Over all {len(PEOPLE['attributes'])} attributes: ")
        await expect(card).to_contain_text("the number of rows, which is not given")
        await page.get_by_role("group", name="Attributes").get_by_label("age").uncheck()
        await expect(card).to_contain_text("Over sex: ")
        await page.get_by_label("Rows, about").fill("900000")
        await expect(card).not_to_contain_text("which is not given")


async def test_comparison_on_a_live_topic_says_what_it_needs(open_page: OpenPage) -> None:
    scene = Scene()
    scene.with_periods(1)
    async with scene.served() as address:
        page = await open_page(address, "plan?source=visits", OPERATOR)
        card = page.get_by_role("region", name="Comparison")
        await expect(card.get_by_role("status").first).to_contain_text("They need “In all windows together”")
        await expect(card.locator("[data-level]:visible")).to_have_count(0)
        await page.get_by_label("Source").select_option("vitals")
        await expect(card.locator("tbody tr").first).to_be_visible()
        await expect(card.get_by_role("status").first).to_have_text("")


async def test_plan_shows_how_far_the_error_curve_is(open_page: OpenPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress shows at once after an input; the points of a curve are drawn as they come."""
    monkeypatch.setattr("stream.monitor.api.forms.CURVE_SECONDS", 0.0)
    go_on, parts = asyncio.Event(), 0

    async def hold(route: Route) -> None:
        nonlocal parts
        parts += 1
        if parts > 2:
            await go_on.wait()
        await route.continue_()

    async with registered().served() as address:
        page = await open_page(address, "overview", OPERATOR)
        await page.route("**/api/curves", hold)
        await page.goto(f"{address}/#/plan?source=feed")
        progress = page.get_by_role("progressbar", name="Points of the error curve")
        await expect(progress).to_have_attribute("value", "2")
        await expect(page.get_by_text("Working out the error curve: 2 of 17 points")).to_be_visible()
        await expect(page.locator(".curve-dot").first).to_be_visible()
        go_on.set()
        await expect(progress).to_be_hidden()
        await expect(page.locator(".chosen-dot")).to_have_count(1)
        await page.get_by_label("ε", exact=True).fill("0.7")
        # This is shown at once, before the pause after which the plan is requested.
        assert await progress.is_visible()
        assert await page.locator(".curve[data-stale]").count() == 1
        await expect(page.locator(".curve[data-stale]")).to_have_count(0)


async def test_plan_of_an_earlier_input_cannot_be_opened(open_page: OpenPage) -> None:
    """The answer to a plan may come after its input has changed, before the changed plan is requested."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await go_on.wait()
        await route.continue_()

    async with registered().served() as address:
        page = await open_page(address, "plan?source=feed", OPERATOR)
        await page.get_by_label("Name of the stream").fill("named")
        button = page.get_by_role("button", name="Open stream…")
        await expect(button).to_be_enabled()
        await page.route("**/api/plan", hold)
        await page.get_by_label("ε", exact=True).fill("0.6")
        await asked.wait()
        await page.clock.install(time=0)
        await page.clock.pause_at(1)
        await page.get_by_label("ε", exact=True).fill("0.7")
        async with page.expect_response("**/api/plan") as answered:
            go_on.set()
        await (await answered.value).finished()
        await page.evaluate("fetch(location.pathname).then((one) => one.text())")  # gives the page time to read it
        assert await button.is_disabled()
        await expect(page.locator(".verdict")).to_contain_text("Working out the plan")
        await page.clock.resume()
        await expect(button).to_be_enabled()
        await expect(page.get_by_role("region", name="Error bound and cost")).to_contain_text("ε 0.7")


async def test_plan_reads_a_source_again_that_could_not_be_read(open_page: OpenPage) -> None:
    """No figure of another source stays beside it, and the next input tries it again."""
    async with registered().served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        facts = page.get_by_role("region", name="Error bound and cost")
        await page.get_by_label("Name of the stream").fill("named")
        button = page.get_by_role("button", name="Open stream…")
        await expect(button).to_be_enabled()
        await page.route("**/api/sources/feed", lambda route: route.fulfill(status=503, json={"message": "busy"}))
        await page.get_by_label("Source").select_option("feed")
        await expect(facts).to_contain_text("busy")
        await expect(facts).not_to_contain_text("ε 0.5")
        await expect(button).to_be_disabled()
        await page.unroute("**/api/sources/feed")
        await page.get_by_label("ε", exact=True).fill("0.7")
        await expect(facts).to_contain_text("ε 0.7")
        await expect(button).to_be_enabled()


async def test_plan_of_auto_names_mechanisms_without_an_expected_error(open_page: OpenPage) -> None:
    """The comparison beside it may list such a mechanism, so it is not said that it does not apply."""
    scene = Scene()
    amounts = {name: {"kind": "integers", "minimum": 0, "maximum": 80_000} for name in ("amount", "income")}
    table = {**PEOPLE, "attributes": {**amounts, "sex": ["F", "M"], "ill": ["no", "yes"]}}
    scene.driver.register(table, {"amount": [1] * 9, "income": [2] * 9, "sex": ["F"] * 9, "ill": ["no"] * 9})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        await page.get_by_label("Mechanism").select_option("auto")
        await expect(page.locator(".verdict")).to_contain_text("Histogram has no expected error")


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
async def test_plan_of_auto_is_judged_by_the_guessed_rows(open_page: OpenPage, neighbors: str) -> None:
    """The guess is sent as ``mechanism.rows``, but not to open a stream on a table whose rows are public."""
    scene = Scene()
    scene.driver.register({**PEOPLE, "neighbors": neighbors}, {"age": [30] * 50, "sex": ["F"] * 50})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "plan?source=people", OPERATOR)
        verdict, request = page.locator(".verdict"), page.get_by_role("region", name="Request").locator("code")
        await page.get_by_label("Mechanism").select_option("auto")
        await page.get_by_label("Rows, about").fill("900")
        await expect(verdict).to_contain_text("rows, and the mean count 4.5;")
        await expect(verdict).to_have_attribute("data-level", "vacuous")
        shown = json.loads(await request.inner_text())["stream"]["mechanism"]
        assert shown == {"kind": "auto", **({"rows": 900} if neighbors == "add-remove" else {})}
        await page.get_by_label("Rows, about").fill("900000")
        await expect(verdict).to_have_attribute("data-level", "good")
