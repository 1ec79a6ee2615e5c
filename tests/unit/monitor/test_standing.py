"""Live topics and standing streams in the monitor's API: declaring, planning, opening and viewing them."""

from __future__ import annotations

from typing import Any

from schemas.windows import moment_ms
from stream.questions.answer_warnings import EXCEEDS_THRESHOLD
from tests.builders import stream
from tests.unit.feeds.live import flights, standing
from tests.unit.monitor.installation import VIEWER, Installation, get, post


async def test_live_topic_declaration_is_described_in_words() -> None:
    async with Installation().web() as client:
        declaration = await post(client, "/api/declarations", flights(), VIEWER)
        assert (
            "all of that person's events; of each 'tailnum', at most 2 events count in each window"
            in declaration["neighbors"]
        )
        assert declaration["cells"] == 3 * 1561 * 1501 * 2 * 4000
        assert any("LogAppendTime" in one for one in declaration["remarks"])
        with_text = {**flights()["attributes"], "gate_name": {"kind": "text", "max_length": 9}}
        declaration = await post(client, "/api/declarations", flights(attributes=with_text), VIEWER)
        text = "'gate_name' is text of at most 9 bytes: its values are private, and only unknown_groups and running_count group by it"
        assert text in declaration["remarks"]
        unused = flights(attributes=with_text, accountant="zcdp", delta=1e-6)
        declaration = await post(client, "/api/declarations", unused, VIEWER)
        assert any("its values are private, and no stream groups by it" in one for one in declaration["remarks"])
        declaration = await post(client, "/api/declarations", flights(clock="marks"), VIEWER)
        assert any("marks in the topic alone" in one for one in declaration["remarks"])
        declaration = await post(client, "/api/declarations", flights(unit="person-period", period="1d"), VIEWER)
        assert "all of that person's events in one period of 1d; of each 'tailnum'" in declaration["neighbors"]
        refused = await post(
            client, "/api/declarations", flights(source="flights@2013-01-01T00:00:00Z"), VIEWER, status=409
        )
    assert refused["message"].startswith("source: the name ends like that of a period")


async def test_declaration_warns_of_another_budget_of_the_same_topic() -> None:
    installation = Installation()
    installation.driver.register(flights())
    installation.flow()
    async with installation.web() as client:
        same = await post(client, "/api/declarations", flights(source="again"), VIEWER)
        daily = flights(source="again", unit="person-period", period="1d")
        periods = await post(client, "/api/declarations", daily, VIEWER)
        other = await post(client, "/api/declarations", flights(source="again", topic="elsewhere"), VIEWER)
        repeated = await post(client, "/api/declarations", flights(), VIEWER)
        own = await post(client, "/api/declarations", flights(topic="sotto.answers"), VIEWER, status=409)
    assert own["message"].startswith("topic: 'sotto.answers' belongs to Sotto itself")
    [warning] = [one for one in same["remarks"] if "topic: again has the same data as 'flights'" in one]
    join = "add both to one population with 'sotto source join', or "
    assert join in warning
    assert warning.replace(join, "") in periods["remarks"], "a source with periods cannot join a population"
    assert not any("same data" in one or "registered before" in one for one in other["remarks"])
    assert "source: 'flights' was registered before, so nothing changes" in repeated["remarks"]


async def test_standing_stream_is_planned_with_windows_and_shown_with_query() -> None:
    installation = Installation()
    installation.driver.register(flights())
    installation.driver.open(standing(), acknowledge=True)
    installation.flow()
    async with installation.web() as client:
        planned = await post(client, "/api/plan", standing("other"), VIEWER)
        assert planned["windows"] == 10_000
        refused = await post(client, "/api/plan", standing("other", by=["nothing"]), VIEWER, status=409)
        assert refused["message"].startswith("standing.by: name 1 is no attribute")
        curve = await post(client, "/api/curves", {"stream": standing("other"), "against": "epsilon"}, VIEWER)
        assert curve["lines"]
        detail = await get(client, "/api/streams/late")
    assert detail["windows"] == 10_000
    assert detail["standing"] == (
        "asks how many events with delay >= 60 for each origin in windows of 1h, one every 15m, from 1970-01-12T13:46:50Z on; each is asked "
        "10m after its end; events that arrive later do not count"
    )
    assert detail["first_answer"] == (
        "first answer: 1970-01-12T15:10:00Z by the broker's timestamps, at most 5s later if a partition is silent; "
        "the first window, from 1970-01-12T14:00:00Z, ends 1970-01-12T15:00:00Z plus the lateness 10m"
        "; the monitor does not check the topic: if no answer comes, /readyz of the feeds has the reason"
    )
    assert detail["spec"]["standing"]["by"] == ["origin"]


async def test_page_warns_of_windows_that_lack_events() -> None:
    """The monitor's clock is 1970-01-12T13:46:40Z, and feeds count a later stream from 5 s on."""
    installation = Installation()
    installation.driver.register(flights())
    begins: dict[str, Any] = {"begins": "1970-01-12T13:00:00Z"}
    async with installation.web() as client:
        installation.flow()
        first = await post(client, "/api/plan", standing("late", **begins), VIEWER)
        installation.driver.open(standing(**begins), acknowledge=True)
        installation.flow()
        past = await post(client, "/api/plan", standing("other", **begins), VIEWER)
        later = await post(client, "/api/plan", standing("other"), VIEWER)
        only = await get(client, "/api/streams/late")
        installation.driver.open(standing("other", **begins), acknowledge=True)
        installation.flow()
        detail = await get(client, "/api/streams/other")
        for stream in ("late", "other"):
            installation.answer_window(stream, moment_ms(begins["begins"]) // 1000, {"EWR": "above"})
        alerts = await get(client, "/api/alerts")
        # After a restore the opening is unknown, and the ledger's earliest record is of a later time.
        restored = installation.tables.streams["other"]
        restored.opened, restored.granted_by = None, installation.now + 60.0
        assert "before 1970-01-12T13:47:45Z" in (await get(client, "/api/streams/other"))["missed_events"]
    missed, marked = alerts["recent"][0]["warnings"]
    assert marked == f"not informative: {EXCEEDS_THRESHOLD}"
    assert (alerts["recent"][0]["stream"], missed) == ("other", detail["missed_events"])
    assert (first["past_windows"], later["past_windows"], only["missed_events"]) == (None, None, None)
    assert past["past_windows"].startswith("standing.begins: windows that begin before 1970-01-12T13:46:45Z lack")
    assert detail["missed_events"].startswith("windows that begin before 1970-01-12T13:46:45Z lack the events")


async def test_ordinary_stream_has_no_standing_query() -> None:
    installation = Installation()
    installation.open(stream("ward", mechanism={"threshold": 1.0, "cutoff": 2}))
    installation.flow()
    async with installation.web() as client:
        detail = await get(client, "/api/streams/ward")
    assert (detail["standing"], detail["windows"]) == (None, None)
