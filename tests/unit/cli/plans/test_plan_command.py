"""``sotto plan`` plans, compares and draws every mechanism, without a broker."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from schemas import Calibration, Mechanism
from stream.cli import plan_output
from stream.cli.app import app
from stream.cli.output import CommandError
from stream.privacy.planning.inverse_plans import error_curve
from stream.privacy.planning.plans import name_of

KINDS = [get_args(one.model_fields["kind"].annotation)[0] for one in get_args(get_args(Mechanism)[0])]
# The search for plans of multiplicative weights takes longer, unless the number of updates is given.
MORE = {"pmw": ["--rows", "100000", "--cutoff", "50"], "sparse_pmw": ["--rows", "100000", "--cutoff", "50"]}


def plan(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


@pytest.mark.parametrize("kind", KINDS)
def test_plan_has_every_mechanism_beside_its_textbook(kind: str) -> None:
    found = plan("--mechanism", kind, "--delta", "1e-6", *MORE.get(kind, []))
    methods = [one["method"] for one in found["calibrations"]]
    assert "textbook" in methods
    assert found["choice"] in methods
    assert found["alpha"] <= min(one["alpha"] for one in found["calibrations"]) * 1.001


@pytest.mark.parametrize("kind", KINDS)
def test_plan_table_marks_the_choice_and_gives_its_reason(kind: str) -> None:
    # These are the same parameters as above, so the plan is cached.
    arguments = ["plan", "--epsilon", "1", "--delta", "1e-6", "--mechanism", kind, *MORE.get(kind, [])]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert len([line for line in result.stdout.splitlines() if line.startswith(("│ →", "→  "))]) == 1
    assert "→ the" in result.stdout


@pytest.mark.parametrize("kind", ["laplace", "noisy_max", "exponential"])
def test_plan_charges_all_queries_unless_a_cutoff_is_given(kind: str) -> None:
    """This holds for mechanisms that charge each answer."""
    of_queries = plan("--mechanism", kind, "--queries", "100")
    assert of_queries["spec"]["mechanism"]["answers"] == 100
    assert of_queries["alpha"] == plan("--mechanism", kind, "--queries", "100", "--cutoff", "100")["alpha"]
    assert plan("--mechanism", kind, "--queries", "100", "--cutoff", "1")["alpha"] < 0.02 * of_queries["alpha"]


def test_wanted_accuracy_is_converted_to_epsilon_and_cutoff() -> None:
    wanted = 100.0
    found = plan("--mechanism", "above_threshold", "--cutoff", "20", "--alpha", str(wanted))
    needed = float(found["needed"]["ε ≥"])
    reached = plan("--mechanism", "above_threshold", "--cutoff", "20", "--epsilon", str(needed))
    assert 0.99 * wanted <= reached["alpha"] <= wanted
    cutoff = int(found["needed"]["cutoff ≤"])
    assert plan("--mechanism", "above_threshold", "--cutoff", str(cutoff))["alpha"] <= wanted
    assert plan("--mechanism", "above_threshold", "--cutoff", str(cutoff + 1))["alpha"] > wanted


@pytest.mark.parametrize("against", ["epsilon", "cutoff"])
def test_plan_draws_the_error_to_a_file(tmp_path: Path, against: str) -> None:
    path = tmp_path / "error.svg"
    plan("--mechanism", "laplace", "--cutoff", "5", "--plot", str(path), "--against", against)
    drawn = path.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "basic" in drawn or "<path" in drawn


def draw_axes(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """Return the axes of a plot."""
    figures: list[Any] = []
    monkeypatch.setattr(plan_output, "_save_figure", lambda figure, _path: figures.append(figure))
    plan("--plot", "x.svg", *arguments)
    [axes] = figures[-1].axes
    return axes


def test_plot_marks_the_choice_and_hatches_vacuous_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its title names the parameters."""
    arguments = ["--mechanism", "laplace", "--cutoff", "50", "--queries", "60", "--delta", "1e-6"]
    axes = draw_axes(monkeypatch, *arguments, "--rows", "400")
    assert axes.get_title() == "laplace: ε 1, δ 1e-06, β 0.05, cutoff 50, 60 queries, 400 rows"
    [label] = [text for text in axes.get_legend_handles_labels()[1] if text.startswith("chosen")]
    found = plan(*arguments, "--rows", "400")
    assert label == f"chosen: {found['choice']} at ε 1, α {found['alpha']:.4g}"
    [ring] = [line for line in axes.lines if line.get_label() == label]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([1.0], [found["alpha"]])
    [hatched] = [patch for patch in axes.patches if patch.get_hatch()]
    assert hatched.get_y() == 200.0
    assert not [patch for patch in draw_axes(monkeypatch, *arguments).patches if patch.get_hatch()]
    against = draw_axes(monkeypatch, *arguments, "--against", "cutoff")
    assert any(
        text.startswith("chosen") and "at cutoff 50" in text for text in against.get_legend_handles_labels()[1]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_has_one_color_in_every_plot(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The color of a line does not depend on its number of points.
    monkeypatch.setattr(plan_output, "error_curve", partial(error_curve, points=5))
    axes = draw_axes(monkeypatch, "--mechanism", kind, "--delta", "1e-6", *MORE.get(kind, []))
    colors = {
        line.get_label(): line.get_color()
        for line in axes.lines
        if not line.get_label().startswith(("_", "chosen"))
    }
    assert {name_of(one) for one in _listed(kind)} == set(colors)
    assert colors == {name: plan_output.style_of(name)[0] for name in colors}
    assert len(set(colors.values())) == len(colors)


def _listed(kind: str) -> list[Calibration]:
    read: TypeAdapter[Calibration] = TypeAdapter(Calibration)
    found = plan("--mechanism", kind, "--delta", "1e-6", *MORE.get(kind, []))["calibrations"]
    return [read.validate_python(one) for one in found]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism", "histogram", "--cutoff", "3"], "--cutoff"),
        (["--mechanism", "pmw", "--worst-case"], "mechanism.rows"),
        (["--mechanism", "pmw", "--sizes", "3,x"], "--sizes"),
        (["--mechanism", "histogram", "--plot", "x.svg", "--against", "cutoff"], "--against cutoff"),
        (["--mechanism", "laplace", "--plot", "/no/such/folder/x.svg"], "--plot"),
        (["--mechanism", "laplace", "--plot", "x.strange"], "--plot: cannot plot to x.strange"),
        (["--mechanism", "laplace", "--plot", "drawing"], "--plot: cannot plot to drawing"),
    ],
)
def test_impossible_plan_or_plot_is_one_clear_error(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)


@pytest.mark.parametrize("alpha", ["-3", "0", "nan", "inf"])
@pytest.mark.parametrize("what", [["--mechanism", "laplace"], ["--form", "count"]])
def test_invalid_alpha_is_refused_and_nothing_is_planned(what: list[str], alpha: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", *what, "--alpha", alpha])
    assert (result.exit_code, result.stdout) == (1, "")
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == f"--alpha: must be a positive finite number, not {alpha}"


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("laplace", ["--sizes", "5,6"]),
        ("histogram", ["--sizes", "5,6"]),
        ("lazy_histogram", ["--sizes", "5,6"]),
        ("pmw", ["--sizes", "5,6"]),
        ("unknown_groups", ["--delta", "1e-6"]),
        ("above_threshold", ["--sizes", "5,6"]),
    ],
)
def test_on_tables_the_sensitivity_is_the_contribution(kind: str, more: list[str]) -> None:
    arguments = ["--mechanism", kind, "--queries", "20", *more]
    one, many = plan(*arguments), plan(*arguments, "--sensitivity", "25")
    assert many["alpha"] > 20 * one["alpha"]
    assert "each row is taken as one person; if a person has several rows, declare 'person'" in one["counted"]
    assert "of each person at most 25 rows count" in many["counted"]


def test_plan_without_a_source_says_whose_rows_it_counts() -> None:
    """A mechanism that also answers values says it of tables; one that answers no table does not say it."""
    for kind, words in (("laplace", "on a table, each row"), ("histogram", "each row"), ("running_count", "")):
        result = CliRunner().invoke(app, ["plan", "--epsilon", "1", "--mechanism", kind], env={"COLUMNS": "160"})
        said = [line for line in result.stdout.splitlines() if "taken as one person" in line]
        assert [line.startswith(words) for line in said] == [True] * bool(words)
