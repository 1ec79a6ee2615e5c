"""Halting and closing from the page need a confirmation and the operator's token, and happen once per request id."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, Page, expect

from schemas import CloseStream, ExtendStream, HaltStream, Receipt, RefreshSource, Request
from sotto import Refused
from tests.browser.conftest import OpenPage
from tests.browser.scene import CENSUS, OPERATOR, VIEWER, Scene, above, values
from tests.unit.monitor.installation import ANALYST, HIGH, LOW

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

WARD = "streams/ward%2F7"
STRANGER = "stranger-" + "2" * 32


class TimeoutScene(Scene):
    """A monitor whose first request times out, although the budget service has carried it out."""

    async def request(self, request: Request) -> Receipt:
        receipt = await super().request(request)
        if len(self.requested) == 1:
            raise TimeoutError
        return receipt


class RefusingScene(Scene):
    """A monitor whose first request is refused by the budget service."""

    async def request(self, request: Request) -> Receipt:
        if self.requested:
            return await super().request(request)
        self.requested.append(request)
        raise Refused(f"request: this id belongs to an earlier request with other content ({request.kind})")


def with_ward(scene: Scene) -> Scene:
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward/7", "feed", 1.0, 3))
    scene.ask("ward/7", LOW)
    return scene


async def dialog(page: Page, button: str, *, reason: str = "", token: str | None = None) -> Locator:
    await page.get_by_role("button", name=f"{button} stream…").click()
    shown = page.get_by_role("dialog")
    await expect(shown).to_contain_text(f"{button} stream ward/7?")
    if reason:
        await shown.get_by_label("Reason").fill(reason)
    if token is not None:
        await shown.get_by_label("Operator's token").fill(token)
    return shown


async def test_operator_halts_a_stream_and_sees_the_receipt(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, WARD, OPERATOR)
        shown = await dialog(page, "Halt", reason="audit")
        await expect(shown.get_by_label("Operator's token")).to_have_count(0)
        await shown.get_by_role("button", name="Halt stream").click()
        await expect(shown.get_by_role("alert")).to_contain_text("Receipt 2: halted")
        await shown.get_by_role("button", name="Done").click()
        await expect(page.locator(".head .badge")).to_contain_text("halted")
        await expect(page.locator(".reason")).to_have_text("halted: audit")
        await expect(page.get_by_role("button", name="Halt stream…")).to_be_hidden()
    (request,) = scene.requested
    assert isinstance(request, HaltStream)
    assert (request.source, request.stream, request.reason) == ("feed", "ward/7", "audit")
    assert scene.driver.ask_many([{"id": "late", "stream": "ward/7", "value": 1.0}])[0].outcome == "halted"


async def test_operator_extends_an_exhausted_stream(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    scene.ask("ward/7", HIGH, HIGH, HIGH)
    async with scene.served() as address:
        page = await open_page(address, WARD, VIEWER)
        await expect(page.locator(".head .badge")).to_contain_text("exhausted")
        shown = await dialog(page, "Extend", token=OPERATOR)
        confirm = shown.get_by_role("button", name="Extend stream")
        await confirm.click()
        await expect(shown.get_by_role("alert")).to_have_text("ε to add: give a number above 0, as 0.5.")
        await expect(shown.get_by_role("status")).to_have_text(
            re.compile(r"^Each charged answer costs ε [0-9.]+\.$")
        )
        await shown.get_by_label("ε to add").fill("1")
        await expect(shown.get_by_role("status")).to_contain_text("this ε pays for about 3.")
        await confirm.click()
        await expect(shown.get_by_role("alert")).to_contain_text("3 more charged answers for ε")
        await shown.get_by_role("button", name="Done").click()
        await expect(page.locator(".head .badge")).to_contain_text("open")
        await expect(page.locator(".big")).to_contain_text("3 of 6")
        await expect(page.get_by_text("3 charged answers", exact=True)).to_be_visible()
    (request,) = scene.requested
    assert isinstance(request, ExtendStream)
    assert (request.source, request.stream, request.epsilon) == ("feed", "ward/7", 1.0)
    assert scene.driver.ask_many([{"id": "later", "stream": "ward/7", "value": 1e9}])[0].outcome == "above"


def with_census(scene: Scene) -> Scene:
    scene.driver.register(values("feed", 4.0))
    scene.driver.register(CENSUS, {"age": [30] * 50, "sex": ["F"] * 50})
    for stream, mechanism in (
        ("counts", {"kind": "laplace", "answers": 9}),
        ("choices", {"kind": "noisy_max", "answers": 9}),
        ("cells", {"kind": "histogram", "attributes": ["sex"]}),
        ("ended", {"kind": "laplace", "answers": 9}),
    ):
        scene.driver.open(
            {"stream": stream, "source": "census", "epsilon": 0.3, "delta": 1e-7, "mechanism": mechanism},
            acknowledge=True,
        )
    scene.driver.halt("census", "ended", "audit")
    scene.flow()
    return scene


GOES_ON, ENDS = "Continues with the new version", "Is closed, and its unspent grant is refunded"


async def test_refresh_dialog_lists_endings_and_repeats_one_request(
    open_page: OpenPage,
) -> None:
    """However often it is sent, a request makes one version."""
    scene = with_census(TimeoutScene())
    async with scene.served() as address:
        page = await open_page(address, "sources/census", VIEWER)
        await expect(page.get_by_text("version 1 of its data")).to_be_visible()
        await page.get_by_role("button", name="Refresh source…").click()
        shown = page.get_by_role("dialog")
        go_on = shown.get_by_role("list", name=GOES_ON).get_by_role("listitem")
        end = shown.get_by_role("list", name=ENDS).get_by_role("listitem")
        await expect(go_on).to_have_text(["choices", "counts"])
        await expect(end).to_have_text(["cells"])
        every = shown.get_by_label("Close all of its streams")
        await every.check()
        await expect(end).to_have_text(["cells", "choices", "counts"])
        await expect(shown).to_contain_text("No stream continues.")
        await every.uncheck()
        await shown.get_by_role("button", name="Refresh source").click()
        await expect(shown.get_by_role("alert")).to_have_text("Give the operator's token.")
        assert scene.requested == []
        await shown.get_by_label("Operator's token").fill(OPERATOR)
        await shown.get_by_role("button", name="Refresh source").click()
        await expect(every).to_be_disabled()
        await shown.get_by_role("button", name="Send again").click()
        await expect(shown.get_by_role("alert")).to_contain_text("has version 2 of its data")
        await shown.get_by_role("button", name="Done").click()
        await expect(page.get_by_text("version 2 of its data")).to_be_visible()
        first, again = scene.requested
        assert first == again
        assert isinstance(first, RefreshSource)
        assert (first.source, first.close) == ("census", False)
        states = {name: entry.state for name, entry in scene.tables.streams.items()}
        assert states == {"counts": "open", "choices": "open", "cells": "closed", "ended": "halted"}

        feed = await open_page(address, "sources/feed", OPERATOR)
        await expect(feed.get_by_role("button", name="Halt source…")).to_be_visible()
        await expect(feed.get_by_role("button", name="Refresh source…")).to_be_hidden()

        asking = await open_page(address, "ask?stream=counts", OPERATOR)
        await asking.get_by_label("SELECT").fill("SELECT COUNT(*) AS n FROM counts WHERE age > 200")
        await asking.get_by_role("button", name="Ask", exact=True).last.click()
        answer = asking.get_by_role("region", name="Answer").first
        await expect(answer.locator(".reason").first).to_contain_text("Warning: where: age > 200 holds for no row")
        table = answer.get_by_role("table", name="Answers")
        await expect(table.locator("th").first).to_have_text("n")
        await expect(table.locator("th").last).to_have_text("version")
        await expect(table.locator("td").last).to_have_text("2")
        await asking.goto(f"{address}/#/streams/counts")
        history = asking.get_by_role("table", name="Answers of the stream")
        await expect(history.locator("tbody tr").first).to_contain_text("version 2 of the data")


async def test_refresh_may_close_all_streams(open_page: OpenPage) -> None:
    scene = with_census(Scene())
    async with scene.served() as address:
        page = await open_page(address, "sources/census", OPERATOR)
        await page.get_by_role("button", name="Refresh source…").click()
        shown = page.get_by_role("dialog")
        await shown.get_by_label("Close all of its streams").check()
        await expect(shown.get_by_role("list", name=ENDS).get_by_role("listitem")).to_have_count(3)
        await shown.get_by_role("button", name="Refresh source").click()
        await expect(shown.get_by_role("alert")).to_contain_text("has version 2 of its data")
    assert {entry.state for name, entry in scene.tables.streams.items() if name != "ended"} == {"closed"}


async def test_closing_refunds_the_unspent_amount(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, WARD, OPERATOR)
        shown = await dialog(page, "Close")
        await shown.get_by_role("button", name="Close stream").click()
        await expect(shown.get_by_role("alert")).to_contain_text("closing")
        await page.keyboard.press("Escape")
        await expect(page.locator(".head .badge")).to_contain_text("closed")
    assert isinstance(scene.requested[0], CloseStream)
    assert scene.driver.budget("feed").refunded.epsilon > 0


async def test_dialog_sends_nothing_before_the_confirmation(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, WARD, OPERATOR)
        await (await dialog(page, "Halt")).get_by_role("button", name="Cancel").click()
        await dialog(page, "Close")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        viewer = await open_page(address, WARD, VIEWER)
        shown = await dialog(viewer, "Halt")
        await shown.get_by_role("button", name="Halt stream").click()
        await expect(shown.get_by_role("alert")).to_have_text("Give the operator's token.")
    assert scene.requested == []
    assert scene.tables.streams["ward/7"].state == "open"


async def test_wrong_tokens_change_nothing_and_the_operators_token_does(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, WARD, VIEWER)
        shown = await dialog(page, "Halt", token=STRANGER)
        confirm = shown.get_by_role("button", name="Halt stream")
        for token, status in ((STRANGER, 401), (VIEWER, 403)):
            await shown.get_by_label("Operator's token").fill(token)
            async with page.expect_response("**/api/halts") as answer:
                await confirm.click()
            assert (await answer.value).status == status
            await expect(shown.get_by_role("alert")).to_contain_text(f"({status}): nothing was changed")
            assert scene.requested == []
            assert scene.tables.streams["ward/7"].ending is None
        await shown.get_by_label("Operator's token").fill(OPERATOR)
        await confirm.click()
        await expect(shown.get_by_role("alert")).to_contain_text("halted")
        assert await page.evaluate("Object.values(sessionStorage).sort()") == [VIEWER, "true", "vera", "viewer"]
    assert len(scene.requested) == 1


async def test_request_without_an_answer_is_sent_again_under_its_id(open_page: OpenPage) -> None:
    scene = with_ward(TimeoutScene())
    async with scene.served() as address:
        page = await open_page(address, WARD, OPERATOR)
        shown = await dialog(page, "Halt", reason="audit")
        await shown.get_by_role("button", name="Halt stream").click()
        await expect(shown.get_by_role("alert")).to_contain_text("send the same request again")
        await expect(shown.get_by_role("alert")).to_contain_text("may still take effect, even if you leave")
        await expect(shown.get_by_role("button", name="Leave")).to_be_visible()
        await expect(shown.get_by_role("button", name="Cancel")).to_have_count(0)
        await expect(shown.get_by_label("Reason")).not_to_be_editable()
        await shown.get_by_role("button", name="Send again").click()
        await expect(shown.get_by_role("alert")).to_contain_text("Receipt 2: halted")
    first, second = scene.requested
    assert first == second


@pytest.mark.parametrize("name", ["left", "next"])
async def test_opening_that_was_left_does_not_block_another_one(open_page: OpenPage, name: str) -> None:
    """The same opening is the same request, and another one has its own id."""
    scene = with_ward(TimeoutScene())
    async with scene.served() as address:
        page = await open_page(address, "plan?source=feed", OPERATOR)
        await page.get_by_label("Threshold").fill("1000")
        shown = page.get_by_role("dialog")
        for opened, button, outcome in (
            ("left", "Leave", "send the same request again"),
            (name, "Done", "is open"),
        ):
            await page.get_by_label("Name of the stream").fill(opened)
            await page.get_by_role("button", name="Open stream…").click()
            await shown.get_by_role("button", name="Open stream").click()
            await expect(shown.get_by_role("alert")).to_contain_text(outcome)
            await shown.get_by_role("button", name=button).click()
    first, second = scene.requested
    assert (first == second) == (name == "left")


async def test_analyst_reads_why_another_analysts_stream_stays(open_page: OpenPage) -> None:
    """The role suffices, so the refusal does not ask for another role's token."""
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, WARD, ANALYST)
        shown = await dialog(page, "Close")
        await shown.get_by_role("button", name="Close stream").click()
        await expect(shown.get_by_role("alert")).to_have_text(
            "stream: opened under another name; close only your own streams, or ask an operator"
        )
        await expect(shown.get_by_role("button", name="Cancel")).to_be_visible()
    assert scene.requested == []


async def test_source_is_halted_with_all_its_streams(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, "sources/feed", OPERATOR)
        await page.get_by_role("button", name="Halt source…").click()
        shown = page.get_by_role("dialog")
        await shown.get_by_role("button", name="Halt source").click()
        await expect(shown.get_by_role("alert")).to_contain_text("halted")
        await shown.get_by_role("button", name="Done").click()
        await expect(page.locator(".head .badge")).to_contain_text("halted")
        await expect(page.get_by_role("button", name="Halt source…")).to_be_hidden()
    assert scene.driver.budget("feed").state == "halted"
    assert scene.tables.streams["ward/7"].state == "halted"


async def test_refused_request_is_tried_again_under_another_id(open_page: OpenPage) -> None:
    scene = with_ward(RefusingScene())
    async with scene.served() as address:
        page = await open_page(address, WARD, OPERATOR)
        shown = await dialog(page, "Halt")
        await shown.get_by_role("button", name="Halt stream").click()
        await expect(shown.get_by_role("alert")).to_contain_text("request: this id belongs to an earlier request")
        assert scene.tables.streams["ward/7"].state == "open"
        await shown.get_by_role("button", name="Try again").click()
        await expect(shown.get_by_role("alert")).to_contain_text("Receipt 2: halted")
    first, second = scene.requested
    assert first.request != second.request


async def test_page_is_closed_without_a_token(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address, token=None)
        for token in ("", STRANGER, "not a token at all"):
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_be_visible()
            await expect(page.get_by_role("navigation")).to_have_count(0)
        await expect(page.get_by_text("ward/7")).to_have_count(0)
        assert await page.evaluate("sessionStorage.length") == 0


async def test_unknown_token_signs_the_user_out(open_page: OpenPage) -> None:
    scene = with_ward(Scene())
    async with scene.served() as address:
        page = await open_page(address)
        await page.evaluate(f"sessionStorage.setItem('sotto.token', '{STRANGER}')")
        await page.reload()
        await expect(page.get_by_role("alert")).to_have_text("This token is no longer known; sign in again.")
        assert await page.evaluate("sessionStorage.length") == 0
