"""Running counts of private texts: answers that stay released, charges, restores, too many texts, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas import TOO_MANY_TEXTS, GrantRecord, RunningCountCalibration
from sotto import Driver, Refused, Result
from stream.cli.app import app
from stream.privacy.mechanisms import releases
from stream.privacy.noise.keyed_noise import cell_noise
from stream.worker.families import window_families
from tests.builders import installation, stream
from tests.unit.worker.families.test_window_texts import counts
from tests.unit.worker.families.test_window_texts import shop as shop_of_windows

STEPS = 4
HOUR = "2026-01-05T{:02}:10:00Z"
CLOSED = "2026-01-05T{:02}:00:00Z"


def shop(**changed: Any) -> dict[str, Any]:
    return shop_of_windows(**{"total": 2, **changed})


def so_far(steps: int = STEPS, **changed: Any) -> dict[str, Any]:
    standing = changed.pop("standing", {})
    fields: dict[str, Any] = {
        "mechanism": {"kind": "running_count", "steps": steps},
        "epsilon": 2.0,
        "delta": 1e-5,
        "standing": {"by": ["term"], "window": {"size": "1h"}, "begins": "2026-01-05T08:00:00Z", **standing},
        **changed,
    }
    return stream("terms", "shop", **fields)


def events_of_searches(hour: int, counts: dict[str, int], who: str = "p") -> list[dict[str, Any]]:
    """Return searches of different people in one hour."""
    terms = [term for term, count in counts.items() for _ in range(count)]
    return [
        {"who": f"{who}{hour}-{number}", "at": HOUR.format(hour), "term": term, "site": "ab"[number % 2]}
        for number, term in enumerate(terms)
    ]


def day(driver: Driver, *hours: dict[str, int]) -> list[Result]:
    """Return the answers of windows with so many searches each."""
    found: list[Result] = []
    for hour, terms in enumerate(hours, start=8):
        driver.publish("shop", events_of_searches(hour, terms))
        found += driver.advance("shop", CLOSED.format(hour + 1))
    return found


def threshold_of(driver: Driver) -> int:
    [grant] = driver.list_streams("shop")
    assert isinstance(grant, GrantRecord)
    assert isinstance(grant.calibration, RunningCountCalibration)
    return grant.calibration.threshold or 0


@pytest.mark.parametrize("partitions", [1, 3])
def test_text_is_released_once_enough_people_have_it_so_far(partitions: int) -> None:
    driver = installation(so_far(), sources=[shop()], partitions=partitions)
    some = threshold_of(driver) // 2
    results = day(driver, {"shoes": 200, "hat": some}, {"hat": some}, {"hat": 3 * some, "rare": 1}, {})
    assert list(counts(results[0])) == ["shoes"]
    assert list(counts(results[2])) == list(counts(results[3])) == ["shoes", "hat"]
    for result, hat in zip(results[2:], (5 * some, 5 * some), strict=True):
        assert result.alpha is not None
        assert abs(counts(result)["shoes"] - 200) <= result.alpha
        assert abs(counts(result)["hat"] - hat) <= result.alpha
    alphas = [one.alpha or 0 for one in results]
    assert alphas == sorted(alphas)
    assert results[0].basis == "noisy"
    row = results[0].rows()[0]
    assert (row["key"], row["window_start"]) == ("shoes", "2026-01-05T08:00:00Z")


def test_whole_horizon_is_charged_with_the_first_answer() -> None:
    driver = installation(so_far(2), sources=[shop()])
    results = day(driver, {"shoes": 100}, {}, {})
    assert [one.outcome for one in results] == ["answer", "answer"]
    for result in results:
        assert result.spent is not None
        assert (result.spent.epsilon, result.spent.delta) == pytest.approx((2.0, 1e-5))
    driver.close("shop", "terms")
    assert (driver.budget("shop").left.epsilon, driver.budget("shop").left.delta) == pytest.approx((8.0, 9.9e-4))


def test_released_text_stays_released_through_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the second window's noise is far below 0, the text stays released, also after a replay."""
    driver = installation(so_far(), sources=[shop()], partitions=2)

    def fallen(law: Any, subkey: bytes, names: Any) -> Any:
        noise = cell_noise(law, subkey, names)
        for place, name in enumerate(names):
            if name[:16] == (1).to_bytes(8, "big") + (2).to_bytes(8, "big"):
                noise[place] = -1000
        return noise

    monkeypatch.setattr(window_families, "cell_noise", fallen)
    results = day(driver, {"shoes": 100}, {"hat": 100}, {})
    assert [list(counts(one)) for one in results] == [["shoes"]] * 3
    assert counts(results[1])["shoes"] < 0
    assert results[1].intervals is not None
    assert results[1].intervals[0][0] == 1
    driver.redeliver()


def test_person_counts_at_most_the_total_in_all_windows() -> None:
    driver = installation(so_far(), sources=[shop(contribution=2, total=2)])
    for hour in range(8, 12):
        driver.publish(
            "shop",
            [one | {"who": f"p{place % 60}"} for place, one in enumerate(events_of_searches(hour, {"hat": 180}))],
        )
        [result] = driver.advance("shop", CLOSED.format(hour + 1))
        assert abs(counts(result)["hat"] - 120) <= (result.alpha or 0)


def test_texts_that_become_too_many_end_the_releases() -> None:
    driver = installation(so_far(), sources=[shop()], partitions=2)
    many = {f"{number:08}".ljust(40, "x"): 1 for number in range(12_000)}
    first, second, third, _ = day(driver, {"shoes": 100}, many, {"shoes": 9}, {})
    assert list(counts(first)) == ["shoes"]
    for result in (second, third):
        assert (result.keys, result.estimates, result.basis) == ((), (), TOO_MANY_TEXTS)
    driver.redeliver()


def test_noisy_test_ends_the_releases_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter([False, True, False, False])
    monkeypatch.setattr(window_families, "texts_are_too_large", lambda *_: next(verdicts))
    driver = installation(so_far(), sources=[shop()])
    results = day(driver, {"shoes": 100}, {}, {}, {})
    assert [one.basis for one in results] == ["noisy", *[TOO_MANY_TEXTS] * 3]


def test_released_texts_fit_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "MAX_KEYS", 2)
    driver = installation(so_far(), sources=[shop()])
    results = day(driver, {"a": 100, "b": 300}, {"c": 900}, {}, {})
    assert [list(counts(one)) for one in results] == [["b", "a"]] * 4


def test_period_starts_from_nothing() -> None:
    driver = installation(so_far(2), sources=[shop(unit="person-period", period="2h", ahead="7d")], partitions=2)
    driver.advance("shop", "2026-01-05T08:00:00Z")
    results = day(driver, {"shoes": 100}, {"hat": 100}, {"hat": 100}, {})
    found = [counts(one) for one in results]
    assert [set(one) for one in found] == [{"shoes"}, {"hat", "shoes"}, {"hat"}, {"hat"}]
    assert found[2]["hat"] < 150
    driver.redeliver()


@pytest.mark.parametrize(
    ("spec", "changed", "reason"),
    [
        (so_far(standing={"by": ["term", "site"]}), {}, "standing.by: running_count groups by one text attribute"),
        (
            so_far(standing={"count": {"sum": "n"}}),
            {},
            "standing.count: running_count counts events or people of texts",
        ),
        (so_far(standing={"quantile": "site", "count": "events"}), {}, "quantile"),
        (so_far(standing={"window": {"size": "1h", "every": "30m"}}), {}, "must not have overlapping windows"),
        (so_far(), {"total": None}, "does not bound how often a person counts"),
        (so_far(), {"accountant": "zcdp"}, "the accountant 'zcdp' does not add up"),
        (so_far(delta=0.0), {}, "delta: is 0, but releasing a text costs δ"),
        (so_far(epsilon=0.01), {}, "would exceed half of the size limit; raise epsilon"),
        (so_far(epsilon=40.0), {"epsilon": 50.0}, "lower epsilon or raise delta"),
        (so_far(epsilon=20.0), {"epsilon": 50.0, "total": 200}, "does not help: lower the source's total"),
        (so_far(epsilon=0.01), {"total": 200}, "does not help: lower the source's total"),
    ],
)
def test_texts_that_cannot_be_kept_private_are_refused(
    spec: dict[str, Any], changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises((Refused, ValueError)) as refused:
        installation(spec, sources=[shop(**changed)])
    assert reason in str(refused.value)


def test_extension_is_refused() -> None:
    driver = installation(so_far(), sources=[shop()])
    with pytest.raises(Refused, match="its noise was planned for exactly 4 windows"):
        driver.extend("shop", "terms", 1.0)


def test_plan_names_the_threshold_and_compares(tmp_path: Path) -> None:
    declared, wanted = tmp_path / "source.json", tmp_path / "stream.json"
    declared.write_text(json.dumps(shop()))
    wanted.write_text(json.dumps(so_far(24)))
    arguments = ["plan", "--source", str(declared), "--standing", str(wanted)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).stdout
    threshold = threshold_of(installation(so_far(24), sources=[shop()]))
    assert f"a text is published once its noisy running count is at least {threshold}" in shown
    assert f"a text with {threshold:,} counted so far is released with probability 50 %" in shown
    assert "unknown groups a window" in shown
    assert "(unknown_groups): each window's numbers within ±" in shown


def test_threshold_grows_slowly_with_the_horizon() -> None:
    """In a count over 1,000 windows, the least count of a text is less than 15 times that for one window."""
    thresholds = [threshold_of(installation(so_far(steps), sources=[shop()])) for steps in (1, 24, 1000)]
    assert thresholds == sorted(thresholds)
    assert thresholds[2] < 15 * thresholds[0]
