"""The page asks the chosen question: any value, of the shown stream, with every condition."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import OpenPage
from tests.browser.scene import CENSUS, OPERATOR, Scene, values
from tests.browser.screens import PHONE

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PEOPLE: dict[str, Any] = {
    **CENSUS,
    "source": "people",
    "neighbors": "add-remove",
    "accountant": "pure",
    "delta": 0.0,
    "epsilon": 90.0,
    "attributes": {
        "days": {"kind": "integers", "minimum": 0, "maximum": 999},
        "sex": ["F", "M"],
        "bmi": {"kind": "bins", "edges": [0, 18.5, 30, 60]},
        "in": ["yes", ""],
    },
}
ROWS: dict[str, Any] = {
    "days": [900] * 40,
    "sex": ["F", "M"] * 20,
    "bmi": [25.0] * 30 + [70.0] * 10,
    "in": ["yes"] * 40,
}


def people(**streams: dict[str, Any]) -> Scene:
    scene = Scene()
    scene.driver.register(PEOPLE, ROWS)
    for stream, mechanism in streams.items():
        scene.driver.open({"stream": stream, "source": "people", "epsilon": 8.0, "mechanism": mechanism})
    scene.flow()
    return scene


def continue_after(event: asyncio.Event) -> Callable[[Route], Awaitable[None]]:
    """Return a handler that holds a request until an event."""

    async def hold(route: Route) -> None:
        await event.wait()
        await route.continue_()

    return hold


async def ask(page: Page) -> None:
    await page.get_by_role("button", name="Ask", exact=True).first.click()


async def test_choice_offers_attributes_whose_values_are_candidates(open_page: OpenPage) -> None:
    """All values of an attribute are candidates, or it is not offered."""
    scene = people(most={"kind": "noisy_max", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=most", OPERATOR)
        values = page.get_by_label("Values of")
        # A thousand days are more than a question's candidates; otherwise only the first ones would be compared.
        await expect(values.locator("option")).to_have_text(["sex", "bmi", "in"])
        await values.select_option("bmi")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first).to_contain_text("[18.5, 30)")
        await values.select_option("in")
        await ask(page)
        answer = page.get_by_role("region", name="Answer").first
        await expect(answer).to_contain_text("Answered: yes")
        await expect(answer).to_contain_text(
            re.compile(r"The choice may be up to \d\S* below the best\..*; 1 charged answer is left\.")
        )
    bins, words = ([(one.name, one.where) for one in asked.candidates or ()] for asked in scene.asks)
    assert bins == [
        ("[0, 18.5)", "bmi < 18.5"),
        ("[18.5, 30)", "bmi >= 18.5 AND bmi < 30"),
        ("[30, 60]", "bmi >= 30"),
    ]
    assert words == [("yes", "\"in\" = 'yes'"), ("value 2: empty", "\"in\" = ''")]


async def test_answer_of_exactly_zero_has_a_chart(open_page: OpenPage) -> None:
    """An answer without error bar has no length for the axis; the page must not search for ticks forever."""
    scene = people(release={"kind": "histogram", "attributes": ["sex"]})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=release", OPERATOR)
        await page.get_by_label("SELECT").fill("SELECT COUNT(*) FROM release WHERE days > 999")
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        chart = page.get_by_role("region", name="Answer").first.get_by_role("img")
        await expect(chart.locator(".estimate")).to_have_count(1)
        await expect(chart.locator(".tick.name")).to_have_text("count(*)")


async def test_form_follows_answers_to_other_clients(open_page: OpenPage) -> None:
    """A form that is left open shows that the stream was exhausted meanwhile."""
    scene = people(counts={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await expect(page.get_by_text("The next answer costs")).to_be_visible()
        scene.driver.ask_many({"id": f"{n}", "stream": "counts", "where": "TRUE"} for n in range(4))
        async with asyncio.timeout(60):
            while await page.get_by_text("The next answer costs").is_visible():
                scene.driver.register(values(f"feed-{scene.now}", 1.0))
                scene.now += 1
                scene.flow()
                await page.wait_for_timeout(500)
        await expect(page.get_by_label("Stream").locator("option:checked")).to_contain_text(", exhausted")


async def test_rest_below_an_ordinary_price_is_no_price(open_page: OpenPage) -> None:
    """After a dear question, the rest of a grant may pay only for questions with a larger requested error."""
    scene = people(counts={"kind": "laplace", "answers": 2})
    alpha = scene.driver.grant("people", "counts").calibration.alpha
    scene.driver.ask("counts", where="TRUE", alpha=0.6 * alpha)
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        price = page.get_by_role("region", name="Question").locator(".price")
        await expect(price).to_have_text(
            "Only a question with “Error at most” may be answered; it costs what “Price” shows."
        )
        await page.goto(f"{address}/#/streams/counts")
        await expect(page.locator("dl")).to_contain_text("the rest of the grant pays only for cheap questions")
        await expect(page.get_by_role("link", name="Ask…")).to_be_visible()


async def test_question_to_a_stream_closed_meanwhile_shows_no_price(open_page: OpenPage) -> None:
    scene = people(counts={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await expect(page.get_by_text("The next answer costs")).to_be_visible()
        scene.driver.close("people", "counts")
        scene.flow()
        await ask(page)
        await expect(page.get_by_text("It is closed, and answers nothing")).to_be_visible()
        await expect(page.get_by_text("The next answer costs")).to_be_hidden()
        await expect(page.get_by_text("charged answers are left")).to_be_hidden()


async def test_any_value_of_a_large_attribute_makes_a_cell(open_page: OpenPage) -> None:
    scene = people(cells={"kind": "lazy_histogram", "attributes": ["days", "sex"]})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=cells", OPERATOR)
        await page.get_by_role("textbox", name="days").fill("900")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first.locator(".estimate")).to_have_count(1)
    assert [one.at for one in scene.asks[0].cells or ()] == [{"days": 900, "sex": "F"}]


async def test_sums_are_offered_of_the_streams_own_attributes(open_page: OpenPage) -> None:
    scene = people(model={"kind": "pmw", "attributes": ["sex", "bmi"]}, every={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=every", OPERATOR)
        offered = page.get_by_label("Ask", exact=True)
        await expect(offered).to_contain_text("the sum of an attribute")
        await page.get_by_label("Stream").select_option("model")
        await expect(offered).not_to_contain_text("the sum of an attribute")


async def test_bound_of_a_persons_sum_is_never_filled_in(open_page: OpenPage) -> None:
    """Which sums a bound cuts is the analyst's decision, so none is sent that the analyst did not type."""
    scene = Scene()
    scene.driver.register({**PEOPLE, "person": "who", "contribution": 2}, {**ROWS, "who": [*range(20)] * 2})
    scene.driver.open({"stream": "sums", "source": "people", "epsilon": 8.0, "mechanism": {"kind": "laplace"}})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=sums", OPERATOR)
        await page.get_by_label("Ask", exact=True).select_option("person_sum")
        await ask(page)
        await expect(page.locator(".outcome:visible")).to_have_text("Give a public bound of one person's sum.")
        await page.get_by_label("Bound").fill("50")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer")).to_contain_text("at most 50")


async def test_quantile_of_each_group_is_asked_and_shown_with_its_interval(open_page: OpenPage) -> None:
    scene = people(counts={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await page.get_by_label("Ask", exact=True).select_option("quantile")
        await page.get_by_label("Attribute", exact=True).locator("visible=true").select_option("days")
        await page.get_by_label("Quantile").fill("0.9")
        await page.get_by_role("group", name="In each group of").get_by_label("sex").check()
        await ask(page)
        answer = page.get_by_role("region", name="Answer").first
        await expect(answer).to_contain_text("(days, q 0.9)")
        await expect(answer).to_contain_text("± rows of rank")
        await expect(answer).to_contain_text("95 % interval")
        await expect(answer.locator("tbody tr")).to_have_count(2)
        await page.get_by_label("Ask", exact=True).select_option("top")
        await ask(page)
        # No attribute is ticked at first: each one more multiplies the groups.
        await expect(page.locator(".outcome:visible")).to_have_text("Tick at least one attribute to group by.")
        await page.get_by_role("group", name="Groups of").get_by_label("sex").check()
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first).to_contain_text("(first 5)")
        await page.get_by_label("Ask", exact=True).select_option("quantile")
        await page.get_by_role("group", name="In each group of").get_by_label("sex").uncheck()
        await page.get_by_label("Quantile").fill("0.1, 0.9")
        await ask(page)
        answer = page.get_by_role("region", name="Answer").first
        await expect(answer).to_contain_text("(days, q 0.1,0.9)")
        await expect(answer.locator("tbody tr")).to_have_count(2)
        await expect(answer.locator("tbody tr").last).to_contain_text("0.9")
    asked, _, several = scene.asks
    assert (asked.quantile, asked.q, asked.group_by) == ("days", 0.9, ("sex",))
    assert (several.quantile, several.q, several.group_by) == ("days", (0.1, 0.9), None)


async def test_page_asks_a_dear_question_only_after_a_confirmation(open_page: OpenPage) -> None:
    """A question with a wanted accuracy is not charged more than a tenth of the grant without a confirmation."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        limit = page.get_by_label("Price at most")
        await expect(limit).to_have_attribute("placeholder", "no limit")
        await expect(limit).to_have_accessible_description(
            re.compile("only a question with “Error at most” needs")
        )
        await page.get_by_label("Error at most").fill("2")
        await ask(page)
        price = page.get_by_role("region", name="Price")
        await expect(price).to_contain_text("more than a tenth of the stream's grant")
        await expect(price).to_contain_text("Nothing was charged")
        assert scene.driver.grant("people", "counts").answered == 0
        await price.get_by_role("button", name="Ask for this price").click()
        await expect(page.get_by_role("region", name="Answer").first).to_contain_text("how many rows")
        assert scene.driver.grant("people", "counts").answered == 1
        await page.goto(f"{address}/#/streams/counts")
        used = re.compile(r"^1: 1 noisy answer, 0 free answers; by their prices they count as \d+ answers$")
        await expect(page.get_by_text(used)).to_be_visible()
    default, confirmed = (one.max_price for one in scene.asks)
    assert default == "10%"
    assert isinstance(confirmed, float)


async def test_question_and_answers_outlast_the_view(open_page: OpenPage) -> None:
    """A question without an answer keeps its id in another view; answers are shown again."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        late: list[Any] = []

        async def delay(route: Route) -> None:
            late.append(route.request.post_data_json)
            problem = {"status": 504, "code": "unavailable", "message": "no answer yet"}
            await (route.fulfill(status=504, json=problem) if len(late) == 1 else route.continue_())

        await page.route("**/api/questions", delay)
        await ask(page)
        await expect(page.locator(".outcome:visible")).to_contain_text("it is charged once")
        for answers in (0, 1):
            await page.get_by_role("link", name="Streams", exact=True).click()
            await page.get_by_role("link", name="Ask", exact=True).click()
            await expect(page.get_by_role("region", name="Answer")).to_have_count(answers)
            if not answers:
                await ask(page)
                await expect(page.get_by_role("region", name="Answer")).to_have_count(1)
        await expect(page.get_by_role("button", name="Save answers")).to_be_visible()
    first, again = late
    assert first == again


async def test_question_that_waits_during_a_reload_is_not_asked_twice(open_page: OpenPage) -> None:
    """After the reload the view says that an answer is missing, and the same question waits for it."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        page.on("dialog", lambda dialog: dialog.accept())
        sent, asked = asyncio.Event(), []

        async def delay(route: Route) -> None:
            asked.append(route.request.post_data_json)
            sent.set()
            if len(asked) > 1:
                await route.continue_()

        await page.route("**/api/questions", delay)
        await ask(page)
        await sent.wait()
        await page.reload()
        waiting = page.get_by_text("Questions without an answer yet: 1. Ask the same again to wait for its answer")
        await expect(waiting).to_be_visible()
        await ask(page)
        await expect(page.get_by_role("region", name="Answer")).to_have_count(1)
        await expect(waiting).to_be_hidden()
        await page.reload()
        await expect(page.get_by_label("Stream")).to_have_value("counts")
        await expect(waiting).to_be_hidden()
    assert asked[0] == asked[1]


async def test_answer_that_comes_in_another_view_is_shown_and_saved(open_page: OpenPage) -> None:
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        sent, released = asyncio.Event(), asyncio.Event()

        async def delay(route: Route) -> None:
            sent.set()
            await released.wait()
            await route.continue_()

        await page.route("**/api/questions", delay)
        await ask(page)
        await sent.wait()
        await page.get_by_role("link", name="Streams", exact=True).click()
        await page.get_by_role("link", name="Ask", exact=True).click()
        await expect(page.get_by_text("No answer yet")).to_be_visible()
        released.set()
        await expect(page.get_by_role("region", name="Answer")).to_have_count(1)
        await expect(page.get_by_role("button", name="Save answers")).to_be_visible()
        await expect(page.get_by_text("No answer yet")).to_be_hidden()


async def test_page_brings_a_price_into_view_on_a_phone(open_page: OpenPage) -> None:
    """The result is below the form there, so the page moves to it."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR, **PHONE)
        await page.get_by_role("button", name="Price").first.click()
        await expect(page.get_by_role("region", name="Price").get_by_role("heading")).to_be_in_viewport()


async def test_page_points_to_the_earlier_answer_of_a_repeated_question(open_page: OpenPage) -> None:
    """The same question is sent again only after a second click; the answers can be saved."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        answers = page.get_by_role("region", name="Answer")
        await ask(page)
        await expect(answers).to_have_count(1)
        await expect(page.get_by_role("button", name="Ask", exact=True).first).to_be_focused()
        await ask(page)
        await expect(page.locator(".outcome:visible")).to_contain_text("Answered at")
        assert len(scene.asks) == 1
        await ask(page)
        await expect(answers).to_have_count(2)
        async with page.expect_download() as saving:
            await page.get_by_role("button", name="Save answers").click()
        saved = await (await saving.value).path()
        lines = (await asyncio.to_thread(saved.read_text, encoding="utf-8")).splitlines()
        assert [json.loads(line)["request"]["stream"] for line in lines] == ["counts", "counts"]
        assert all(json.loads(line)["time"].endswith("Z") for line in lines)


async def test_answers_without_a_card_are_saved_and_not_asked_again(open_page: OpenPage) -> None:
    """Fifty prices push the answer's card off the page."""
    scene = people(counts={"kind": "laplace", "answers": 40})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await ask(page)
        await expect(page.get_by_role("region", name="Answer")).to_have_count(1)
        for shown in range(1, 51):
            await page.get_by_role("button", name="Price").first.click()
            await expect(page.get_by_role("region", name="Price")).to_have_count(shown)
        await expect(page.get_by_role("region", name="Answer")).to_have_count(0)
        asked = len(scene.asks)
        await ask(page)
        await expect(page.locator(".outcome:visible")).to_contain_text("see the stream's page")
        assert len(scene.asks) == asked
        async with page.expect_download() as saving:
            await page.get_by_role("button", name="Save answers").click()
        saved = await (await saving.value).path()
        [line] = (await asyncio.to_thread(saved.read_text, encoding="utf-8")).splitlines()
        assert json.loads(line)["answer"]["answer"]["outcome"] == "answer"


async def test_condition_without_effect_is_not_left_out(open_page: OpenPage) -> None:
    scene = people(counts={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await page.get_by_role("button", name="Add condition").click()
        outcome = page.locator(".outcome:visible")
        value = page.get_by_label("Value", exact=True)
        await value.fill("")
        await ask(page)
        await expect(outcome).to_have_text(
            "Condition on 'days': a number is missing; give a number from 0 to 999."
        )
        await value.fill("many")
        await ask(page)
        await expect(outcome).to_contain_text("'many' is not a number")
        await page.get_by_role("group", name="Condition").get_by_label("Attribute").select_option("sex")
        await page.get_by_label("Comparison").select_option("IN")
        await ask(page)
        await expect(outcome).to_have_text(
            "Condition on 'sex': no value is chosen; choose one or more, or remove the condition."
        )
        assert scene.asks == []
        await page.get_by_label("Values", exact=True).select_option(["F"])
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first.locator(".estimate")).to_have_count(1)
    assert [one.where for one in scene.asks] == ["sex IN ('F')"]


async def test_shown_stream_is_asked_despite_the_late_form_of_another(open_page: OpenPage) -> None:
    scene = people(first={"kind": "laplace", "answers": 3}, second={"kind": "noisy_max", "answers": 3})
    late = asyncio.Event()

    async with scene.served() as address:
        page = await open_page(address, "ask?stream=second", OPERATOR)
        await page.get_by_label("SELECT").fill("SELECT COUNT(*) FROM first WHERE sex = 'F'")
        await page.route("**/api/streams/first", continue_after(late))
        await page.get_by_label("Stream").select_option("first")
        await page.get_by_label("Stream").select_option("second")
        await expect(page.get_by_label("Values of")).to_be_visible()
        async with page.expect_response("**/api/sources/people"):
            late.set()
        await page.wait_for_timeout(100)
        await expect(page.get_by_label("Values of")).to_be_visible()
        await expect(page.get_by_label("SELECT")).to_have_value("SELECT COUNT(*) FROM first WHERE sex = 'F'")


async def test_unedited_select_is_about_the_chosen_stream(open_page: OpenPage) -> None:
    scene = people(first={"kind": "laplace", "answers": 3}, second={"kind": "laplace", "answers": 3})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=first", OPERATOR)
        await expect(page.get_by_label("SELECT")).to_have_value('SELECT COUNT(*) FROM "first"')
        await page.get_by_label("Stream").select_option("second")
        await expect(page.get_by_label("SELECT")).to_have_value('SELECT COUNT(*) FROM "second"')


async def test_example_never_replaces_a_select_that_is_being_written(open_page: OpenPage) -> None:
    scene = people(first={"kind": "laplace", "answers": 3}, second={"kind": "laplace", "answers": 3})
    late = asyncio.Event()

    async with scene.served() as address:
        page = await open_page(address, "ask?stream=first", OPERATOR)
        await expect(page.get_by_label("SELECT")).to_have_value('SELECT COUNT(*) FROM "first"')
        await page.route("**/api/streams/second/asking", continue_after(late))
        await page.get_by_label("Stream").select_option("second")
        await page.get_by_label("SELECT").focus()
        async with page.expect_response("**/api/streams/second/asking"):
            late.set()
        await page.wait_for_timeout(100)
        await expect(page.get_by_label("SELECT")).to_have_value('SELECT COUNT(*) FROM "first"')


async def test_kind_of_question_offers_streams_of_matching_mechanisms(open_page: OpenPage) -> None:
    """Exactly the mechanisms that answer the kind of question are offered, and the form begins with the kind."""
    scene = people(
        laplace={"kind": "laplace", "answers": 3},
        cells={"kind": "histogram", "attributes": ["sex"]},
        model={"kind": "pmw", "attributes": ["sex", "bmi"]},
        alarm={"kind": "above_threshold", "threshold": 10.0, "cutoff": 2},
        most={"kind": "noisy_max", "answers": 3},
        few={"kind": "lazy_histogram", "attributes": ["sex"]},
    )
    async with scene.served() as address:
        page = await open_page(address, "ask", OPERATOR)
        options = page.get_by_label("Stream").locator("option")
        await expect(options).to_have_count(6)
        expected = {
            "count": ["alarm", "cells", "laplace", "model"],
            "groups": ["cells", "laplace", "model"],
            "choice": ["most"],
            "cell": ["cells", "few"],
            "sum": ["alarm", "laplace", "model"],
        }
        for kind, streams in expected.items():
            await page.get_by_label("Kind of question").select_option(kind)
            await expect(options).to_have_count(len(streams))
            assert sorted([await one.get_attribute("value") or "" for one in await options.all()]) == streams
            await expect(page.get_by_label("Ask", exact=True)).to_have_value(kind)
        # The first stream declares no sums, which only its definition shows.
        await expect(page.get_by_label("Stream")).not_to_have_value("alarm")
        await page.get_by_label("Stream").select_option("alarm")
        await expect(page.get_by_text("does not answer this kind of question")).to_be_visible()
        await page.get_by_label("Kind of question").select_option("people")
        await expect(page.get_by_text("No open stream answers this kind of question.")).to_be_visible()


async def test_select_is_prefilled_only_if_the_stream_accepts_it(open_page: OpenPage) -> None:
    """A stream without statements leaves the box empty; one of texts gets a statement that groups by them."""
    scene = people(counts={"kind": "laplace", "answers": 3}, most={"kind": "noisy_max", "answers": 3})
    scene.driver.register(VISITS, VISIT_ROWS)
    for name, counted in (("notes", True), ("names", False)):
        mechanism = {"kind": "unknown_groups", "counts": counted}
        scene.driver.open(
            {"stream": name, "source": "visits", "epsilon": 8.0, "delta": 1e-4, "mechanism": mechanism}
        )
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        select, chosen = page.get_by_label("SELECT"), page.get_by_label("Stream")
        await expect(select).to_have_value('SELECT COUNT(*) FROM "counts"')
        for stream, statement in (
            ("most", ""),
            ("notes", 'SELECT "note", COUNT(*) FROM "notes" GROUP BY "note"'),
            ("names", 'SELECT "note" FROM "names" GROUP BY "note"'),
        ):
            await chosen.select_option(stream)
            await expect(select).to_have_value(statement)
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        await expect(page.get_by_role("region", name="Answer")).to_have_count(1)


async def test_price_is_shown_before_a_question_of_each_mechanism(open_page: OpenPage) -> None:
    """Fixed prices are below the form, and the price of a statement below the statement, although it is free."""
    scene = people(
        counts={"kind": "laplace", "answers": 4},
        cells={"kind": "histogram", "attributes": ["sex"]},
        alarm={"kind": "above_threshold", "threshold": 10.0, "cutoff": 2},
        most={"kind": "noisy_max", "answers": 4},
    )
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=most", OPERATOR)
        price, chosen = page.get_by_role("region", name="Question").locator(".price"), page.get_by_label("Stream")
        await expect(price).to_have_text("The next answer costs ε 2.")
        await chosen.select_option("alarm")
        await expect(price).to_contain_text("if it is one of the answers above, and")
        await chosen.select_option("cells")
        await expect(price).to_have_text("The next answer costs ε 8.")
        await ask(page)
        await expect(price).to_have_text("The next answer costs nothing: its cost is paid already.")
        await chosen.select_option("counts")
        await expect(price).to_contain_text(
            "The next answer costs ε 2. With “Error at most” it costs what “Price” shows"
        )
        written = page.get_by_role("region", name="SQL").get_by_role("status")
        await expect(written).to_have_text("The statement sends 1 question to counts. It costs ε 2.")
        for statement, text in (
            ("SELECT COUNT(*), SUM(days) FROM counts", "sends 2 questions to counts. It costs ε 4."),
            ("SELECT sex, COUNT(*) FROM cells GROUP BY sex", "sends 1 question to cells. It costs nothing."),
            ("SELECT sex FROM counts", "'sex' is neither grouped by nor added up"),
        ):
            await page.get_by_label("SELECT").fill(statement)
            await expect(written).to_contain_text(text)
        assert scene.driver.grant("people", "counts").answered == 0


async def test_last_answer_removes_the_price_of_a_next_one(open_page: OpenPage) -> None:
    """The form stays as it is, but neither a price nor a free answer is offered by an exhausted stream."""
    scene = people(counts={"kind": "laplace", "answers": 1})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        price = page.get_by_role("region", name="Question").locator(".price")
        await expect(price).to_contain_text("The next answer costs")
        await page.get_by_role("button", name="Add condition").click()
        await ask(page)
        await expect(page.get_by_text("It is exhausted, and answers nothing")).to_be_visible()
        await expect(price).to_have_text("")
        await expect(page.get_by_role("group", name="Condition")).to_be_visible()
        await page.set_viewport_size({"width": 1280, "height": 300})
        await ask(page)
        await expect(page.get_by_text("To ask again, and pay again")).to_be_in_viewport()
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first.get_by_role("heading")).to_have_text(
            "Exhausted"
        )


async def test_answer_names_the_threshold_of_its_question(open_page: OpenPage) -> None:
    """The question's threshold replaces the stream's: without it the answer would be about another number."""
    scene = people(alarm={"kind": "above_threshold", "threshold": 10.0, "cutoff": 2})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=alarm", OPERATOR)
        await page.get_by_label("Threshold", exact=True).fill("900")
        await ask(page)
        answer = page.get_by_role("region", name="Answer").first
        await expect(answer.get_by_role("heading")).to_have_text("Below the threshold")
        await expect(answer).to_contain_text("how many rows (threshold 900)")
        await page.goto(f"{address}/#/streams/alarm")
        row = page.get_by_role("region", name="Answers", exact=True).locator("tbody tr").first
        await expect(row).to_contain_text("how many rows (threshold 900)")
        await expect(page.get_by_role("region", name="At a glance")).to_contain_text(
            "Above threshold, threshold 10"
        )


async def test_halted_stream_is_shown_as_halted_before_a_question(open_page: OpenPage) -> None:
    scene = people(gone={"kind": "laplace", "answers": 3})
    scene.driver.halt("people", "gone", "under review")
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=gone", OPERATOR)
        await expect(page.get_by_text("It is halted, and answers nothing: under review.")).to_be_visible()


async def test_command_for_people_who_send_records_has_their_category(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register({"source": "votes", "kind": "records", "neighbors": "replace", "epsilon": 4})
    response = {"kind": "randomized_response", "categories": ["yes", "no"]}
    scene.driver.open({"stream": "vote", "source": "votes", "epsilon": 2, "mechanism": response})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=vote", OPERATOR)
        await expect(page.get_by_text("sotto ask vote --category 'yes'")).to_be_visible()


async def test_stream_list_says_that_more_streams_are_open(open_page: OpenPage) -> None:
    scene = Scene()
    scene.with_streams(600)
    async with scene.served() as address:
        page = await open_page(address, "ask", OPERATOR)
        await expect(
            page.get_by_text("The first 500 of 600 open and exhausted streams; ask any other from its own page.")
        ).to_be_visible()


@pytest.mark.parametrize("width", [390, 1440])
async def test_answer_table_fits_its_card(open_page: OpenPage, width: int) -> None:
    """All columns of two numbers with their marks are visible, on a phone and on a desktop."""
    scene = people(counts={"kind": "laplace", "answers": 90})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR, viewport={"width": width, "height": 900})
        # The noise, and so the width of the numbers, depends on the question's id.
        await page.evaluate("crypto.randomUUID = () => 'fitting'")
        await page.get_by_label("SELECT").fill("SELECT MEDIAN(days), AVG(days) FROM counts")
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        frame = page.get_by_role("region", name="Answer").locator(".table-frame")
        await expect(frame).to_contain_text("avg(days)")
        assert await frame.evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")


async def test_numbers_of_very_different_size_have_separate_charts(open_page: OpenPage) -> None:
    """Beside a sum a count would be a point at 0; two counts share an axis."""
    scene = people(counts={"kind": "laplace", "answers": 90})
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        for statement, charts in (
            ("SELECT COUNT(*), COUNT(*) FILTER (WHERE sex = 'F'), SUM(days) FROM counts", 2),
            ("SELECT COUNT(*), COUNT(*) FILTER (WHERE sex = 'F') FROM counts", 1),
        ):
            await page.get_by_label("SELECT").fill(statement)
            await page.get_by_role("button", name="Ask", exact=True).last.click()
            answer = page.get_by_role("region", name="Answer").first
            await expect(answer).to_contain_text("questions to counts")
            await expect(answer.locator("figure.bars")).to_have_count(charts)


@pytest.mark.parametrize("width", [390, 1280])
async def test_long_names_stay_within_their_card(open_page: OpenPage, width: int) -> None:
    scene = Scene()
    scene.driver.register({**PEOPLE, "source": "s" * 128}, ROWS)
    spec = {"stream": "t" * 128, "source": "s" * 128, "epsilon": 8.0}
    scene.driver.open({**spec, "mechanism": {"kind": "laplace", "answers": 3}})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask", OPERATOR, viewport={"width": width, "height": 800})
        link = page.get_by_role("link", name="s" * 128)
        await expect(link).to_be_visible()
        right = "node => node.getBoundingClientRect().right"
        assert await link.evaluate(right) <= await page.get_by_role("region", name="Question").evaluate(right)


async def test_dates_decimals_and_orders_are_offered_where_allowed(open_page: OpenPage) -> None:
    """Months are candidates, an amount has a sum, and conditions take dates and the order of categories."""
    year = {"minimum": "2024-01-01", "maximum": "2024-12-31"}
    declared = {
        **PEOPLE,
        "attributes": {
            "month": {"kind": "date", "granularity": "month", **year},
            "cost": {"kind": "decimal", "minimum": 0, "maximum": 100, "step": 0.01},
            "severity": {"kind": "categories", "values": ["low", "high"], "ordered": True},
        },
    }
    scene = Scene()
    rows = {"month": ["2024-03-05"] * 40, "cost": ["12.30"] * 40, "severity": ["low", "high"] * 20}
    scene.driver.register(declared, rows)
    for name, mechanism in {
        "most": {"kind": "noisy_max", "answers": 3},
        "sums": {"kind": "laplace", "answers": 9},
    }.items():
        scene.driver.open({"stream": name, "source": "people", "epsilon": 8.0, "mechanism": mechanism})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=most", OPERATOR)
        await page.get_by_label("Values of").select_option("month")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer").first).to_contain_text("2024-03")
        page = await open_page(address, "ask?stream=sums", OPERATOR)
        await page.get_by_label("Ask", exact=True).select_option("sum")
        await page.get_by_role("button", name="Add condition").click()
        condition = page.get_by_role("group", name="Condition")
        await condition.get_by_label("Comparison").select_option("<=")
        await condition.get_by_label("Value", exact=True).fill("2024-03")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer")).to_have_count(1)
        await condition.get_by_label("Attribute").select_option("severity")
        await condition.get_by_label("Comparison").select_option(">=")
        await condition.get_by_label("Value", exact=True).select_option("high")
        await ask(page)
        await expect(page.get_by_role("region", name="Answer")).to_have_count(2)
    assert [(one.sum, one.where) for one in scene.asks[1:]] == [
        ("cost", "month <= '2024-03'"),
        ("cost", "severity >= 'high'"),
    ]
    assert [one.where for one in scene.asks[0].candidates or ()][2] == "month = '2024-03'"


VISITS: dict[str, Any] = {
    **PEOPLE,
    "source": "visits",
    "delta": 1e-3,
    "attributes": {
        "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-01-31"},
        "ward": ["A", "B"],
        "note": {"kind": "text"},
    },
}
VISIT_ROWS: dict[str, Any] = {
    "day": ["2024-01-16"] * 400,
    "ward": ["A", "B"] * 200,
    "note": ["flu"] * 300 + ["cold"] * 99 + ["rare"],
}


async def test_texts_are_listed_by_ward_and_median_is_a_date(open_page: OpenPage) -> None:
    """Texts are listed with counts by ward, and without counts; their stream offers no extension."""
    scene = Scene()
    scene.driver.register(VISITS, VISIT_ROWS)
    mechanisms: dict[str, dict[str, Any]] = {
        "counts": {"kind": "unknown_groups"},
        "names": {"kind": "unknown_groups", "counts": False},
        "days": {"kind": "laplace", "answers": 2},
    }
    for name, mechanism in mechanisms.items():
        delta = 0.0 if name == "days" else 1e-4
        scene.driver.open(
            {"stream": name, "source": "visits", "epsilon": 8.0, "delta": delta, "mechanism": mechanism}
        )
    scene.flow()
    async with scene.served() as address:
        answer = "Answer"
        page = await open_page(address, "ask?stream=names", OPERATOR)
        await ask(page)
        table = page.get_by_role("region", name=answer).first.locator("tbody tr")
        await expect(table).to_have_text(["cold", "flu"])
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await page.get_by_role("group", name="In each group of").get_by_label("ward", exact=True).check()
        await ask(page)
        await expect(page.get_by_role("region", name=answer).first.locator("tbody tr").first).to_contain_text(
            "flu"
        )
        await expect(page.get_by_role("region", name=answer).first.locator("tbody tr")).to_have_count(4)
        await page.goto(f"{address}/#/streams/counts")
        await expect(page.get_by_role("button", name="Close stream…")).to_be_visible()
        await expect(page.get_by_role("button", name="Extend stream…")).to_be_hidden()
        page = await open_page(address, "ask?stream=days", OPERATOR)
        await page.get_by_label("Ask", exact=True).select_option("quantile")
        await ask(page)
        await expect(page.get_by_role("region", name=answer).first).to_contain_text("Answered: 2024-01-16")
        await page.get_by_label("SELECT").fill("SELECT MEDIAN(day) FROM days")
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        await expect(page.get_by_role("region", name=answer).first.locator("tbody tr")).to_have_text(
            "2024-01-16–2024-01-16 to 2024-01-16"
        )
