"""One browser for all tests, with a separate window for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.scene import VIEWER, Scene

# Longer than the page's longest pause between two attempts to connect, even on a busy machine.
expect.set_options(timeout=60_000)

OpenPage = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; these tests are skipped only if there is no browser."""
    # The headless shell draws no windows, so it takes half of the processor time.
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    pytest.skip("no Chromium is installed (Debian: apt install chromium-headless-shell; Ubuntu: chromium)")


@pytest.fixture(scope="session")
def scene() -> Scene:
    """Five sources and fourteen streams after an hour's work, for tests that change nothing."""
    made = Scene()
    made.at_work()
    return made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    # Chromium's sandbox does not work as root, which containers commonly are.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=options)
        yield started
        await started.close()


@pytest.fixture
def keep_screenshot(screen: str) -> Callable[[str, bytes], None]:
    """Return a function that writes a screenshot to the folder SOTTO_SCREENSHOTS, if that is set."""
    folder = os.environ.get("SOTTO_SCREENSHOTS")

    def write(name: str, picture: bytes) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f"{name}-{screen}.png").write_bytes(picture)

    return write


@pytest.fixture
def complaints() -> list[str]:
    """The errors in the pages of a test; a test that provokes an error removes it from the list."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser, complaints: list[str]) -> AsyncIterator[OpenPage]:
    """Open a place of the page, signed in if a token is given; at the end, require that the page had no errors."""
    async with AsyncExitStack() as stack:

        async def opened(address: str, place: str = "", token: str | None = VIEWER, **options: Any) -> Page:
            context = await browser.new_context(**options)
            stack.push_async_callback(context.close)
            page = await context.new_page()
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: _complain(message.type, message.text, complaints))
            page.on("request", lambda request: _stay(request.url, address, complaints))
            await page.goto(f"{address}/#/{place}")
            if token is not None:
                await page.get_by_label("Token").fill(token)
                await page.get_by_role("button", name="Sign in").click()
                await page.get_by_text("live", exact=True).wait_for()
            return page

        yield opened
    assert complaints == []


def _complain(kind: str, text: str, complaints: list[str]) -> None:
    """Note an error, except refused requests on the console, which are part of some tests."""
    if kind == "error" and "Failed to load resource" not in text:
        complaints.append(text)


def _stay(url: str, address: str, complaints: list[str]) -> None:
    if not url.startswith(f"{address}/"):
        complaints.append(f"the page asked for {url}")
