"""The places of the page that pictures and checks visit, and the steps that fill each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Page, expect

PLACES = {
    "monitor": "overview",
    "streams": "streams",
    "stream": "streams/ward-9%2Foxygen",
    "sources": "sources",
    "source": "sources/census",
    "workers": "workers",
    "alerts": "alerts",
    "rejected": "rejected",
    "unknown": "streams/nowhere",
    "register": "register",
    "plan": "plan?source=census",
    "ask": "ask?stream=households",
}


async def wait_for_rows(page: Page) -> None:
    await expect(page.locator("tbody tr").first).to_be_visible()


async def listed(page: Page) -> None:
    await expect(page.locator("li.source").first).to_be_visible()


async def wait_for_refusal(page: Page) -> None:
    await expect(page.get_by_role("link", name="All streams")).to_be_visible()


async def fill_declaration(page: Page) -> None:
    await page.get_by_label("Name").first.fill("patients")
    await page.get_by_label("File of the table").fill("/data/patients.parquet")
    age, sex = (page.get_by_role("group", name="Attribute", exact=True).nth(number) for number in (0, 1))
    await age.get_by_label("Name").fill("age")
    await age.get_by_label("Minimum").first.fill("0")
    await age.get_by_label("Maximum").first.fill("99")
    await page.get_by_role("button", name="Add attribute").click()
    await sex.get_by_label("Name").fill("sex")
    await sex.get_by_label("Kind").select_option("categories")
    await sex.get_by_label("Values").fill("F, M")
    await expect(page.get_by_role("table", name="Declared attributes").locator("tbody tr")).to_have_count(2)


async def fill_plan(page: Page) -> None:
    await page.get_by_label("Name of the stream").fill("people/model")
    await page.get_by_label("Mechanism").select_option("pmw")
    await page.get_by_label("Public number of rows").fill("500")
    await page.get_by_label("δ", exact=True).fill("0.0000001")
    await expect(page.locator(".chosen-text")).to_be_visible()
    await page.get_by_label("Open it even if its promise is not informative").check()
    await expect(page.get_by_role("button", name="Open stream…")).to_be_enabled()


async def ask_groups(page: Page) -> None:
    await page.get_by_role("button", name="Add condition").click()
    await page.get_by_label("Comparison").select_option(">=")
    await page.get_by_label("Value", exact=True).fill("18")
    await page.get_by_label("Ask", exact=True).select_option("groups")
    groups = page.get_by_role("group", name="Groups of")
    await groups.get_by_label("sex").check()
    await page.get_by_role("button", name="Ask", exact=True).first.click()
    await expect(page.locator(".estimate")).to_have_count(2)


STEPS: dict[str, Callable[[Page], Awaitable[None]]] = {
    "sources": listed,
    "unknown": wait_for_refusal,
    "register": fill_declaration,
    "plan": fill_plan,
    "ask": ask_groups,
}
