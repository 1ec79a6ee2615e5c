"""Names of topics and groups: which prefixes could give two installations the same ones."""

from __future__ import annotations

import pytest

from stream.kafka.topic_layouts import (
    alerts_group,
    budget_group,
    feed_group_prefix,
    installation_exists,
    layout,
    prefixes_of,
    worker_group,
)
from stream.processing.topic_names import Topics, conflicting_prefixes
from stream.settings import Settings


@pytest.mark.parametrize(
    ("prefix", "outer"),
    [
        ("sotto", []),
        ("feed", []),
        ("alerts", []),
        ("feed.sotto", []),
        ("sotto-feeds", []),
        ("sotto.feeds", []),
        ("sotto.feed-7", []),
        ("sotto.feed", ["sotto"]),
        ("sotto.feed.west", ["sotto"]),
        ("sotto.feed.feed", ["sotto", "sotto.feed"]),
        ("sotto-feed", ["sotto"]),
        ("sotto-alerts-west", ["sotto"]),
    ],
)
def test_outer_prefixes_are_those_that_could_share_names(prefix: str, outer: list[str]) -> None:
    """The other installation's prefix ends with the word after which names of live sources or of alert targets follow."""
    assert conflicting_prefixes(prefix) == outer


@pytest.mark.parametrize("name", ["ledger", "queries", "west.trail", "feed.visits", "west.feed.visits"])
def test_outer_prefixes_find_every_shared_changelog(name: str) -> None:
    """A live source's changelog that is another installation's topic belongs to a prefix that is refused."""
    changelog = Topics("sotto").feed_state(name)
    others = set(prefixes_of(changelog)) - {"sotto"}
    assert others
    assert all("sotto" in conflicting_prefixes(other) for other in others)


def test_outer_prefixes_find_every_shared_group() -> None:
    """If a live source or an alert target is called `workers` or `budget`, its group belongs to a prefix that is refused."""
    outer = Settings(prefix="sotto")
    feeds, alerts = (Settings(prefix=f"sotto-{word}") for word in ("feed", "alerts"))
    for inner in (feeds, alerts):
        assert conflicting_prefixes(inner.prefix) == ["sotto"]
    assert worker_group(feeds) == f"{feed_group_prefix(outer)}workers"
    assert budget_group(alerts) == alerts_group(outer, "budget")


def test_installation_exists_if_most_of_its_topics_exist() -> None:
    """A live source with the name of a topic does not count as an installation."""
    names = [one.name for one in layout(Topics("sotto.feed"))]
    assert installation_exists("sotto.feed", names)
    assert not installation_exists("sotto.feed", [Topics("sotto").feed_state("ledger")])
