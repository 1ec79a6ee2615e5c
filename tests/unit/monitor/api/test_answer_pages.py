"""A stream's answers through the API: paged, with their questions and costs, as JSON lines and CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import threading
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from stream.client.answer_history import AnswerLog, AnswerPage
from stream.monitor.api import server
from stream.monitor.api.routes import ANSWERS_PATH
from stream.questions.result_text import quote_formula
from tests.patience import SECONDS
from tests.unit.monitor.installation import ANALYST, HIGH, LOW, VIEWER, Installation, bearer, get, spec

TABLE: dict[str, Any] = {
    "source": "people",
    "kind": "table",
    "path": "people.csv",
    "neighbors": "add-remove",
    "epsilon": 90.0,
    "attributes": {"age": {"kind": "integers", "minimum": 0, "maximum": 99}, "sex": ["F", "M"]},
}


def with_answers() -> Installation:
    installation = Installation()
    installation.open(spec("ward", cutoff=2))
    installation.ask("ward", LOW, HIGH, LOW)
    return installation


def with_table() -> Installation:
    installation = Installation()
    installation.driver.register(TABLE, {"age": [20, 30] * 50, "sex": ["F", "M"] * 50})
    counts = {
        "stream": "counts",
        "source": "people",
        "epsilon": 4.0,
        "mechanism": {"kind": "laplace", "answers": 4},
    }
    installation.driver.open({**counts, "mechanism": {"kind": "laplace", "answers": 4, "dimensions": 2}})
    installation.flow()
    return installation


async def test_answer_route_pages_back_with_cost_of_each_answer() -> None:
    """The oldest answer of a page has its cost too, from the answer before it."""
    installation = with_answers()
    async with installation.web() as client:
        first = await get(client, "/api/streams/ward/answers", limit="2")
        rest = await get(client, "/api/streams/ward/answers", limit="2", before=str(first["before"]))
    rows = [*first["items"], *rest["items"]]
    assert [row["answer"]["outcome"] for row in rows] == ["below", "above", "below"]
    assert [row["answer"]["index"] for row in rows] == [2, 1, 0]
    assert rest["before"] is None
    spent = [row["answer"]["spent"]["epsilon"] for row in rows]
    assert [row["cost"]["epsilon"] for row in rows] == pytest.approx(
        [spent[0] - spent[1], spent[1] - spent[2], spent[2]]
    )
    assert all(row["question"] is None for row in rows)


async def test_answer_route_shows_question_of_own_answer_only() -> None:
    """A question that this monitor sent is shown with its answer; a like id of another client is not."""
    installation = with_table()
    question = {"id": "q1", "stream": "counts", "where": "age >= -30 AND age >= 30", "group_by": ["sex"]}
    installation.driver.ask_many([{"id": "q1", "stream": "counts", "where": "age >= 20"}])
    async with installation.web() as client:
        async with client.post("/api/questions", json=question, headers=bearer(ANALYST)) as response:
            assert response.status == 200
            answered = await response.json()
        page = await get(client, "/api/streams/counts/answers")
        newest, older = page["items"]
        assert newest["question"]["where"] == question["where"]
        assert older["question"] is None
        assert (newest["warnings"], older["warnings"]) == (answered["warnings"][:2], [])
        async with client.get("/api/streams/counts/answers.csv", headers=bearer(VIEWER)) as response:
            assert response.content_type == "text/csv"
            rows = list(csv.DictReader(io.StringIO(await response.text())))
        assert [row["group"] for row in rows] == ["sex=F", "sex=M", ""]
        assert json.loads(rows[0]["question"]) == {"where": question["where"], "group_by": ["sex"]}
        # The costs of all lines add up to the spent amount.
        assert [bool(row["cost_epsilon"]) for row in rows] == [True, False, True]
        assert rows[1]["question"] == ""  # else a long question would be repeated 100,000 times
        # The warning that incomplete rows are left out is the second; the page states it once, above its list.
        saved = answered["warnings"][:2]
        assert [row["warnings"] for row in rows] == ["; ".join(saved), "", ""]
        async with client.get("/api/streams/counts/answers.jsonl", headers=bearer(VIEWER)) as response:
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert [line.get("warnings") for line in lines] == [saved, None]
        assert [float(row["estimate"]) for row in rows[:2]] == newest["answer"]["estimates"]
        assert all(float(row["interval_low"]) <= float(row["interval_high"]) for row in rows)


async def test_answer_export_has_the_unit_of_a_quantiles_alpha() -> None:
    """The error bound of a quantile is in rows of rank, not in the unit of its number."""
    installation = with_table()
    async with installation.web() as client:
        for number, fields in enumerate(({"where": "age >= 30"}, {"quantile": "age"})):
            question = {"id": f"q-{number}", "stream": "counts", **fields}
            async with client.post("/api/questions", headers=bearer(ANALYST), json=question) as response:
                assert response.status == 200
        async with client.get("/api/streams/counts/answers.csv", headers=bearer(VIEWER)) as response:
            rows = list(csv.DictReader(io.StringIO(await response.text())))
    assert [row["alpha_unit"] for row in rows] == ["rows of rank", ""]


async def test_answer_export_has_an_answer_without_texts() -> None:
    """It is charged as any other, so its line has the cost; the other answer has a line for its text."""
    installation = Installation()
    words = {"age": [20, 30] * 100, "word": ["flu"] * 200}
    text = {**TABLE, "delta": 0.1, "attributes": {**TABLE["attributes"], "word": {"kind": "text"}}}
    del text["attributes"]["sex"]
    installation.driver.register(text, words)
    groups = {"kind": "unknown_groups", "answers": 2}
    installation.driver.open(
        {"stream": "words", "source": "people", "epsilon": 4.0, "delta": 1e-4, "mechanism": groups}
    )
    for where in ("FALSE", "TRUE"):
        installation.driver.ask("words", where=where, group_by=("word",))
    installation.flow()
    async with (
        installation.web() as client,
        client.get("/api/streams/words/answers.csv", headers=bearer(VIEWER)) as response,
    ):
        rows = list(csv.DictReader(io.StringIO(await response.text())))
    assert [(row["index"], row["group"], row["outcome"]) for row in rows] == [
        ("1", "key=flu", "answer"),
        ("0", "", "answer"),
    ]
    assert [float(row["cost_epsilon"]) for row in rows] == pytest.approx([2.0, 2.0])


async def test_answer_exports_link_to_their_next_page() -> None:
    """A program follows the header until it is missing, and has each answer once."""
    installation = with_answers()
    address: str | None = "/api/streams/ward/answers.jsonl?limit=1"
    lines: list[dict[str, Any]] = []
    async with installation.web() as client:
        while address:
            async with client.get(address, headers=bearer(VIEWER)) as response:
                assert response.status == 200
                assert "answers.jsonl" in response.headers["Content-Disposition"]
                lines += [json.loads(line) for line in (await response.text()).splitlines()]
                following = re.fullmatch(r'<(.+)>; rel="next"', response.headers.get("Link", ""))
                address = None if following is None else following[1]
    assert [(line["index"], line["outcome"]) for line in lines] == [(2, "below"), (1, "above"), (0, "below")]
    assert all(line["time"].endswith("Z") and line["cost"] for line in lines)


async def test_answer_export_is_formatted_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large page takes seconds to format, in which the monitor serves other requests."""
    threads: list[int] = []

    def record_thread(_: Any) -> list[str]:
        threads.append(threading.get_ident())
        return ["text"]

    monkeypatch.setitem(server._ANSWER_EXPORTS, f"{ANSWERS_PATH}.csv", ("text/csv", record_thread))
    async with (
        with_answers().web() as client,
        client.get("/api/streams/ward/answers.csv", headers=bearer(VIEWER)) as response,
    ):
        assert await response.text() == "text"
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_quote_formula_quotes_each_first_character(first: str) -> None:
    """Spreadsheets evaluate a cell also after a line feed, and with full-width characters."""
    assert quote_formula(f"{first}1+1") == f"'{first}1+1"
    assert quote_formula(f"a{first}1") == f"a{first}1"


async def test_answer_route_refuses_unreadable_requests() -> None:
    """There are different errors for unknown streams, monitors that read no answers, missing rights and a silent Kafka."""
    installation = with_answers()

    class Failing(AnswerLog):
        def __init__(self, error: Exception) -> None:
            self._error = error

        async def read_page(self, *_: Any, **__: Any) -> AnswerPage:
            raise self._error

    async with installation.web() as client:

        async def refused(stream: str = "ward", **parameters: str) -> tuple[int, str]:
            path = f"/api/streams/{stream}/answers"
            async with client.get(path, params=parameters, headers=bearer(VIEWER)) as response:
                return response.status, (await response.json())["message"]

        assert (await refused("nowhere"))[0] == 404
        assert (await refused(limit="0"))[0] == 400
        installation.monitor.answers = Failing(TopicAuthorizationFailedError("answers"))
        status, message = await refused()
        assert status == 503
        assert "sotto topics acl" in message
        installation.monitor.answers = Failing(KafkaConnectionError())
        assert (await refused())[0] == 503
        installation.monitor.answers = None
        status, message = await refused()
        assert status == 403
        assert "SOTTO_MONITOR_ASKS" in message


async def test_answer_route_reads_one_page_at_a_time_and_limits_waiting_requests() -> None:
    """Four pages of one name may wait; a further request is refused with a time to retry."""
    installation = with_answers()
    go_on, reads = asyncio.Event(), 0

    class Slow(AnswerLog):
        async def read_page(self, *_: Any, **__: Any) -> AnswerPage:
            nonlocal reads
            reads += 1
            await go_on.wait()
            return AnswerPage((), None, None, None, 0)

    installation.monitor.answers = Slow(installation.settings, installation.driver.topics)
    async with asyncio.timeout(SECONDS), installation.web() as client:
        asked = [
            asyncio.create_task(client.get("/api/streams/ward/answers", headers=bearer(VIEWER))) for _ in range(6)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().status for one in done] == [429]
        assert reads == 1
        go_on.set()
        assert sorted(one.status for one in await asyncio.gather(*asked)) == [200] * 5 + [429]
