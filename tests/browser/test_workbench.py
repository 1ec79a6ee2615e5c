"""The whole work on the page, from a domain to an answer with its ±: register, plan, open, ask, extend, close."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect

from schemas import CloseStream, EventsSource, ExtendStream, OpenStream, RegisterSource
from sotto import AsyncClient
from stream.services.processes import Service
from stream.settings import Settings
from tests.browser.conftest import OpenPage
from tests.browser.monitors import wait_until_ready, with_monitor
from tests.browser.scene import CENSUS, OPERATOR, VIEWER, Scene, values
from tests.builders import source
from tests.conftest import StartService
from tests.names import make_names

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("preloaded")]


async def confirm_dialog(page: Page, button: str, expected: str) -> None:
    """Confirm a dialog, check its message, and close it."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=button).click()
    await expect(dialog.get_by_role("alert")).to_contain_text(expected)
    await dialog.get_by_role("button", name="Done").click()


async def shown_json(page: Page) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(await page.get_by_role("region", name="Request").last.inner_text())
    return shown


async def declare_people(page: Page, path: str) -> None:
    await page.get_by_label("Name").first.fill("people")
    await page.get_by_label("File of the table").fill(path)
    age = page.get_by_role("group", name="Attribute", exact=True).first
    await age.get_by_label("Name").fill("age")
    await age.get_by_label("Minimum").first.fill("0")
    await age.get_by_label("Maximum").first.fill("99")
    await page.get_by_role("button", name="Add attribute").click()
    sex = page.get_by_role("group", name="Attribute", exact=True).nth(1)
    await sex.get_by_label("Name").fill("sex")
    await sex.get_by_label("Kind").select_option("categories")
    await sex.get_by_label("Values").fill("F, M")


async def plan_model(page: Page, name: str, epsilon: str) -> None:
    await page.get_by_label("Name of the stream").fill(name)
    await page.get_by_label("Mechanism").select_option("pmw")
    await page.get_by_label("ε", exact=True).fill(epsilon)


async def ask_count_of_old_women(page: Page) -> Locator:
    await page.get_by_role("button", name="Add condition").click()
    first = page.get_by_role("group", name="Condition").first
    await first.get_by_label("Comparison").select_option(">=")
    await first.get_by_label("Value").fill("65")
    await page.get_by_role("button", name="Add condition").click()
    second = page.get_by_role("group", name="Condition").nth(1)
    await second.get_by_label("Attribute").select_option("sex")
    await expect(page.locator(".predicate")).to_have_text("(age >= 65) AND (sex = 'F')")
    await page.get_by_role("button", name="Ask", exact=True).first.click()
    return page.get_by_role("region", name="Answer").first


async def test_source_is_registered_as_it_was_previewed(open_page: OpenPage) -> None:
    scene = Scene()
    async with scene.served() as address:
        page = await open_page(address, "sources", OPERATOR)
        await page.get_by_role("link", name="Register a source…").click()
        await page.get_by_label("Kind").first.select_option("values")
        await page.get_by_label("Name").first.fill("vitals")
        await page.get_by_label("Grid").fill("0.1")
        await page.get_by_role("textbox", name="Maximum").fill("250")
        await expect(page.locator(".declared")).to_contain_text("values are rounded to multiples of 0.1")
        await expect(page.locator(".declared")).to_contain_text("every value changes by at most 1")
        await page.get_by_label("Grid").fill("0.000000001")
        await expect(page.get_by_role("button", name="Register source…")).to_be_disabled()
        await expect(page.locator(".outcome:visible")).to_have_text(re.compile("^grid: "))
        await expect(page.locator(".declared")).to_be_hidden()  # it would be that of the last valid form
        await page.get_by_label("Grid").fill("0.1")
        button = page.get_by_role("button", name="Register source…")
        await expect(button).to_be_enabled()
        await button.click()
        async with page.expect_response("**/api/declarations"):
            await page.get_by_role("textbox", name="Maximum").fill("251")
        await expect(button).to_be_enabled()
        await expect(page.locator(".outcome:visible")).to_contain_text("Tick the box")
        await page.get_by_label("Its people are in no other source").check()
        await expect(page.locator(".outcome:visible")).to_have_count(0)
        sent = await shown_json(page)
        await button.click()
        await confirm_dialog(page, "Register source", "It is registered")
        await expect(page).to_have_url(re.compile("#/sources/vitals$"))
        await expect(page.get_by_role("region", name="Declaration")).to_contain_text("Budget ε 4")
    (request,) = scene.requested
    assert isinstance(request, RegisterSource)
    assert request.request == sent["request"]
    assert request == RegisterSource.model_validate({**sent, "by": "olga"})


async def test_definition_is_not_registered_before_it_is_previewed(open_page: OpenPage) -> None:
    """Only a change of the definition asks for another preview: a click on the button ends an edit, too."""
    go_on = asyncio.Event()

    async def hold(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    async with Scene().served() as address:
        page = await open_page(address, "register", OPERATOR)
        await page.get_by_label("Kind").first.select_option("values")
        await page.get_by_label("Name").first.fill("vitals")
        button = page.get_by_role("button", name="Register source…")
        await expect(button).to_be_enabled()
        await page.route("**/api/declarations", hold)
        await page.get_by_label("Its people are in no other source").check()
        assert await button.is_enabled()
        await page.get_by_role("textbox", name="Maximum").fill("251")
        assert await button.is_disabled()
        go_on.set()
        await expect(button).to_be_enabled()
        await expect(page.get_by_role("region", name="Request").last).to_contain_text("251")


async def test_page_of_a_source_shows_its_declaration_once_it_is_registered(open_page: OpenPage) -> None:
    scene = Scene()
    async with scene.served() as address:
        page = await open_page(address, "sources/feed", OPERATOR)
        await expect(page.locator(".declared")).to_contain_text("no source 'feed'")
        scene.driver.register(values("feed", 2.0))
        scene.flow()
        await expect(page.get_by_role("region", name="Declaration")).to_contain_text("Budget ε 2")


async def test_refused_forms_are_corrected_and_sent_again(open_page: OpenPage) -> None:
    """The ledger has decided the id of a refused request, so the corrected form has another."""
    scene = Scene()
    scene.driver.register(values("feed", 2.0))
    mechanism = {"kind": "above_threshold", "threshold": 100, "cutoff": 1}
    scene.driver.open({"stream": "ward-1", "source": "feed", "epsilon": 0.5, "mechanism": mechanism})
    scene.flow()

    async def send_twice(page: Page, field: Locator, used: str, button: str, done: str) -> None:
        for name in (used, "ward-2"):
            await field.fill(name)
            await expect(page.get_by_role("region", name="Request").last).to_contain_text(f'"{name}"')
            await page.get_by_role("button", name=f"{button}…").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_role("button", name=button).click()
            if name == used:
                await expect(dialog.get_by_role("alert")).to_contain_text("choose another")
                await dialog.get_by_role("button", name="Cancel").click()
        await expect(dialog.get_by_role("alert")).to_contain_text(done)

    async with scene.served() as address:
        page = await open_page(address, "register", OPERATOR)
        await page.get_by_label("Kind").first.select_option("values")
        await page.get_by_label("Its people are in no other source").check()
        await send_twice(page, page.get_by_label("Name").first, "feed", "Register source", "It is registered")
        page = await open_page(address, "plan?source=feed", OPERATOR)
        await page.get_by_label("Mechanism").select_option("above_threshold")
        await send_twice(page, page.get_by_label("Name of the stream"), "ward-1", "Open stream", "It is open at")


async def test_register_sends_no_declaration_before_it_is_complete(open_page: OpenPage) -> None:
    """A form without name, file or attribute shows what is missing, and sends no request."""
    sent: list[str] = []
    async with Scene().served() as address:
        page = await open_page(address, "register", OPERATOR)
        page.on("request", lambda request: sent.append(request.url))
        await page.get_by_label("Budget ε").fill("3")
        await expect(page.get_by_text("name: give the source a name")).to_be_visible()
        await page.get_by_label("Name").first.fill("patients")
        await expect(page.get_by_text("path: name the table's file")).to_be_visible()
        await page.get_by_label("File of the table").fill("/data/patients.parquet")
        await expect(page.get_by_text("attributes: declare at least one")).to_be_visible()
    assert not [url for url in sent if url.endswith("/api/declarations")]


async def test_register_keeps_its_entries_until_the_source_is_registered(open_page: OpenPage) -> None:
    """Another view or a reload loses nothing; a password in an address is never kept."""
    async with Scene().served() as address:
        page = await open_page(address, "register", OPERATOR)
        await declare_people(page, "postgresql://olga:secret@db/people")
        assert "secret" not in await page.evaluate("JSON.stringify(sessionStorage)")
        await page.get_by_label("File of the table").fill("/data/people.csv")
        await expect(page.get_by_role("region", name="Request").last).to_contain_text("/data/people.csv")
        before = (await shown_json(page))["source"]
        await page.get_by_role("link", name="Streams").click()
        await expect(page.get_by_role("heading", name="Streams")).to_be_visible()
        for _ in range(2):
            await page.goto(f"{address}/#/register")
            await expect(page.get_by_role("table", name="Declared attributes").locator("tr")).to_have_count(3)
            assert (await shown_json(page))["source"] == before
            await page.reload()
        await page.get_by_label("Kind").first.select_option("values")
        await page.get_by_label("Its people are in no other source").check()
        await page.get_by_role("button", name="Register source…").click()
        await confirm_dialog(page, "Register source", "It is registered")
        await expect(page).to_have_url(f"{address}/#/sources/people")  # else it replaces the next address
        await page.goto(f"{address}/#/register")
        await expect(page.get_by_label("Name").first).to_have_value("")


async def test_every_kind_of_attribute_and_source_can_be_declared(open_page: OpenPage) -> None:
    async with Scene().served() as address:
        page = await open_page(address, "register", OPERATOR)
        await declare_people(page, "/data/people.csv")
        await page.get_by_role("button", name="Add attribute").click()
        pay = page.get_by_role("group", name="Attribute", exact=True).nth(2)
        await pay.get_by_label("Name").fill("pay")
        await pay.get_by_label("Kind").select_option("bins")
        await pay.get_by_label("Edges").fill("0, 10.5, 100")
        await pay.get_by_label("Outside the range").select_option("reject")
        table = page.get_by_role("table", name="Declared attributes")
        await expect(table.locator("tbody tr")).to_have_count(3)
        await expect(page.locator(".declared")).to_contain_text("400 cells of all attributes together")
        assert (await shown_json(page))["source"]["attributes"] == {
            "age": {"kind": "integers", "minimum": 0, "maximum": 99, "outside": "clamp"},
            "sex": {"kind": "categories", "values": ["F", "M"]},
            "pay": {"kind": "bins", "edges": [0, 10.5, 100], "outside": "reject"},
        }
        await pay.get_by_label("Name").fill("sex")
        await expect(page.locator(".outcome:visible")).to_have_text("two attributes are called 'sex'")
        await pay.get_by_label("Name").fill("education")
        name = table.get_by_role("rowheader", name="education")
        lines = "th => { const r = new Range(); r.selectNodeContents(th); return r.getClientRects().length; }"
        assert await name.evaluate(lines) == 1  # a usual word is not broken
        await pay.get_by_label("Name").fill("pay")
        await expect(table).to_contain_text("pay")
        await page.get_by_label("Column of persons").fill("patient")
        await page.get_by_label("Rows of one person").fill("3")
        await expect(page.locator(".declared")).to_contain_text("of each 'patient', at most 3 rows count")
        await page.get_by_text("Advanced").click()
        await page.get_by_role("textbox", name="Population").fill("everybody")
        await page.get_by_label("Budget renews every").fill("30d")
        await expect(page.locator(".declared")).to_contain_text("renews every 30d")
        await expect(page.locator(".declared")).to_contain_text("population 'everybody'")
        await page.get_by_label("Kind").first.select_option("records")
        await page.get_by_label("Events of one person").fill("5")
        await expect(page.locator(".declared")).to_contain_text("one person sends up to 5 events")
        assert (await shown_json(page))["source"]["contributions"] == 5


async def test_view_is_declared_in_text_areas(open_page: OpenPage) -> None:
    """A view and its tables are declared instead of a file; an error in the SQL is shown with its place."""
    tables = {
        "visits": {"path": "/data/visits.csv", "person": "patient", "columns": {"ward": "text"}},
        "wards": {"path": "/data/wards.csv", "key": ["code"], "columns": {"code": "text"}},
    }
    select = "SELECT v.patient, v.age, w.sex FROM visits v JOIN wards w ON w.code = v.ward"
    async with Scene().served() as address:
        page = await open_page(address, "register", OPERATOR)
        await declare_people(page, "")
        await page.get_by_label("Column of persons").fill("patient")
        await page.get_by_text("Instead of one file").click()
        await page.get_by_label("View", exact=True).fill(select.replace("w.code", "w.beds"))
        await page.get_by_label("Tables of the view").fill(json.dumps(tables))
        message = "line 1, column 62: the lookup table 'wards' is not joined on its key"
        await expect(page.locator(".outcome:visible")).to_contain_text(message)
        await page.get_by_label("View", exact=True).fill(select)
        await expect(page.locator(".declared")).to_contain_text("Lookup tables are public")
        shown = (await shown_json(page))["source"]
        assert shown["view"] == {"select": select, "tables": tables}
        assert "path" not in shown


async def test_live_topic_is_registered_and_gets_a_standing_stream(open_page: OpenPage) -> None:
    scene = Scene()
    async with scene.served() as address:
        page = await open_page(address, "register", OPERATOR)
        await page.get_by_label("Kind").first.select_option("events")
        await page.get_by_label("Name").first.fill("flights")
        await page.get_by_label("Topic").fill("ops.departures")
        await page.get_by_label("Field of the person").fill("plane.tail")
        await page.get_by_label("Field of the time").fill("at")
        await page.get_by_label("Events that count").fill("2")
        await page.get_by_label("In all windows together").fill("20")
        await page.get_by_label("Fields of attributes").fill("delay: flight.delay")
        delay = page.get_by_role("group", name="Attribute", exact=True).first
        await delay.get_by_label("Name").fill("delay")
        await delay.get_by_label("Minimum").first.fill("0")
        await delay.get_by_label("Maximum").first.fill("9")
        await expect(page.locator(".declared")).to_contain_text("at most 2 events count in each window")
        await page.get_by_label("Its people are in no other source").check()
        await page.get_by_role("button", name="Register source…").click()
        await confirm_dialog(page, "Register source", "It is registered")
        page = await open_page(address, "plan?source=flights", OPERATOR)
        await page.get_by_label("Name of the stream").fill("late")
        async with page.expect_request("**/api/comparisons") as compared:
            await page.get_by_label("Mechanism").select_option("histogram")
        assert '"attributes"' not in ((await compared.value).post_data or "")  # a histogram of a live topic
        await page.get_by_label("Mechanism").select_option("above_threshold")
        await page.get_by_label("Events where").fill("delay >= 5")
        await page.get_by_role("group", name="Grouped by").get_by_label("delay").check()
        await page.get_by_label("A window starts every").fill("15m")
        await expect(page.get_by_text("this covers 100 windows with all groups")).to_be_visible()
        await expect(page.locator(".verdict")).to_contain_text("Not informative: an answer may err by")
        await expect(page.get_by_role("button", name="Open stream…")).to_be_disabled()
        await page.get_by_label("Open it even if its promise is not informative").check()
        await page.get_by_role("button", name="Open stream…").click()
        await confirm_dialog(page, "Open stream", "It is open")
        card = page.get_by_role("region", name="At a glance")
        await expect(card).to_contain_text(
            "It asks how many events with delay >= 5 for each delay in windows of 1h, one every 15m"
        )
        await expect(card).to_contain_text("this covers 100 windows with all groups")
    registered, opened = scene.requested
    assert isinstance(registered, RegisterSource)
    assert isinstance(registered.source, EventsSource)
    assert (registered.source.contribution, registered.source.fields) == (2, {"delay": "flight.delay"})
    assert isinstance(opened, OpenStream)
    assert opened.stream.standing is not None
    assert opened.stream.standing.by == ("delay",)


async def test_plan_shows_its_cost_curve_and_vacuous_promises(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 2.0))
    scene.driver.register(CENSUS | {"neighbors": "add-remove"}, {"age": [30] * 50, "sex": ["F"] * 50})
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "plan?source=feed", VIEWER)
        await expect(page.locator(".verdict")).to_contain_text("To open it, name the stream.")
        await page.get_by_label("Name of the stream").fill("ward-7")
        await expect(page.locator(".verdict")).not_to_contain_text("name the stream")
        chart = page.get_by_role("img", name="Error against ε")
        await expect(chart).to_have_attribute("aria-label", re.compile(r"^Error against ε\. Chosen: ε 0\.5: α \d"))
        await expect(chart.locator(".chosen")).to_have_count(1)
        await expect(page.locator(".verdict")).to_contain_text("The budget can pay for it")
        await expect(page.locator(".verdict")).to_contain_text("An analyst's allotments must be able to pay, too")
        await page.get_by_label("What the curve varies").select_option("cutoff")
        await expect(page.get_by_role("img", name="Error against charged answers")).to_be_visible()
        await expect(page.locator(".curve[data-stale]")).to_have_count(0)
        await expect(page.get_by_role("button", name="Open stream…")).to_be_enabled()
        await page.get_by_label("ε", exact=True).fill("9")
        # Nothing is opened with an old plan after the form has changed.
        assert await page.get_by_role("button", name="Open stream…").is_disabled()
        await expect(page.locator(".verdict")).to_contain_text("cannot pay")
        await page.get_by_label("Mechanism").select_option("laplace")
        await page.get_by_label("Answers to pay for").fill("1000")
        await page.get_by_label("δ", exact=True).fill("1e-6")
        left = page.locator("dt", has_text="Left of the budget so far").locator("+ dd")
        await expect(left).to_contain_text(", δ 0")
        await expect(page.get_by_role("button", name="Open stream…")).to_be_disabled()
        await page.get_by_label("Source").select_option("census")
        await page.get_by_label("Mechanism").select_option("pmw")
        await page.get_by_label("Public number of rows").fill("50")
        await page.get_by_label("What the curve varies").select_option("epsilon")
        await page.get_by_label("ε", exact=True).fill("0.5")
        await expect(page.locator(".verdict")).to_contain_text("vacuous")
        await expect(page.locator(".curve .vacuous")).to_have_count(1)
        await expect(page.get_by_role("img", name="Error against ε")).to_have_attribute(
            "aria-label", re.compile("vacuous$")
        )
        await page.get_by_label("Mechanism").select_option("auto")
        await expect(page.locator(".verdict")).to_contain_text("auto takes")
        for words in (
            " of one group of two attributes) is expected to err by ",
            " on average over example tables",
        ):
            await expect(page.locator(".verdict")).to_contain_text(words)
    assert scene.requested == []


async def test_stream_is_planned_opened_asked_extended_and_closed(open_page: OpenPage) -> None:
    """The page does all of it, and charts the answers."""
    scene = Scene()
    people = {"age": [40] * 300 + [70] * 100, "sex": ["F", "M"] * 200}
    scene.driver.register(
        {**CENSUS, "accountant": "pure", "delta": 0.0, "source": "people", "epsilon": 8.0}, people
    )
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "sources/people", OPERATOR)
        await page.get_by_role("link", name="Plan a stream…").click()
        await plan_model(page, "model", "2")
        await expect(page.get_by_role("region", name="Request").last).to_contain_text('"epsilon": 2')
        button = page.get_by_role("button", name="Open stream…")
        await expect(button).to_be_enabled()
        sent = await shown_json(page)
        await button.click()
        await confirm_dialog(page, "Open stream", "It is open at")
        await expect(page).to_have_url(re.compile("#/streams/model$"))

        await page.get_by_role("link", name="Ask…").click()
        answer = await ask_count_of_old_women(page)
        await expect(answer.locator(".cost")).to_contain_text("It cost ε")
        await expect(answer.locator(".error")).to_have_count(3)
        await page.get_by_label("Ask", exact=True).select_option("groups")
        await page.get_by_role("group", name="Groups of").get_by_label("sex").check()
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        groups = page.get_by_role("region", name="Answer").first
        await expect(groups.get_by_role("table", name="Answers").locator("tbody tr")).to_have_count(2)
        await expect(groups.locator(".estimate")).to_have_count(2)
        await expect(groups.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(r"^F: .* ± .*; M: .* ± ")
        )
        await page.get_by_label("SELECT").fill(
            "SELECT sex, COUNT(*) AS n, AVG(age) AS mean FROM model GROUP BY sex"
        )
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        table = page.get_by_role("region", name="Answer").first
        await expect(table.get_by_role("heading")).to_have_text("3 questions to model")
        await expect(table.locator(".estimate")).to_have_count(4)

        await page.goto(f"{address}/#/streams/model")
        await page.get_by_role("button", name="Extend stream…").click()
        await page.get_by_role("dialog").get_by_label("ε to add").fill("1")
        await confirm_dialog(page, "Extend stream", "more charged answers for ε")
        await page.get_by_role("button", name="Close stream…").click()
        await confirm_dialog(page, "Close stream", "closing")
        await expect(page.locator(".head .badge")).to_contain_text("closed")
        await expect(page.get_by_role("link", name="Ask…")).to_be_hidden()
    kinds = [type(one) for one in scene.requested]
    assert kinds == [OpenStream, ExtendStream, CloseStream]
    assert scene.requested[0] == OpenStream.model_validate({**sent, "by": "olga"})


async def test_viewer_needs_an_operators_token_to_ask(
    open_page: OpenPage,
) -> None:
    """A monitor that may not ask says so."""
    scene = Scene()
    scene.driver.register(CENSUS, {"age": [30] * 50, "sex": ["F"] * 50})
    scene.driver.open(
        {
            "stream": "cells",
            "source": "census",
            "epsilon": 0.5,
            "delta": 1e-7,
            "mechanism": {"kind": "histogram", "attributes": ["sex"]},
        }
    )
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=cells", VIEWER)
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("alert")).to_have_text("Give an analyst's or operator's token.")
        assert scene.asks == []
        await page.get_by_label("Operator's token").fill(OPERATOR)
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("region", name="Answer").first.locator(".cost")).to_contain_text(
            "the release of all cells"
        )
        assert len(scene.asks) == 1
        scene.monitor.asker = None
        quiet = await open_page(address, "ask?stream=cells", OPERATOR)
        await expect(quiet.get_by_text("This monitor does not ask")).to_be_visible()
        await expect(quiet.get_by_role("button", name="Ask", exact=True).first).to_be_disabled()


async def test_standing_quantiles_are_opened_with_groups_by_the_form(open_page: OpenPage) -> None:
    """Only a quantile has the field of its shares; it has no field for the largest groups."""
    scene = Scene()
    delay = {"kind": "integers", "minimum": 0, "maximum": 60}
    attributes = {"delay": delay, "day": ["Mon", "Tue"], "origin": ["EWR", "JFK"]}
    scene.driver.register(source("flights", "events", epsilon=4.0, clock="marks", attributes=attributes))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "plan?source=flights", OPERATOR)
        counted, shares = page.get_by_label("Asked of each window"), page.get_by_label("Share of the events below")
        await page.get_by_label("Mechanism").select_option("histogram")
        largest = page.get_by_label("Largest groups only")
        await expect(largest).to_be_visible()
        await expect(page.locator(".verdict")).to_contain_text("for 100 answers")
        await expect(shares).to_be_hidden()
        await counted.select_option("quantile delay")
        await expect(largest).to_be_hidden()
        await page.get_by_label("Mechanism").select_option("above_threshold")
        await expect(counted.locator("option")).to_have_text(
            ["number of events", "number of people", "sum of delay"]
        )
        await page.get_by_label("Mechanism").select_option("laplace")
        await counted.select_option("quantile delay")
        await shares.fill("0.5, 0.9")
        await page.get_by_role("group", name="Grouped by").get_by_label("origin").check()
        await page.get_by_label("Name of the stream").fill("delays")
        await page.get_by_label("Answers to pay for").fill("48")
        await page.get_by_label("Expected questions").fill("48")
        await expect(page.get_by_text("each quantile's rank is within")).to_be_visible()
        button = page.get_by_role("button", name="Open stream…")
        await expect(button).to_be_enabled()
        await button.click()
        await confirm_dialog(page, "Open stream", "It is open")
        card = page.get_by_role("region", name="At a glance")
        await expect(card).to_contain_text(
            "It asks the quantiles 0.5, 0.9 of 'delay' for each origin in windows of 1h"
        )
        await expect(card).to_contain_text("unknown yet; 48 noisy answers left")
    (opened,) = scene.requested
    assert isinstance(opened, OpenStream)
    standing = opened.stream.standing
    assert standing is not None
    assert (standing.quantile, standing.q, standing.by, standing.top) == ("delay", (0.5, 0.9), ("origin",), None)


async def test_refused_question_has_a_reason_and_hostile_text_stays_text(open_page: OpenPage) -> None:
    scene = Scene()
    hostile = "<img src=x onerror=alert(1)>"
    attributes = {
        hostile: {"kind": "categories", "values": ["it's", '"><script>']},
        "age": {"kind": "integers", "minimum": 0, "maximum": 9},
    }
    scene.driver.register({**CENSUS, "attributes": attributes}, {hostile: ["it's"] * 40, "age": [3] * 40})
    scene.driver.open(
        {
            "stream": "counts",
            "source": "census",
            "epsilon": 0.5,
            "delta": 1e-7,
            "mechanism": {"kind": "laplace", "answers": 9},
        },
        acknowledge=True,
    )
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "ask?stream=counts", OPERATOR)
        await page.get_by_role("button", name="Add condition").click()
        await expect(page.locator(".predicate")).to_have_text(f"\"{hostile}\" = 'it''s'")
        await page.get_by_role("button", name="Ask", exact=True).first.click()
        await expect(page.get_by_role("region", name="Answer").first.locator(".estimate")).to_have_count(1)
        assert await page.locator("#page img, #page script").count() == 0
        await page.get_by_label("SELECT").fill("SELECT MAX(age) FROM counts")
        await page.get_by_role("button", name="Ask", exact=True).last.click()
        await expect(page.get_by_role("alert").first).to_contain_text("MAX")


@pytest.mark.kafka
async def test_page_leads_from_registration_to_answers_on_kafka(
    settings: Settings, start: StartService, tmp_path: Path, open_page: OpenPage
) -> None:
    own = with_monitor(settings, tmp_path).model_copy(update={"monitor_asks": True})
    start("budget")
    start("worker")
    table = Path(settings.table_roots.split(":")[0]) / "people.csv"
    table.write_text("age,sex\n" + "40,F\n40,M\n" * 150 + "70,F\n70,M\n" * 50)
    address = f"http://{own.monitor_host}:{own.monitor_port}"
    operator = make_names(tmp_path)["operator"]
    async with AsyncClient(settings) as client:
        with Service("monitor", own, None, tmp_path / "monitor.log"):
            await wait_until_ready(address)
            page = await open_page(address, "register", operator)
            await declare_people(page, str(table))
            await page.get_by_label("Its people are in no other source").check()
            button = page.get_by_role("button", name="Register source…")
            await expect(button).to_be_enabled()
            await button.click()
            await confirm_dialog(page, "Register source", "It is registered")
            await page.get_by_role("link", name="Plan a stream…").click()
            await plan_model(page, "model", "2")
            button = page.get_by_role("button", name="Open stream…")
            await expect(button).to_be_enabled()
            await button.click()
            await confirm_dialog(page, "Open stream", "It is open at")
            await page.get_by_role("link", name="Ask…").click()
            answer = await ask_count_of_old_women(page)
            await expect(answer.locator(".error")).to_have_count(3)
            await expect(answer.locator(".cost")).to_contain_text("It cost ε")
            await page.goto(f"{address}/#/streams/model")
            await page.get_by_role("button", name="Extend stream…").click()
            await page.get_by_role("dialog").get_by_label("ε to add").fill("1")
            await confirm_dialog(page, "Extend stream", "more charged answers for ε")
            await page.get_by_role("button", name="Close stream…").click()
            await confirm_dialog(page, "Close stream", "closing")
            await expect(page.locator(".head .badge")).to_contain_text("closed")
            await page.goto(f"{address}/#/workers")
            worker = page.get_by_role("table", name="Processes").locator("tr", has_text="worker-").first
            await expect(worker.locator(".cell-last-heartbeat")).to_have_text(re.compile("ago|just now"))
            await expect(worker.locator(".cell-memory")).to_have_text(re.compile(r"\d MB"))
        source = await client.budget("people")
        assert source.refunded.epsilon > 0


async def test_register_proposes_attributes_from_the_columns(open_page: OpenPage, tmp_path: Path) -> None:
    """Names, kinds and described ranges are filled in; the form says which files it read, and shows no cell."""
    file = tmp_path / "patients.csv"
    file.write_text("age,ward\n71,zyxwvu\n")
    described = {"name": "age", "type": "integer", "unit": "years", "constraints": {"minimum": 0, "maximum": 120}}
    (tmp_path / "patients.csv.schema.json").write_text(json.dumps({"fields": [described]}))
    roomy = {"monitor_requests_per_second": 1000.0, "monitor_burst": 1000, "table_roots": str(tmp_path)}
    scene = Scene(Settings.model_validate(roomy))
    async with scene.served() as address:
        page = await open_page(address, "register", OPERATOR)
        await expect(
            page.get_by_text("The first line of a CSV file is shown, because it has the names")
        ).to_be_visible()
        await page.get_by_label("File of the table").fill(str(file))
        await page.get_by_role("button", name="Propose attributes").click()
        attributes = page.get_by_role("group", name="Attribute", exact=True)
        await expect(attributes).to_have_count(2)
        age, ward = attributes.nth(0), attributes.nth(1)
        await expect(age.get_by_label("Name")).to_have_value("age")
        await expect(age.get_by_label("Maximum").first).to_have_value("120")
        await expect(age).to_contain_text("in years")
        await expect(ward.get_by_label("Kind")).to_have_value("categories")
        await expect(ward).to_contain_text("to be declared: values")
        await expect(
            page.get_by_text("2 attributes proposed; to be declared by you, with ranges or values: 1")
        ).to_be_visible()
        assert "zyxwvu" not in await page.content()
        # The fields that are still missing are listed at the attributes, so they are no error yet.
        await page.wait_for_timeout(500)
        await expect(page.locator(".outcome:visible")).to_have_count(0)
        await ward.get_by_label("Kind").select_option("integers")
        await expect(ward).to_contain_text("to be declared: minimum, maximum")
        await ward.get_by_label("Kind").select_option("date")
        await expect(ward).to_contain_text("to be declared: first day, last day")
        await ward.get_by_label("Kind").select_option("categories")
        await ward.get_by_label("Values").fill("A, B")
        await expect(ward).not_to_contain_text("to be declared")
        await ward.get_by_label("Values").fill("")
        await expect(ward).to_contain_text("to be declared: values")
        await page.get_by_label("Name", exact=True).first.fill("patients")
        await expect(page.locator(".outcome:visible")).to_have_text("ward: declare values")
        await page.get_by_role("button", name="Add attribute").click()
        await attributes.nth(2).get_by_label("Name").fill("visits")
        await expect(page.locator(".outcome:visible")).to_have_text(
            "ward: declare values; 1 more attribute to be declared"
        )
        await page.get_by_label("File of the table").fill("/etc/passwd")
        await page.get_by_role("button", name="Propose attributes").click()
        await expect(page.get_by_text("path: no table can be read there")).to_be_visible()
    assert scene.requested == []


async def test_register_proposes_no_person_column_and_keeps_the_focus(open_page: OpenPage, tmp_path: Path) -> None:
    """The form works from the keyboard: neither a request nor a removed attribute loses the focus."""
    file = tmp_path / "visits.csv"
    file.write_text("patient,ward,drug\n")
    scene = Scene(Settings.model_validate({"table_roots": str(tmp_path)}))
    async with scene.served() as address:
        page = await open_page(address, "register", OPERATOR)
        await page.get_by_label("File of the table").fill(str(file))
        await page.get_by_label("Column of persons").fill("patient")
        propose = page.get_by_role("button", name="Propose attributes")
        await propose.press("Enter")
        await expect(page.get_by_text("2 attributes proposed")).to_be_visible()
        await expect(propose).to_be_focused()
        first = page.get_by_role("group", name="Attribute", exact=True).first
        await expect(first.get_by_label("Name")).to_have_value("ward")
        await first.get_by_role("button", name="Remove").press("Enter")
        await expect(first.get_by_label("Name")).to_have_value("drug")
        await expect(first.get_by_label("Name")).to_be_focused()
