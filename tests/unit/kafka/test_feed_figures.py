"""What feeds count is there from the start, so that a first event is seen to be more than none."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from stream.data.events import flaws
from stream.kafka.feed_figures import CODES, FeedFigures
from stream.processors import rejections, unread
from stream.processors.feeds import clocks, intake
from stream.processors.rejections import Rejection


def test_every_reason_to_set_an_event_aside_has_a_figure_from_the_start() -> None:
    modules = (flaws, rejections, unread, clocks, intake)
    told = [one for module in modules for one in vars(module).values() if isinstance(one, Rejection | flaws.Flaw)]
    codes = {one.code for one in (*told, flaws.unknown_category("a"), flaws.no_number("a"))}
    assert set(CODES) == codes
    registry = CollectorRegistry()
    FeedFigures(registry)
    for code in codes:
        assert registry.get_sample_value("sotto_feed_dead_letters_total", {"code": code}) == 0
