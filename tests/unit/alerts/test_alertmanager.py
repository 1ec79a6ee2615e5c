"""Alerts reach an Alertmanager as Prometheus sends them, within bounds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from schemas import Answer
from schemas.windows import format_moment
from stream.alerts.alerts_file import AlertmanagerTarget
from stream.alerts.delivery import Alert, AlertMetrics, Backoff, TargetMetrics, TargetSender
from stream.alerts.targets import MAX_BATCH_ALARMS, RESOLVED_SECONDS, Alertmanager, group_labels
from stream.questions.alert_states import NO_TERMS, AlarmTable, AlertKey, AlertTerms, format_time
from tests.unit.alerts.events import OPENING
from tests.unit.alerts.receiver import Receiver

HOUR = 3600.0


def answer(outcome: str, hour: int, group: str | None = "EWR", stream: str = "late") -> Answer:
    window = {"start": format_moment(hour * 3_600_000), "end": format_moment((hour + 1) * 3_600_000)}
    fields = {"id": "x", "stream": stream, "outcome": outcome, "window": window, "index": hour}
    fields |= {} if group is None else {"group": {"origin": group}}
    return Answer.model_validate_json(json.dumps(fields))


class AlertmanagerSetup:
    """A receiver in place of an Alertmanager, and a sender with a separate clock."""

    def __init__(self, receiver: Receiver, **fields: Any) -> None:
        self.receiver = receiver
        self.now = HOUR
        self.metrics = AlertMetrics()
        given = {"name": "am", "kind": "alertmanager", "urls": [f"http://127.0.0.1:{receiver.port}"], **fields}
        self.target = AlertmanagerTarget.model_validate_json(json.dumps(given))
        self.sender = TargetSender(5.0)
        self.firing = AlarmTable(limit=3, over_periods=True)
        self.alertmanager = Alertmanager(
            self.target,
            self.sender,
            TargetMetrics(self.metrics, "am"),
            clock=lambda: self.now,
            backoff=Backoff(random_share=lambda: 1.0),
            alarm_table=self.firing,
        )

    def add_answers(self, *answers: Answer, known: bool = False) -> None:
        for one in answers:
            self.alertmanager.add_answer(self.alert_of(one), known=known)

    def alert_of(self, answer: Answer, terms: AlertTerms = NO_TERMS) -> Alert:
        opening = OPENING._replace(source="flights", stream=answer.stream, terms=terms)
        return Alert("sotto", opening, answer, self.now)

    async def send_due(self) -> list[dict[str, Any]]:
        """Send the due alerts, and return them as the receiver got them."""
        before = len(self.receiver.requests)
        await self.alertmanager.send()
        return [alert for request in self.receiver.requests[before:] for alert in request.json]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"target": "am", **labels}) or 0.0


@pytest.fixture
async def setup() -> AsyncIterator[AlertmanagerSetup]:
    async with Receiver() as receiver:
        made = AlertmanagerSetup(receiver)
        async with made.sender:
            yield made


async def test_alertmanager_resends_firing_alert_every_minute(
    setup: AlertmanagerSetup,
) -> None:
    """Each message ends the alert four resend intervals later."""
    setup.add_answers(answer("above", 0))
    [alert] = await setup.send_due()
    assert [request.path for request in setup.receiver.requests] == ["/api/v2/alerts"]
    assert alert["labels"] == {
        "alertname": "SottoAlert",
        "source": "flights",
        "stream": "late",
        "group_origin": "EWR",
    }
    assert (alert["startsAt"], alert["endsAt"]) == (format_time(HOUR), format_time(HOUR + 240))
    setup.now += 59
    assert await setup.send_due() == []
    setup.now += 1
    [again] = await setup.send_due()
    assert again["endsAt"] == format_time(setup.now + 240)
    assert again["startsAt"] == alert["startsAt"]


async def test_alertmanager_sends_end_after_first_quiet_window(
    setup: AlertmanagerSetup,
) -> None:
    """The end is sent again for a while."""
    setup.add_answers(answer("above", 0))
    await setup.send_due()
    setup.now += 30
    setup.add_answers(answer("below", 1, "JFK"), answer("below", 1))
    ended = setup.now
    [alert] = await setup.send_due()
    assert alert["endsAt"] == format_time(ended)
    setup.now += RESOLVED_SECONDS
    assert [one["endsAt"] for one in await setup.send_due()] == [format_time(ended)]
    setup.now += 60
    assert await setup.send_due() == []
    assert setup.firing.alarms == {}
    assert setup.metric("sotto_alerts_firing") == 0


async def test_alertmanager_ends_alert_without_later_windows(
    setup: AlertmanagerSetup,
) -> None:
    """Without another answer an alert ends after its window's length and a grace period."""
    setup.add_answers(answer("above", 0))
    await setup.send_due()
    setup.now += HOUR + 900
    [still] = await setup.send_due()
    assert still["endsAt"] > format_time(setup.now)
    setup.now += 1
    [ended] = await setup.send_due()
    assert ended["endsAt"] == format_time(HOUR + HOUR + 900)


async def test_alertmanager_continues_run_and_starts_new_one_after_its_end(setup: AlertmanagerSetup) -> None:
    setup.add_answers(answer("above", 0), answer("above", 1))
    [alert] = await setup.send_due()
    assert alert["annotations"]["alerts"] == "2"
    setup.now = 4 * HOUR
    setup.add_answers(answer("below", 2), answer("above", 3))
    [again] = await setup.send_due()
    assert again["startsAt"] == format_time(4 * HOUR)
    assert again["annotations"]["alerts"] == "1"


async def test_alertmanager_has_one_alarm_over_the_periods_of_a_model(setup: AlertmanagerSetup) -> None:
    """The next period continues or resolves it; its labels name the model, and its run begins anew after its end."""
    first, second, third = (f"late@1970-01-01T0{hour}:00:00Z" for hour in (0, 2, 4))
    setup.now = 4 * HOUR
    setup.add_answers(answer("above", 1, stream=first), answer("above", 2, stream=second))
    [alert] = await setup.send_due()
    assert (alert["labels"]["stream"], alert["labels"]["source"]) == ("late", "flights")
    assert (alert["startsAt"], alert["annotations"]["alerts"]) == (format_time(2 * HOUR), "2")
    assert setup.firing.has_alarm(third)
    setup.now += 30
    setup.add_answers(answer("below", 3, stream=second))
    [ended] = await setup.send_due()
    assert ended["endsAt"] == format_time(setup.now)
    setup.add_answers(answer("above", 4, stream=third))
    setup.now += 2 * HOUR
    for _ in range(2):  # silence ends it, and moving partitions drop it
        await setup.send_due()
        setup.alertmanager.drop_alarms(lambda stream: stream == third)
        setup.add_answers(answer("above", 5, stream=third))
        [again] = await setup.send_due()
        assert again["annotations"]["alerts"] == "1"


async def test_alertmanager_takes_the_periods_of_a_model_in_any_order(setup: AlertmanagerSetup) -> None:
    """They are on different partitions; a late answer of an earlier period neither fires nor is delivered as new."""
    first, second = (f"late@1970-01-01T0{hour}:00:00Z" for hour in (0, 2))
    setup.now = 4 * HOUR
    assert setup.firing.has_alarm(second)  # so that this answer is read although nothing fires
    setup.add_answers(answer("below", 2, stream=second), answer("above", 1, stream=first))
    assert await setup.send_due() == []
    setup.add_answers(answer("above", 3, stream=second))
    [alert] = await setup.send_due()
    setup.add_answers(answer("below", 0, stream=first))
    await setup.send_due()
    assert setup.metric("sotto_alerts_delivered_total") == 1
    assert alert["annotations"]["window"].startswith("1970-01-01 03:00")


async def test_alertmanager_sends_failed_alerts_after_target_recovers(setup: AlertmanagerSetup) -> None:
    setup.receiver.behave = lambda number: web.Response(status=[500, 429, 200][min(number, 3) - 1])
    setup.add_answers(answer("above", 0))
    assert len(await setup.send_due()) == 1
    assert not setup.alertmanager.all_accepted
    assert await setup.send_due() == []  # the target gets no requests for a while
    setup.now += 1
    await setup.send_due()
    assert not setup.alertmanager.all_accepted
    setup.add_answers(answer("above", 1, "JFK"))
    setup.now += 2
    assert len(await setup.send_due()) == 2
    assert setup.alertmanager.all_accepted
    assert setup.metric("sotto_alerts_delivered_total") == 2
    assert setup.metric("sotto_alerts_failures_total", reason="status") == 1
    assert setup.metric("sotto_alerts_failures_total", reason="throttled") == 1


async def test_alertmanager_has_nothing_due_after_partitions_move_away(setup: AlertmanagerSetup) -> None:
    setup.receiver.behave = lambda _: web.Response(status=500)
    setup.add_answers(answer("above", 0), answer("above", 0, stream="early"))
    setup.now += 400
    await setup.send_due()
    setup.alertmanager.drop_alarms(lambda stream: stream == "late")
    setup.now += 0.1  # while the target gets no requests
    await setup.send_due()
    assert setup.metric("sotto_alerts_waiting_seconds") == 400
    setup.alertmanager.drop_alarms(lambda stream: stream == "early")
    assert await setup.send_due() == []
    assert setup.metric("sotto_alerts_waiting_seconds") == 0


async def test_alertmanager_needs_one_member_of_cluster(setup: AlertmanagerSetup) -> None:
    dead = "http://127.0.0.1:1/"
    target = setup.target.model_copy(update={"urls": (dead, *setup.target.urls)})
    setup.alertmanager.target = target
    setup.add_answers(answer("above", 0))
    assert len(await setup.send_due()) == 1
    assert setup.alertmanager.all_accepted
    assert setup.metric("sotto_alerts_failures_total", reason="connection") == 1


async def test_alertmanager_after_restart_sends_firing_alerts_only(
    setup: AlertmanagerSetup,
) -> None:
    """Ends that were sent before the restart are not sent again."""
    setup.add_answers(answer("above", 0), answer("above", 0, "JFK"), answer("below", 1, "JFK"), known=True)
    assert setup.alertmanager.all_accepted
    setup.now += RESOLVED_SECONDS + 1
    assert [alert["labels"]["group_origin"] for alert in await setup.send_due()] == ["EWR"]
    # An alert that ended while no service ran is sent as ended, even after a long time.
    setup.add_answers(answer("above", 2, "LGA"), answer("below", 3, "LGA"))
    setup.now += 10 * RESOLVED_SECONDS
    assert "LGA" in [alert["labels"]["group_origin"] for alert in await setup.send_due()]


async def test_alertmanager_drops_oldest_alarms_beyond_limit_and_counts_them(setup: AlertmanagerSetup) -> None:
    setup.add_answers(*(answer("above", 0, str(number)) for number in range(5)))
    assert [alert["labels"]["group_origin"] for alert in await setup.send_due()] == ["2", "3", "4"]
    assert setup.metric("sotto_alerts_dropped_total", reason="room") == 2
    setup.alertmanager.drop_alarms(lambda stream: stream == "late")
    setup.now += 60
    assert await setup.send_due() == []
    assert not setup.firing.has_alarm("late")


async def test_alertmanager_sends_alarms_in_batches(setup: AlertmanagerSetup) -> None:
    setup.firing._limit = 1000
    setup.add_answers(*(answer("above", 0, str(number)) for number in range(MAX_BATCH_ALARMS + 1)))
    assert len(await setup.send_due()) == MAX_BATCH_ALARMS + 1
    assert [len(request.json) for request in setup.receiver.requests] == [MAX_BATCH_ALARMS, 1]


def test_group_labels_are_valid_prometheus_labels() -> None:
    place = AlertKey("late", (("origin", "EWR"), ("age-group", "[0, 10)"), ("age group", 3)))
    assert group_labels(place) == {
        "group_origin": "EWR",
        "group_age_group": "[0, 10)",
        "group_age_group_2": "3",
    }


async def test_alarm_has_warnings_of_its_latest_alert(setup: AlertmanagerSetup) -> None:
    for outcome, hour, warnings in (("above", 0, ("first", "other")), ("above", 1, ("second",)), ("below", 2, ())):
        alert = replace(setup.alert_of(answer(outcome, hour)), warnings=warnings)
        setup.alertmanager.add_answer(alert, known=False)
        [sent] = await setup.send_due()
        expected = "first; other" if hour == 0 else "second"
        assert sent["annotations"]["warnings"] == expected


async def test_alarm_names_threshold_and_condition(setup: AlertmanagerSetup) -> None:
    """The annotations have the stream's threshold and the condition of its events."""
    terms = AlertTerms(12_345.5, "delay >= 60")
    setup.alertmanager.add_answer(setup.alert_of(answer("above", 0), terms), known=False)
    [alert] = await setup.send_due()
    assert (alert["annotations"]["threshold"], alert["annotations"]["condition"]) == ("12,345.5", "delay >= 60")
    assert alert["annotations"]["window"].endswith(" UTC")
