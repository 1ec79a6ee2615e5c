"""A stream's page lists all answers of the log, including answers to other clients."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from typing import Any

import pytest
from playwright.async_api import Route, expect

from tests.browser.conftest import OpenPage
from tests.browser.scene import CENSUS, OPERATOR, Scene

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PEOPLE: dict[str, Any] = {**CENSUS, "source": "people", "accountant": "pure", "delta": 0.0, "epsilon": 90.0}
ROWS: dict[str, Any] = {"age": list(range(100)), "sex": ["F", "M"] * 50}


def scene_with_stream(
    answers: int, epsilon: float, table: dict[str, Any] = PEOPLE, rows: dict[str, Any] = ROWS, **spec: Any
) -> Scene:
    """A stream that pays for ``answers`` noisy answers about a table."""
    scene = Scene()
    scene.driver.register(table, rows)
    mechanism = {"kind": "laplace", "answers": answers}
    spec = {"stream": "counts", "source": "people", "epsilon": epsilon, "mechanism": mechanism, **spec}
    scene.driver.open(spec, acknowledge=True)
    scene.flow()
    return scene


def scene_with_answers(answers: int) -> Scene:
    """A stream with answers to a client's questions."""
    mechanism = {"kind": "laplace", "answers": answers + 2, "dimensions": 2}
    scene = scene_with_stream(answers, 80.0, mechanism=mechanism)
    scene.driver.ask_many(
        {"id": f"q-{number}", "stream": "counts", "where": f"age >= {number % 90}"} for number in range(answers)
    )
    scene.flow()
    return scene


async def test_history_pages_through_answers_of_other_clients(open_page: OpenPage) -> None:
    """Answers are listed newest first, with interval, α and price; older pages come on demand."""
    scene = scene_with_answers(40)
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        rows = card.locator("tbody tr")
        await expect(rows).to_have_count(25)
        await expect(rows.first).to_contain_text("id q-39")
        await expect(card).to_contain_text(
            "if this monitor has not asked a question since its start, only its id is shown"
        )
        await expect(rows.first.locator("td").nth(3)).to_contain_text(" to ")
        await expect(rows.first.locator("td").nth(5)).to_contain_text("ε 1.905")
        await card.get_by_role("button", name="Older").click()
        await expect(rows).to_have_count(15)
        await expect(rows.last).to_contain_text("id q-0")
        await expect(card.get_by_text("no older ones are kept in the log")).to_be_visible()
        await expect(card.get_by_role("button", name="Older")).to_be_disabled()
        await card.get_by_role("button", name="Newest").click()
        await expect(rows.first).to_contain_text("id q-39")


async def test_history_left_open_says_that_newer_answers_exist(open_page: OpenPage) -> None:
    """An empty list is read again by itself; a list with answers stays, and says that it is not the newest."""
    scene = scene_with_answers(0)
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        newer = card.get_by_text("The stream has given newer answers")
        await expect(card.get_by_text("No answer yet")).to_be_visible()
        for number in range(2):
            scene.now += 60
            scene.driver.ask({"id": f"q-{number}", "stream": "counts", "where": "TRUE"})
            scene.flow()
            await expect(page.get_by_text(f"{number + 1} noisy answer")).to_be_visible()
            if not number:
                await expect(card.locator("tbody tr")).to_have_count(1)
                await expect(newer).to_be_hidden()
        await expect(newer).to_be_visible()
        await card.get_by_role("button", name="Newest").click()
        await expect(card.locator("tbody tr").first).to_contain_text("id q-1")
        await expect(newer).to_be_hidden()


async def test_history_without_kept_answers_says_that_there_were_some(open_page: OpenPage) -> None:
    """A restored stream has its totals, and none of its answers."""
    scene = scene_with_answers(1)

    async def read_nothing(route: Route) -> None:
        await route.fulfill(json={"items": [], "before": None, "reached": None, "unreadable": 0})

    async with scene.served() as address:
        page = await open_page(address, "overview", OPERATOR)
        await page.route("**/api/streams/counts/answers?*", read_nothing)
        await page.goto(f"{address}/#/streams/counts")
        card = page.get_by_role("region", name="Answers", exact=True)
        await expect(card.get_by_text("No answer is kept")).to_be_visible()
        await expect(card.get_by_text("No answer yet")).to_be_hidden()


async def test_history_shows_the_question_that_the_page_asked(open_page: OpenPage) -> None:
    """A question from this monitor is shown in words with its answer; the file has the names of its groups."""
    scene = scene_with_answers(1)
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        aggregates = re.compile("shares, MEDIAN, QUANTILE, VARIANCE, STDDEV; FROM a stream")
        await expect(page.get_by_label("SELECT")).to_have_accessible_description(aggregates)
        await expect(page.get_by_role("region", name="Request of the form")).to_be_visible()
        await page.get_by_label("Ask", exact=True).select_option("groups")
        groups = page.get_by_role("group", name="Groups of")
        await groups.get_by_label("sex").check()
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("region", name="Answer").first).to_be_visible()
        await page.goto(f"{address}/#/streams/counts")
        card = page.get_by_role("region", name="Answers", exact=True)
        rows = card.locator("tbody tr")
        await expect(rows.first).to_contain_text("how many rows in each group of sex")
        await expect(rows.first.locator("td").nth(2)).to_contain_text(re.compile(r"sex F: .*; sex M: "))
        saved: dict[str, str] = {}
        for button, name in (("Save as CSV", "answers.csv"), ("Save as JSON lines", "answers.jsonl")):
            async with page.expect_download() as saving:
                await card.get_by_role("button", name=button).click()
            download = await saving.value
            assert download.suggested_filename == name
            saved[name] = await asyncio.to_thread((await download.path()).read_text, encoding="utf-8")
        lines = [json.loads(line) for line in saved["answers.jsonl"].splitlines()]
        assert [line.get("question", {}).get("group_by") for line in lines] == [["sex"], None]
        assert [one["group"] for one in csv.DictReader(saved["answers.csv"].splitlines())] == [
            "sex=F",
            "sex=M",
            "",
        ]


async def test_history_tells_a_refused_question_from_a_request_for_its_price(open_page: OpenPage) -> None:
    """The question of another client is unknown, but the reason names its limit."""
    scene = scene_with_answers(0)
    for number, limit in enumerate((0, "0%", 0.001)):
        question = {"id": f"q-{number}", "stream": "counts", "where": "TRUE", "alpha": 1.0, "max_price": limit}
        scene.driver.ask_many([question])
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        answers = card.locator("tbody tr td:nth-child(3)")
        await expect(answers.nth(2)).to_contain_text("Price asked: at most ε")
        await expect(answers.nth(1)).to_contain_text("Price asked: at most ε")
        await expect(answers.nth(0)).to_contain_text("Rejected")
        await expect(answers.nth(0)).to_contain_text("and the limit is 0.0")


async def test_history_separates_prices_from_answers_and_ranks_from_rows(open_page: OpenPage) -> None:
    """A request for a price is not shown as an answer; the unit of a quantile's error bound is next to it or in the head."""
    scene = scene_with_answers(0)
    scene.driver.ask({"id": "unknown", "stream": "counts", "where": "age >= 30"})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await page.get_by_role("button", name="Price").first.click()
        await expect(page.get_by_role("region", name="Price")).to_be_visible()
        await page.get_by_label("Ask", exact=True).select_option("quantile")
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("region", name="Answer").first).to_be_visible()
        await page.goto(f"{address}/#/streams/counts")
        card = page.get_by_role("region", name="Answers", exact=True)
        await expect(card.get_by_role("status").first).to_be_attached()
        await expect(card).to_contain_text("2 answers and 1 price request, newest first")
        quantile, priced, unknown = (card.locator("tbody tr").nth(place).locator("td") for place in range(3))
        await expect(quantile.nth(4)).to_contain_text("rows of rank")
        await expect(priced.nth(2)).to_have_text("Price asked: at most ε 40")
        await expect(unknown.nth(4)).not_to_contain_text("rows of rank")
        await expect(card.locator("th").nth(4)).to_have_text("± (α; of a quantile in rows of rank)")


async def test_history_shows_the_digits_of_a_quantile(open_page: OpenPage) -> None:
    """The error bound of a quantile is in rows, so it does not limit the digits of a value below 1."""
    share = {"kind": "decimal", "minimum": 0, "maximum": 1, "step": 0.01}
    scene = scene_with_stream(2, 0.02, {**PEOPLE, "attributes": {"share": share}}, {"share": ["0.37"] * 20_000})
    found = scene.driver.ask("counts", quantile="share")
    assert (found.alpha or 0.0) > 1000.0
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        await expect(card.locator("tbody tr td").nth(2)).to_contain_text(f"{found.estimate:.2g}")


async def test_history_marks_numbers_that_are_not_informative(open_page: OpenPage) -> None:
    """A small number with a large error is marked, like in the client's results; a large number is not."""
    scene = scene_with_stream(50, 0.5)
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        # The noise depends on the question's id: with a random one, one interval of twenty excludes 0 or 100.
        await page.evaluate("crypto.randomUUID = () => 'marked'")
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        answer = page.get_by_role("region", name="Answer").first
        await expect(answer).to_contain_text("Warning: not informative")
        await page.goto(f"{address}/#/streams/counts")
        card = page.get_by_role("region", name="Answers", exact=True)
        await expect(card.locator("tbody tr td").nth(2)).to_contain_text("(not informative)")
        left_out = "rows with a missing or invalid cell are left out"
        await expect(card.get_by_text(f"Warning about each answer: {left_out}")).to_be_visible()
        await expect(card.locator("tbody")).not_to_contain_text(left_out)
        await expect(page.get_by_text("1: 1 noisy answer, 0 free answers")).to_be_visible()
        await page.goto(f"{address}/#/sources/people")
        await expect(page.get_by_text("neighbors exchange one person;")).to_be_visible()


async def test_history_shows_no_negative_count_beside_its_interval(open_page: OpenPage) -> None:
    """The interval of a count begins at 0, and so does its number; an interval entirely below 0 does not look exact."""
    scene = scene_with_stream(100, 2.0, expected_queries=20)
    found = scene.driver.ask_many([{"id": f"{n}", "stream": "counts", "where": "FALSE"} for n in range(26)])
    assert found[-1].interval == (0.0, 0.0)
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        rows = page.get_by_role("table", name="Answers of the stream").locator("tbody tr")
        await expect(rows).to_have_count(25)
        assert not any("-" in text for text in await rows.locator("td:nth-child(3)").all_inner_texts())
        await expect(rows.first.locator("td:nth-child(4)")).to_have_text("below 0, by noise")
        beyond = "more than the 20 answers for which α is promised"
        await expect(page.locator("dt", has_text="Answered").locator("+ dd")).to_contain_text(beyond)
        await expect(rows.filter(has_text=beyond)).to_have_count(6)


async def test_history_isolates_texts_from_right_to_left(open_page: OpenPage) -> None:
    """A number stays behind its text; an answer without texts says so."""
    groups = {"kind": "unknown_groups", "answers": 3}
    table = {**PEOPLE, "delta": 0.1, "attributes": {"age": PEOPLE["attributes"]["age"], "word": {"kind": "text"}}}
    rows = {"age": [20] * 400, "word": ["قلب", "flu"] * 200}
    scene = scene_with_stream(2, 40.0, table, rows, delta=1e-4, mechanism=groups)
    for where in ("FALSE", "TRUE"):
        scene.driver.ask("counts", where=where, group_by=("word",))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        cells = page.get_by_role("table", name="Answers of the stream").locator("tbody td:nth-child(3)")
        await expect(cells.first).to_contain_text("\u2068قلب\u2069: ")
        await expect(cells.first).to_contain_text(re.compile(r"(^|; )flu: \d"))
        await expect(cells.last).to_have_text("No text is released")
        await page.goto(f"{address}/#/ask?stream=counts")
        await page.get_by_role("button", name="Add condition").click()  # age = 0
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("region", name="Answer")).to_contain_text("No text is released.")


async def test_saved_history_has_each_answer_once(open_page: OpenPage) -> None:
    """A file that needs several requests has one header line and no answer twice."""
    scene = scene_with_answers(520)
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        async with page.expect_download() as saving:
            await card.get_by_role("button", name="Save as CSV").click()
        text = await asyncio.to_thread((await (await saving.value).path()).read_text, encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["id"] for row in rows] == [f"q-{number}" for number in reversed(range(520))]


async def test_history_names_the_setting_of_a_monitor_without_answers(open_page: OpenPage) -> None:
    """Without the right to read answers, the card names the setting."""
    scene = scene_with_answers(1)
    scene.monitor.answers = None
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        card = page.get_by_role("region", name="Answers", exact=True)
        await expect(card.get_by_role("alert")).to_contain_text("SOTTO_MONITOR_ASKS")
