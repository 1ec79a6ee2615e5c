"""The examples work with a real installation."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from examples.fastapi_service.service import make_app
from sotto import AsyncClient
from stream.settings import Settings
from stream.tables.demo_tables import adult_source
from tests.conftest import StartService
from tests.docs.pages import PROJECT

pytestmark = pytest.mark.kafka


async def test_example_service_and_report_show_answers_and_errors(
    settings: Settings, start: StartService, client: AsyncClient, tmp_path: Path
) -> None:
    start("budget")
    start("worker")
    await client.register(adult_source(epsilon=4.0))
    spec = {"source": "adult", "epsilon": 1.0, "expected_queries": 100, "beta": 1e-9}
    await client.open({**spec, "stream": "counts", "mechanism": {"kind": "laplace", "answers": 1}})
    pmw = {"kind": "pmw", "attributes": ["age", "sex", "income>50K"]}
    await client.open({**spec, "stream": "nightly", "mechanism": pmw})
    alarm = {"kind": "above_threshold", "threshold": 1, "cutoff": 1}
    await client.open({**spec, "stream": "alarm", "mechanism": alarm}, acknowledge=True)

    app = make_app(settings)
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), web:
        wrong = await web.get("/counts/counts", params={"where": "height > 2"})
        right = await web.get("/counts/counts", params={"where": "sex = 'F'"})
        empty = await web.get("/counts/counts", params={"where": ""})
        unfit = await web.get("/counts/alarm", params={"where": "sex = 'F'"})
        nobody = await web.get("/counts/nobody", params={"where": "sex = 'F'"})
        over = await web.get("/counts/counts", params={"where": "sex = 'M'"})
    assert wrong.status_code == 422
    assert "no declared attribute has this name" in wrong.json()["detail"]
    assert right.status_code == 200
    answer = right.json()
    assert abs(answer["estimate"] - 16_192) <= answer["plus_minus"]
    assert answer["epsilon_spent"] == pytest.approx(1.0)
    assert over.status_code == 410
    assert (empty.status_code, unfit.status_code, nobody.status_code) == (422, 422, 404)
    assert empty.json()["detail"].startswith("where: ")
    assert "'alarm' is one of above_threshold" in unfit.json()["detail"]
    assert (await client.ask("alarm", where="sex = 'F'")).tops_left == 0  # its only charged answer is left

    program = PROJECT / "examples" / "nightly_report" / "report.py"
    environment = {**os.environ, "SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix}
    written = tmp_path / "report.md"
    process = await asyncio.create_subprocess_exec(sys.executable, program, "nightly", written, env=environment)
    assert await process.wait() == 0
    assert "Of adult's ε 4, 1 is left to be granted." in written.read_text()
