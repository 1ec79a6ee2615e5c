"""``sotto plan --standing`` prints the accuracy and cost that a stream on a live topic then has when it is opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from stream.cli.standing_plans import format_days
from tests.builders import KEY
from tests.unit.feeds.live import flights, standing

HISTOGRAM = {"kind": "histogram", "attributes": ["origin"], "answers": 96}
DAILY = {"window": {"size": "15m"}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "histogram": (HISTOGRAM, {**DAILY, "expected_queries": 96}),
    "running_count": ({"kind": "running_count", "steps": 96}, DAILY),
    "above_threshold": (
        {"kind": "above_threshold", "threshold": 25, "cutoff": 3, "monotone": True},
        {**DAILY, "expected_queries": 3 * 96},
    ),
    "laplace": ({"kind": "laplace", "answers": 3 * 96}, {**DAILY, "expected_queries": 3 * 96}),
}
KINDS["quantiles"] = (KINDS["laplace"][0], {**KINDS["laplace"][1], "quantile": "wait"})
KINDS["all quantiles"] = (HISTOGRAM, {**KINDS["histogram"][1], "quantile": "speed"})
SOURCE = flights(total=8)


def run_plan(folder: Path, spec: dict[str, Any], *options: str, source: dict[str, Any] = SOURCE) -> Any:
    """Return the command's output."""
    declared, wanted = folder / "source.json", folder / "stream.json"
    declared.write_text(json.dumps(source))
    wanted.write_text(json.dumps(spec))
    arguments = ["plan", "--source", str(declared), "--standing", str(wanted), *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


@pytest.mark.parametrize("kind", KINDS)
def test_standing_plan_equals_the_opened_stream(tmp_path: Path, kind: str) -> None:
    mechanism, fields = KINDS[kind]
    spec = standing("s", mechanism, **fields)
    found = json.loads(run_plan(tmp_path, spec, "--json").stdout)
    driver = Driver(KEY)
    driver.register(SOURCE)
    driver.open(spec, acknowledge=True)
    grant = driver.grant("flights", "s")
    assert (found["choice"], found["alpha"]) == (grant.calibration.method, grant.calibration.alpha)
    assert found["cost"]["epsilon"] == pytest.approx(grant.cost.epsilon)
    assert (found["groups"], found["windows"], found["days"]) == (3, 96, 1.0)
    assert found["cost_per_day"] == pytest.approx(grant.cost.epsilon)
    assert "begins" not in found["spec"]["standing"]
    assert found["alpha"] <= min(one["alpha"] for one in found["calibrations"]) * 1.001


def test_running_count_and_window_noise_are_compared(tmp_path: Path) -> None:
    found = {}
    for kind in ("histogram", "running_count"):
        mechanism, fields = KINDS[kind]
        found[kind] = json.loads(run_plan(tmp_path, standing("s", mechanism, **fields), "--json").stdout)
    for kind, other in (("histogram", "running_count"), ("running_count", "histogram")):
        beside = found[kind]["instead"]
        assert beside["spec"]["mechanism"]["kind"] == other
        assert "begins" not in beside["spec"]["standing"]
        assert (beside["alpha"], beside["windows"]) == (found[other]["alpha"], 96)


@pytest.mark.parametrize("kind", KINDS)
def test_standing_plan_prints_windows_days_cost_and_alternative(tmp_path: Path, kind: str) -> None:
    mechanism, fields = KINDS[kind]
    result = run_plan(tmp_path, standing("s", mechanism, **fields))
    assert result.exit_code == 0, result.output
    for words in (
        "3 groups a window",
        "for 96 windows",
        "(1 day)",
        "cost ε 1 in all; if another stream follows whenever the promise ends, ε 1 a day",
        "for the same ε",
    ):
        assert words in result.stdout
    assert "1970" not in result.stdout
    assert len([line for line in result.stdout.splitlines() if line.startswith("│ →")]) == 1


def test_plan_of_the_largest_groups_names_the_histogram_s_attributes(tmp_path: Path) -> None:
    """The command describes and returns the groups that the opening fills in, but not the windows' start."""
    spec = standing("s", HISTOGRAM, **KINDS["histogram"][1], top=2)
    spec["standing"].pop("by", None)
    assert "for the 2 largest groups by origin in windows of 15m; each" in run_plan(tmp_path, spec).stdout
    found = json.loads(run_plan(tmp_path, spec, "--json").stdout)["spec"]["standing"]
    assert (found["by"], found.get("begins")) == (["origin"], None)


def test_standing_plan_of_periods_prints_budget_and_cost_of_each(tmp_path: Path) -> None:
    source = {**SOURCE, "unit": "person-period", "period": "6h"}
    mechanism, fields = KINDS["above_threshold"]
    found = " ".join(run_plan(tmp_path, standing("s", mechanism, **fields), source=source).stdout.split())
    assert "for 24 windows (6 hours), all groups of each, in each period of 6h" in found
    assert "cost ε 1 in each period of 6h, ε 4 a day" in found
    assert "over 24 windows" in found
    as_json = json.loads(run_plan(tmp_path, standing("s", mechanism, **fields), "--json", source=source).stdout)
    assert (as_json["windows"], as_json["days"], as_json["period"]) == (24, 0.25, "6h")
    assert as_json["cost_per_day"] == pytest.approx(4.0)


def test_missing_alternative_has_a_reason(tmp_path: Path) -> None:
    mechanism, fields = KINDS["histogram"]
    hopping = {**fields, "window": {"size": "1h", "every": "15m"}}
    result = run_plan(tmp_path, standing("s", mechanism, **hopping))
    assert (
        "a running count for the same ε: none (standing.window.every: a running count must not have overlapping windows"
        in result.stdout
    )


@pytest.mark.parametrize(
    ("changed", "source", "options", "words"),
    [
        ({"by": ["color"]}, SOURCE, [], "standing.by: name 1 is no attribute of the source"),
        (
            {},
            {**SOURCE, "source": "others"},
            [],
            "--standing: its source is 'flights', but --source defines 'others'",
        ),
        ({}, SOURCE, ["--epsilon", "2"], "--standing: the stream defines its mechanism"),
        (
            {},
            {"kind": "values", "source": "flights", "neighbors": "add-remove", "epsilon": 1, "sensitivity": 1},
            [],
            "--source: is of kind 'values'",
        ),
    ],
)
def test_contradictory_standing_options_are_refused(
    tmp_path: Path, changed: dict[str, Any], source: dict[str, Any], options: list[str], words: str
) -> None:
    result = run_plan(tmp_path, standing(**changed), *options, source=source)
    assert result.exit_code != 0
    assert words in " ".join((result.output + str(result.exception)).split())


def test_standing_plan_needs_a_source(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(standing()))
    result = CliRunner().invoke(app, ["plan", "--standing", str(path)])
    assert "--standing: needs a live topic" in " ".join((result.output + str(result.exception)).split())


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (1234.4, "1,234 days"),
        (1.5, "1.5 days"),
        (1.0, "1 day"),
        (0.25, "6 hours"),
        (2 / 1440, "2 minutes"),
        (2e-4, "17.3 seconds"),
    ],
)
def test_length_of_a_promise_is_in_a_fitting_unit(days: float, text: str) -> None:
    """Not as 0.0048 hours."""
    assert format_days(days) == text
