"""Topics that differ from the layout are counted once each, by the effect of the difference, and logged when it begins."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream.kafka.topic_creation import Inspection
from stream.kafka.topic_layouts import Difference
from stream.monitor import monitor_service
from stream.monitor.api.monitor_state import metrics_text
from stream.monitor.monitor_service import TopicWatch
from stream.settings import Settings
from tests.unit.monitor.installation import Installation

LOSING = Difference("s.ledger", "cleanup.policy", "compact", "delete")
WIDER = Difference("s.merges", "partitions", "2", "3")
SET = Difference("s.queries", "compression.type", "producer", "gzip")


def count_topics(installation: Installation) -> dict[str, float]:
    families = text_string_to_metric_families(metrics_text(installation.monitor).decode())
    samples = [sample for family in families for sample in family.samples if sample.name.endswith("_topics")]
    return {sample.labels.get("kind", "unchecked"): sample.value for sample in samples}


def test_topic_watch_has_no_metrics_before_inspection() -> None:
    assert count_topics(Installation()) == {}


def test_topic_watch_counts_topic_once_by_worst_difference() -> None:
    installation = Installation()
    watch = TopicWatch(Settings(), installation.monitor.set_topics)
    more = [Difference("s.ledger", "segment.ms", "1", "2"), Difference("s.merges", "segment.ms", "1", "2")]
    watch.add_inspection(Inspection([LOSING, WIDER, SET, *more], [LOSING], ["s.trail"]))
    assert count_topics(installation) == {"losing": 1, "partitions": 1, "settings": 1, "unchecked": 1}
    watch.add_inspection(Inspection([], [], []))
    assert count_topics(installation) == {"losing": 0, "partitions": 0, "settings": 0, "unchecked": 0}


def test_topic_watch_logs_difference_when_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = TopicWatch(Settings(), lambda _: None)
    for differences in ([WIDER], [WIDER], [], [WIDER]):
        watch.add_inspection(Inspection(differences, [], []))
    logged = "".join(capsys.readouterr())
    assert logged.count("topic differs") == 2


async def test_topic_watch_ends_the_monitor_if_the_ledger_is_recreated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the monitor would show the deleted ledger's budgets and be ready."""
    ids = iter(["a", "a", "b"])

    async def inspect(_: Settings) -> Inspection:
        return Inspection([], [], [])

    async def read_id(_: TopicWatch) -> str:
        return next(ids)

    monkeypatch.setattr(monitor_service, "inspect_topics", inspect)
    monkeypatch.setattr(monitor_service, "TOPICS_SECONDS", 0)
    monkeypatch.setattr(TopicWatch, "_read_ledger_id", read_id)
    await TopicWatch(Settings(), lambda _: None).run()
    assert "input recreated" in "".join(capsys.readouterr())
    assert not list(ids)
