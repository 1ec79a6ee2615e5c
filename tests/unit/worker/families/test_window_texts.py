"""Unknown groups on live topics: answers, charges, too many texts, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas import TOO_MANY_TEXTS, GrantRecord
from sotto import Driver, Refused, Rejected, Result
from stream.cli.app import app
from stream.privacy.mechanisms.private_values import encode_text_counts
from tests.builders import KEY, installation, source, stream

HOUR = "2026-01-05T08:{:02}:00Z"
TERMS = ["shoes"] * 300 + ["hat"] * 150 + ["\u00e9charpe"] * 100 + ["rare"] * 3 + [f"once {n}" for n in range(200)]


def shop(**changed: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": "shop.searches",
        "epsilon": 10.0,
        "delta": 1e-3,
        "person": "who",
        "time": "at",
        "clock": "marks",
        "ahead": "2h",
        "attributes": {"term": {"kind": "text", "max_length": 40}, "site": ["a", "b"]},
        **changed,
    }
    return source("shop", "events", **fields)


def terms(answers: int = 2, mechanism: Mapping[str, Any] | None = None, **standing: Any) -> dict[str, Any]:
    return stream(
        "terms",
        "shop",
        mechanism=mechanism or {"kind": "unknown_groups", "answers": answers},
        epsilon=1.0 * answers,
        delta=1e-6 * answers,
        expected_queries=answers,
        standing={"by": ["term"], "window": {"size": "1h"}, "begins": "2026-01-05T08:00:00Z", **standing},
    )


def events_of_searches(*found: Any, people: int | None = None, minute: int = 10) -> list[dict[str, Any]]:
    """Return searches of different people, or of ``people`` people in turn."""
    return [
        {
            "who": f"p{place % (people or len(found))}",
            "at": HOUR.format(minute),
            "term": term,
            "site": "ab"[place % 2],
        }
        for place, term in enumerate(found)
    ]


def closed(driver: Driver, events: list[dict[str, Any]], until: str = "2026-01-05T09:00:00Z") -> list[Result]:
    driver.publish("shop", events)
    return list(driver.advance("shop", until))


def counts(result: Result) -> dict[str, float]:
    return dict(zip(result.keys or (), result.estimates or (), strict=True))


@pytest.mark.parametrize("partitions", [1, 3])
def test_window_releases_the_texts_of_many_people(partitions: int) -> None:
    driver = installation(terms(), sources=[shop()], partitions=partitions)
    [result] = closed(driver, events_of_searches(*TERMS))
    assert list(counts(result)) == ["shoes", "hat", "\u00e9charpe"]
    assert result.alpha is not None
    for term, truth in (("shoes", 300), ("hat", 150), ("\u00e9charpe", 100)):
        assert abs(counts(result)[term] - truth) <= result.alpha
    assert counts(result) != {"shoes": 300.0, "hat": 150.0, "\u00e9charpe": 100.0}
    assert (result.basis, result.group) == ("noisy", None)
    assert result.window is not None
    assert result.intervals is not None
    row = result.rows()[0]
    assert (row["key"], row["window_start"]) == ("shoes", "2026-01-05T08:00:00Z")


def test_each_window_is_charged_and_the_last_one_exhausts() -> None:
    driver = installation(terms(2), sources=[shop()])
    results = closed(driver, events_of_searches(*TERMS), "2026-01-05T12:00:00Z")
    spent = [one.spent for one in results]
    assert [one.epsilon for one in spent if one is not None] == pytest.approx([1.0, 2.0, 2.0, 2.0][: len(spent)])
    assert [one.outcome for one in results][:2] == ["answer", "answer"]
    assert results[1].keys == ()
    assert all(one.outcome == "halted" for one in results[2:])
    driver.close("shop", "terms")
    assert driver.budget("shop").left.epsilon == pytest.approx(8.0)
    assert driver.budget("shop").left.delta == pytest.approx(1e-3 - 2e-6)


def test_repeated_delivery_gives_the_same_answer() -> None:
    driver = installation(terms(), sources=[shop()], partitions=2)
    closed(driver, events_of_searches(*TERMS))
    driver.redeliver()


def test_where_and_people_restrict_the_counts() -> None:
    driver = installation(terms(where="site = 'a'"), sources=[shop()])
    [result] = closed(driver, events_of_searches(*TERMS))
    assert abs(counts(result)["shoes"] - 150) <= (result.alpha or 0)
    driver = installation(terms(count="people"), sources=[shop(contribution=5)])
    [result] = closed(driver, events_of_searches(*["shoes", "hat"] * 400, people=200))
    assert sum(counts(result).values()) == pytest.approx(200, abs=2 * (result.alpha or 0))


def test_person_counts_at_most_the_contribution_over_all_texts() -> None:
    driver = installation(terms(), sources=[shop(contribution=3)])
    [result] = closed(driver, events_of_searches(*["shoes", "hat", "scarf", "coat"] * 100, people=4))
    assert counts(result) == {}
    driver = installation(terms(), sources=[shop(contribution=3)])
    crowd = [
        event | {"who": f"c{place // 5}"} for place, event in enumerate(events_of_searches(*["shoes"] * 1000))
    ]
    [result] = closed(driver, crowd)
    assert abs(counts(result)["shoes"] - 600) <= (result.alpha or 0)


def test_window_with_too_many_texts_releases_none() -> None:
    driver = installation(terms(), sources=[shop()], partitions=2)
    many = [f"{number:08}".ljust(40, "x") for number in range(12_000)]
    first, second = closed(driver, events_of_searches(*["shoes"] * 500, *many), "2026-01-05T10:00:00Z")
    assert (first.keys, first.estimates, first.basis) == ((), (), TOO_MANY_TEXTS)
    assert "too many different texts" in str(first)
    assert first.spent is not None
    assert first.spent.epsilon == pytest.approx(1.0)
    assert second.basis == "noisy"


def test_period_has_its_own_windows_and_charges() -> None:
    driver = installation(terms(2), sources=[shop(unit="person-period", period="2h", ahead="7d")])
    driver.advance("shop", "2026-01-05T08:00:00Z")
    results = closed(driver, events_of_searches(*TERMS), "2026-01-05T12:00:00Z")
    assert [one.stream for one in results][:2] == ["terms@2026-01-05T08:00:00Z"] * 2
    assert list(counts(results[0])) == ["shoes", "hat", "\u00e9charpe"]


@pytest.mark.parametrize(
    ("spec", "changed", "reason"),
    [
        (terms(by=[]), {}, "standing.by: unknown_groups groups by one text attribute; give one of 'term'"),
        (terms(by=["site"]), {}, "standing.by: unknown_groups groups by one text attribute"),
        (terms(by=["term", "site"]), {}, "standing.by: unknown_groups groups by one text attribute"),
        (terms(where="term = 'shoes'"), {}, "attribute 'term' is a text, whose values are private"),
        (terms(mechanism={"kind": "laplace"}), {}, "standing.by.0: attribute 'term' is a text"),
        (terms(mechanism={"kind": "histogram", "attributes": ["term"]}, by=[]), {}, "attribute 'term' is a text"),
        (
            terms(mechanism={"kind": "unknown_groups", "counts": False}),
            {},
            "mechanism.counts: the texts of a window",
        ),
        (terms(count={"sum": "n"}), {}, "standing.count: unknown_groups counts events or people"),
        (terms(), {"attributes": {"site": ["a"]}}, "the source has none; declare one"),
        (terms(), {"accountant": "zcdp"}, "the accountant 'zcdp' does not add up"),
        ({**terms(), "delta": 0.0}, {}, "delta: is 0, but releasing a text costs δ"),
        ({**terms(2000), "epsilon": 1.0}, {}, "would exceed half of the size limit; raise epsilon"),
        ({**terms(1), "epsilon": 30.0}, {"epsilon": 50.0}, "size; lower epsilon or raise delta"),
        (
            {**terms(1), "epsilon": 20.0},
            {"epsilon": 50.0, "contribution": 9000},
            "a larger epsilon does not help: lower",
        ),
    ],
)
def test_texts_of_windows_that_are_not_private_are_refused(
    spec: dict[str, Any], changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        installation(spec, sources=[shop(**changed)])
    assert reason in str(refused.value)


def test_texts_without_a_window_or_their_mechanism_are_refused() -> None:
    driver = installation(terms(), sources=[shop()])
    asked: dict[str, Any] = {"texts": encode_text_counts({b"a": 99})}
    with pytest.raises(Rejected, match="window: missing"):
        driver.ask("terms", **asked)
    with pytest.raises(Rejected, match="texts: this stream's mechanism does not take it"):
        installation(stream("l", "people", "laplace")).ask("l", texts=asked["texts"])


def test_large_questions_without_texts_are_refused() -> None:
    driver = installation(stream("l", "people", "laplace"))
    value = json.dumps({"id": "q", "stream": "l", "where": "TRUE", "texts": "x"})
    padded = value[:-1] + " " * 20_000 + "}"
    result = driver.send(0, padded.encode())
    assert result is not None
    assert (result.outcome, (result.reason or "").partition(":")[0]) == ("rejected", "too-large")


def test_source_of_texts_alone_is_registered() -> None:
    driver = Driver(KEY)
    driver.register(shop(attributes={"term": {"kind": "text"}}, fields={"term": "q.text"}))
    driver.open(terms())
    events = [{"who": f"p{n}", "at": HOUR.format(1), "q": {"text": "shoes"}} for n in range(300)]
    [result] = closed(driver, events)
    assert list(counts(result)) == ["shoes"]


def test_plan_names_threshold_and_windows(tmp_path: Path) -> None:
    declared, wanted = tmp_path / "source.json", tmp_path / "stream.json"
    declared.write_text(json.dumps(shop()))
    wanted.write_text(json.dumps(terms(24)))
    arguments = ["plan", "--source", str(declared), "--standing", str(wanted)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}).stdout
    driver = installation(terms(24), sources=[shop(epsilon=100.0)])
    [grant] = driver.list_streams("shop")
    assert isinstance(grant, GrantRecord)
    assert grant.calibration.kind == "unknown_groups"
    assert f"a text is published if its noisy count is at least {grant.calibration.threshold}" in shown
    assert "unknown groups a window" in shown
    assert "24 windows" in shown
