"""For a stream with few records, the page shows no invented figures."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from schemas.windows import format_moment, moment_ms
from tests.browser.conftest import OpenPage
from tests.browser.scene import BEGINS, CENSUS, OPERATOR, VIEWER, VISITS, Scene, above, values
from tests.builders import source, stream

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def keep(name: str, picture: bytes) -> None:
    if folder := os.environ.get("SOTTO_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_bytes(picture)


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


async def test_stream_charged_once_is_said_to_be_charged_once(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(CENSUS, {"age": [30, 40] * 50, "sex": ["F", "M"] * 50})
    mechanism = {"kind": "histogram", "attributes": ["sex"]}
    scene.driver.open(
        {"stream": "cells", "source": "census", "epsilon": 1.0, "mechanism": mechanism}, acknowledge=True
    )
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=cells", OPERATOR)
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.locator(".cost")).to_contain_text("It cost ρ")
        await expect(page.locator(".cost")).to_contain_text(", once for all answers of the stream.")
        await page.goto(f"{address}/#/streams/cells")
        answered = "1 answer from the release; one charge pays for all of them"
        await expect(fact(page, "Answered")).to_have_text(answered)
        await expect(page.locator(".big")).to_have_text("Charged once")
        await expect(page.get_by_text("charged answers so far")).to_be_hidden()
        keep("charged-once.png", await page.screenshot(full_page=True))


async def test_messages_of_a_form_ask_for_no_quotes(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(CENSUS, {"age": [30, 40] * 50, "sex": ["F", "M"] * 50})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "plan?source=census", OPERATOR)
        await page.get_by_label("ε", exact=True).first.fill("0,5")
        await expect(page.get_by_text("give one with a decimal point, as 0.05").first).to_be_visible()
        await expect(page.get_by_text("quotes")).to_have_count(0)


async def test_running_counts_are_not_called_charged(open_page: OpenPage) -> None:
    """The first answer pays for all."""
    async with Scene().served() as address:
        page = await open_page(address, "streams")
        called = "import('/static/format.js').then(({ words }) => words('running_count').charged)"
        assert await page.evaluate(called) == "counts"


async def test_history_says_that_running_counts_are_so_far(open_page: OpenPage) -> None:
    """A number so far, beside the hours of its last window, would be read as the number of this window."""
    scene = Scene()
    visits = {name: value for name, value in VISITS.items() if name not in {"unit", "period"}}
    scene.driver.register({**visits, "total": 9})
    begins = moment_ms(BEGINS)
    standing = {"window": {"size": "15m"}, "begins": BEGINS}
    mechanism = {"kind": "running_count", "steps": 4}
    running = stream("so-far", "visits", mechanism=mechanism, standing=standing)
    scene.driver.open(running, acknowledge=True)
    scene.driver.publish("visits", [{"who": f"w{n}", "at": begins + n, "zone": "west"} for n in range(9)])
    scene.driver.advance("visits", format_moment(begins + 900_000))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/so-far")
        await expect(page.get_by_text("It asks how many events so far, after each window of 15m")).to_be_visible()
        rows = page.get_by_role("region", name="Answers", exact=True).locator("tbody tr")
        await expect(rows.first).to_contain_text("so far, at the end of ")


async def test_stream_of_a_stalled_topic_has_no_forecast(open_page: OpenPage) -> None:
    scene = Scene()
    visits = {name: value for name, value in VISITS.items() if name not in {"unit", "period", "ahead"}}
    scene.driver.register({**visits, "clock": "broker"})
    begins = format_moment(int((scene.now - 900) // 60 * 60_000))
    standing = {"by": ["zone"], "window": {"size": "1m"}, "begins": begins}
    counts = stream("counts", "visits", mechanism={"kind": "laplace", "answers": 400}, standing=standing)
    scene.driver.open(counts, acknowledge=True)
    scene.flow()
    scene.show_services()
    scene.monitor.clock = lambda: scene.now + 600.0
    async with scene.served() as address:
        page = await open_page(address, "streams/counts", OPERATOR)
        await expect(fact(page, "Runs dry in")).to_have_text(
            re.compile("^unknown; not asked since .*, no feed runs$")
        )
        keep("stalled.png", await page.screenshot(full_page=True))


async def test_stream_beside_an_overdue_stream_keeps_its_forecast(open_page: OpenPage) -> None:
    """While feeds run, a topic counts as stalled if one of its streams is overdue; only that one has no forecast."""
    async with Scene().served() as address:
        page = await open_page(address, "streams")
        for runs, left, is_known in (("true", 3600, True), ("true", "null", False), ("false", 3600, False)):
            row = (
                f"{{ state: 'open', mechanism: 'laplace', answered: 40, dry_in: {left}, opened: 0, tops_left: 9 }}"
            )
            call = f"describeExhaustion({row}, true, {{ since: 0, feed_runs: {runs} }})"
            text = await page.evaluate(
                f"import('/static/views/stream.js').then(({{ describeExhaustion }}) => {call})"
            )
            assert ("not asked since" not in text) == is_known
        rare = (
            "{ state: 'open', mechanism: 'numeric_sparse', answered: 40, dry_in: null, opened: 0, tops_left: 9 }"
        )
        call = f"describeExhaustion({rare}, true, {{ since: 0, feed_runs: true }})"
        text = await page.evaluate(f"import('/static/views/stream.js').then(({{ describeExhaustion }}) => {call})")
        assert text.startswith("unknown: it takes five charged answers")


async def test_feed_of_extended_streams_does_not_deny_windows(open_page: OpenPage) -> None:
    """After an extension the last window is unknown; the answers show that there was one."""
    async with Scene().served() as address:
        page = await open_page(address, "sources")
        for is_asked, text in (
            ("false", "no window yet"),
            ("true", "unknown: a stream was extended, or windows were skipped"),
        ):
            call = f"describeAskedTo({{ clock: 'broker', asked_to: null, is_asked: {is_asked} }})"
            module = "import('/static/views/source.js').then(({ describeAskedTo }) => "
            assert await page.evaluate(f"{module}{call})") == text


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


@pytest.mark.parametrize(("answers", "anchor"), [(3, "end"), (20, "start")])
async def test_line_of_a_chart_does_not_cross_the_text_of_its_limit(
    open_page: OpenPage, answers: int, anchor: str
) -> None:
    """A line that rises to the limit at the right has the text at the left."""
    scene = Scene()
    scene.driver.register(values("feed", 400.0))
    scene.driver.open(above("many", "feed", 100.0, 20))
    for number in range(answers):
        scene.driver.ask_many([{"id": f"{number}", "stream": "many", "value": 1e9}])
        scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams/many", VIEWER)
        text = page.get_by_role("img", name="Answers above so far").locator(".limit-text")
        await expect(text).to_have_attribute("text-anchor", anchor)


@pytest.mark.parametrize(
    "declared",
    [values("feed", 4.0), CENSUS, source("votes", "records", neighbors="replace"), source("visits", "events")],
    ids=["values", "table", "records", "events"],
)
async def test_suggested_stream_can_be_opened_on_the_source(open_page: OpenPage, declared: dict[str, Any]) -> None:
    """A source without streams shows a command that names it, of a mechanism for its kind."""
    scene = Scene()
    table = {"age": [30, 40], "sex": ["F", "M"]}
    scene.driver.register(declared, *([table] if declared["kind"] == "table" else []))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, f"sources/{declared['source']}", VIEWER)
        command = page.locator(".empty:visible code")
        await expect(command).to_contain_text("sotto stream open")
        spec = json.loads(shlex.split(await command.inner_text())[-1])
    assert spec["source"] == declared["source"]
    scene.driver.open(spec, acknowledge=True)


async def test_overview_names_missing_budget_service_and_short_history(open_page: OpenPage) -> None:
    """Without a budget service nothing is opened; figures of a restarted monitor cover less than an hour."""
    scene = Scene()
    scene.show_services()
    scene.monitor.record_history()
    async with scene.served() as address:
        page = await open_page(address, "overview")
        missing = page.get_by_text("No budget service runs: until one does, no source is registered")
        await expect(page.get_by_text(re.compile("^Only since .*, when this monitor started$"))).to_be_visible()
        await expect(missing).to_be_hidden()
        members = [one for one in scene.monitor.workers.members if one.role != "budget"]
        scene.monitor.set_workers(scene.monitor.workers.model_copy(update={"members": members}))
        await expect(missing).to_be_visible()
        await page.goto(f"{address}/#/workers")
        dead = page.get_by_role("table", name="Processes").locator("tr", has_text="sotto-worker-91ab")
        await expect(dead.locator(".cell-up-for")).to_have_text("2 h")
        members = [one.model_copy(update={"heard": scene.now - 22.0}) for one in members]
        scene.monitor.set_workers(scene.monitor.workers.model_copy(update={"members": members}))
        await expect(dead.locator(".cell-up-for")).to_have_text("silent")
        await expect(dead.locator("[data-silent]")).to_contain_text("ago")
