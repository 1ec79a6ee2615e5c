"""Single sign-on in a browser: its cookies reach the monitor, and the page is signed in until it signs out."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from playwright.async_api import expect

from stream.monitor.api.single_sign_on import SingleSignOn
from tests.browser.conftest import OpenPage
from tests.browser.scene import Scene
from tests.unit.monitor.api.openid_provider import GROUPS, OpenIdProvider, settings_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_page_signs_in_and_out_by_single_sign_on(
    open_page: OpenPage, complaints: list[str], tmp_path: Path
) -> None:
    """One click signs in, a reload and another tab stay signed in, and signing out asks again."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    address = f"http://localhost:{port}"
    scene = Scene()
    provider = OpenIdProvider(GROUPS, time.time)
    async with provider.serve() as issuer:
        scene.monitor.sign_on = SingleSignOn(settings_of(tmp_path, issuer, address=address))
        async with scene.served(port):
            page = await open_page(address, token=None)
            await page.get_by_role("link", name="Sign in with single sign-on").click()
            await page.get_by_text("live", exact=True).wait_for()
            await expect(page.get_by_text("olga")).to_be_visible()
            await page.reload()
            await page.get_by_text("live", exact=True).wait_for()
            other = await page.context.new_page()
            await other.goto(f"{address}/#/streams")
            await other.get_by_text("live", exact=True).wait_for()
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("link", name="Sign in with single sign-on")).to_be_visible()
            await page.reload()
            await expect(page.get_by_role("link", name="Sign in with single sign-on")).to_be_visible()
            provider.claims = {"sub": "ben"}
            await page.get_by_role("link", name="Sign in with single sign-on").click()
            await expect(page.get_by_role("alert")).to_contain_text("have no role here")
    complaints[:] = [one for one in complaints if issuer not in one]
