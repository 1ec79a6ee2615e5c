"""``sotto plan`` plans, compares and draws every mechanism, without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from schemas import Mechanism
from stream.cli.app import app

KINDS = [get_args(one.model_fields["kind"].annotation)[0] for one in get_args(get_args(Mechanism)[0])]
# Plans of multiplicative weights are searched for longer; a number of updates makes them quick.
MORE = {"pmw": ["--rows", "100000", "--cutoff", "50"], "sparse_pmw": ["--rows", "100000", "--cutoff", "50"]}


def plan(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


@pytest.mark.parametrize("kind", KINDS)
def test_every_mechanism_is_planned_and_the_textbook_stands_beside_the_choice(kind: str) -> None:
    found = plan("--mechanism", kind, "--delta", "1e-6", *MORE.get(kind, []))
    methods = [one["method"] for one in found["calibrations"]]
    assert "textbook" in methods
    assert found["choice"] in methods
    assert found["alpha"] <= min(one["alpha"] for one in found["calibrations"]) * 1.001


@pytest.mark.parametrize("kind", KINDS)
def test_people_see_a_table_with_the_choice_marked_and_why(kind: str) -> None:
    # The same parameters as above, so that the plan is known already.
    arguments = ["plan", "--epsilon", "1", "--delta", "1e-6", "--mechanism", kind, *MORE.get(kind, [])]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert len([line for line in result.stdout.splitlines() if line.startswith("│ →")]) == 1
    assert "→ the" in result.stdout


def test_a_wanted_accuracy_is_turned_into_what_it_needs() -> None:
    wanted = 100.0
    found = plan("--mechanism", "above_threshold", "--cutoff", "20", "--alpha", str(wanted))
    needed = float(found["needed"]["ε ≥"])
    reached = plan("--mechanism", "above_threshold", "--cutoff", "20", "--epsilon", str(needed))
    assert 0.99 * wanted <= reached["alpha"] <= wanted
    cutoff = int(found["needed"]["cutoff ≤"])
    assert plan("--mechanism", "above_threshold", "--cutoff", str(cutoff))["alpha"] <= wanted
    assert plan("--mechanism", "above_threshold", "--cutoff", str(cutoff + 1))["alpha"] > wanted


@pytest.mark.parametrize("against", ["epsilon", "cutoff"])
def test_the_error_is_drawn_to_a_file(tmp_path: Path, against: str) -> None:
    path = tmp_path / "error.svg"
    plan("--mechanism", "laplace", "--cutoff", "5", "--plot", str(path), "--against", against)
    drawn = path.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "basic" in drawn or "<path" in drawn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism", "histogram", "--cutoff", "3"], "--cutoff"),
        (["--mechanism", "pmw", "--worst-case"], "mechanism.rows"),
        (["--mechanism", "pmw", "--sizes", "3,x"], "--sizes"),
        (["--mechanism", "histogram", "--plot", "x.svg", "--against", "cutoff"], "--against cutoff"),
        (["--mechanism", "laplace", "--plot", "/no/such/folder/x.svg"], "--plot"),
        (["--mechanism", "laplace", "--plot", "x.strange"], "--plot"),
    ],
)
def test_what_cannot_be_planned_or_drawn_is_one_clear_error(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)
