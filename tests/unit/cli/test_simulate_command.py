"""``sotto simulate`` runs a stream on public data, reports the results, and reads no private data."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from stream.cli import plan_output
from stream.cli.app import app
from stream.tables.demo_tables import ADULT_PATH, adult_source

STREAM: dict[str, Any] = {
    "stream": "census",
    "source": "adult",
    "epsilon": 1,
    "expected_queries": 4,
    "mechanism": {"kind": "laplace", "answers": 3},
}
QUESTIONS = ["age > 30", '{"mean": "age"}', "height > 2", '{"group_by": ["sex"]}', "age < 20"]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all needed files, without a reachable Kafka."""
    for name in ("SOTTO_BOOTSTRAP", "SOTTO_TABLE_ROOTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("stream.cli.simulate_command._is_reachable", lambda _: False)
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(STREAM))
    Path("questions.txt").write_text("\n".join(QUESTIONS))
    Path("adult.json").write_text(adult_source(4.0).model_dump_json())
    private = adult_source(4.0).model_dump(mode="json") | {"path": str(tmp_path / "private.csv")}
    Path("private.json").write_text(json.dumps(private))
    header = ",".join(private["attributes"])
    for name in ("private", "public"):
        Path(f"{name}.csv").write_text(f"{header}\n" + "40,F,0,0,0,0,0,0,0,0,0,0,0,0\n" * 50)
    return tmp_path


def simulate(*arguments: str, source: str = "private.json", env: dict[str, str] | None = None) -> Result:
    command = ["simulate", "spec.json", "questions.txt", "--source", source, "--runs", "2", *arguments]
    return CliRunner().invoke(app, command, env={"COLUMNS": "80", **(env or {})})


def simulation_report(
    *arguments: str, source: str = "private.json", env: dict[str, str] | None = None
) -> dict[str, Any]:
    result = simulate("--json", *arguments, source=source, env=env)
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal_text(*arguments: str, source: str = "private.json", env: dict[str, str] | None = None) -> str:
    # Other tests of this process may have configured logs like a service.
    with patch.object(logging.root, "handlers", []):
        result = simulate(*arguments, source=source, env=env)
    assert result.exit_code != 0
    assert result.stdout == ""
    return str(result.exception)


def test_simulate_prints_errors_and_charges_beside_the_promise() -> None:
    """It prints them for each run and for all."""
    found = simulation_report(source="adult.json")
    assert (found["rows"], found["questions"], len(found["runs"])) == (48842, 5, 2)
    assert found["promises"][0].startswith("each number is within ±")
    for run in found["runs"]:
        assert (run["answered"], run["rejected"], run["halted"], run["charged"]) == (3, 1, 1, 3)
        assert run["ended"]["line"] == 5
        assert [one["line"] for one in run["rejections"]] == [3]
        assert run["spent"] == found["reserved"] == {"epsilon": 1.0, "delta": 0.0}
        assert [one["line"] for one in run["errors"]] == [1, 2, 4]
    assert [one["what"] for one in found["figures"]] == ["counts", "means of age", "groups"]
    for one in found["figures"]:
        largest = max(
            error["largest"] for run in found["runs"] for error in run["errors"] if error["what"] == one["what"]
        )
        assert one["largest"] == largest
        assert one["mean"] <= largest
        assert one["alpha"]["largest"] > 0


def test_simulate_accepts_auto_as_an_opening_does() -> None:
    Path("spec.json").write_text(json.dumps(STREAM | {"mechanism": "auto"}))
    assert simulation_report("--synthetic", "500")["mechanism"]["kind"] == "laplace"


def test_simulate_output_fits_eighty_columns() -> None:
    shown = simulate("--synthetic", "1000").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for words in (
        "1,000 generated rows: independent attributes",
        "promised",
        "3 / 3",
        "line 5",
        "line 3 rejected",
    ):
        assert words in shown
    assert "2 runs had an error above the promised α" in shown
    assert "raise expected_queries" not in shown
    Path("spec.json").write_text(json.dumps(STREAM | {"expected_queries": 2}))
    assert "the promise covers the first 2 answers" in simulate("--synthetic", "1000").stdout


def test_seed_repeats_rows_and_noise_and_is_printed_if_drawn() -> None:
    first = simulation_report("--synthetic", "500")
    assert simulation_report("--synthetic", "500", "--seed", str(first["seed"])) == first
    other = simulation_report("--synthetic", "500", "--seed", str(first["seed"] + 1))
    assert other["runs"][0]["errors"] != first["runs"][0]["errors"]


@pytest.mark.parametrize("table", [(), ("--table", "public.csv"), ("--synthetic", "10")])
def test_simulate_refuses_live_topics_with_any_table(table: tuple[str, ...]) -> None:
    live = {
        "source": STREAM["source"],
        "kind": "events",
        "topic": "ops.visits",
        "neighbors": "add-remove",
        "epsilon": 4.0,
        "person": "who",
        "time": "at",
        "attributes": {"age": 100},
    }
    Path("live.json").write_text(json.dumps(live))
    assert "standing streams have no file of questions" in refusal_text(*table, source="live.json")


def test_public_file_replaces_that_of_the_source() -> None:
    found = simulation_report("--table", "public.csv")
    assert found["rows"] == 50
    assert "no ledger was reachable" in found["data"]


def test_private_tables_are_refused_and_not_printed(nowhere: Path) -> None:
    Path("link.csv").symlink_to("private.csv")
    roots = {"SOTTO_TABLE_ROOTS": f"/nowhere:{nowhere}"}
    assert "its own table is private" in refusal_text()
    assert "is the file of source 'adult'" in refusal_text("--table", "private.csv")
    assert "is the file of source 'adult'" in refusal_text("--table", "link.csv")
    assert "SOTTO_TABLE_ROOTS" in refusal_text("--table", "public.csv", env=roots)
    # The shipped table is public, and a made-up table needs no file.
    shipped = {"SOTTO_TABLE_ROOTS": str(ADULT_PATH.parent)}
    assert simulation_report("--table", str(ADULT_PATH), env=shipped)["rows"] == 48842
    assert simulation_report("--synthetic", "10", env=roots)["rows"] == 10


def test_no_file_is_read_if_an_installation_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the installation knows which files are private."""
    monkeypatch.setenv("SOTTO_BOOTSTRAP", "127.0.0.1:1")
    assert "which names the private tables, cannot be read" in refusal_text("--table", "public.csv")
    assert simulation_report("--synthetic", "10")["rows"] == 10


def test_simulate_draws_the_errors_to_a_file() -> None:
    assert "plotted to errors.svg" in simulate("--synthetic", "1000", "--plot", "errors.svg").stdout
    drawn = Path("errors.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert drawn.count('<g id="axes_') == 3


def test_plot_names_parameters_and_hatches_trivial_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trivial error is one that a constant answer would keep."""
    figures: list[Any] = []
    monkeypatch.setattr(plan_output, "_save_figure", lambda figure, _path: figures.append(figure))
    promised = simulation_report("--synthetic", "1000")["method"]
    simulate("--synthetic", "1000", "--plot", "errors.svg")
    simulate("--synthetic", "10", "--plot", "errors.svg")
    wide, narrow = figures
    assert wide.get_suptitle().endswith(" 1,000 rows")
    for axes in wide.axes:
        [line] = [one for one in axes.lines if one.get_label() == f"promised α ({promised})"]
        assert line.get_color() == plan_output.style_of(promised)[0]
    assert not [patch for axes in wide.axes for patch in axes.patches if patch.get_hatch()]
    hatched = [
        (patch.get_y(), axes.get_ylim()[0]) for axes in narrow.axes for patch in axes.patches if patch.get_hatch()
    ]
    assert hatched
    assert all(begin == max(5.0, lowest) for begin, lowest in hatched)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "none.csv"], "there is no file none.csv"),
        (["--table", "spec.json"], "not a .csv, .csv.gz or .parquet file"),
        (["--table", "public.csv", "--synthetic", "5"], "give one of them"),
        (
            ["--synthetic", "5", "--plot", "x.strange"],
            "--plot: cannot plot to x.strange; give a name that ends with",
        ),
        (["--synthetic", "5", "--plot", "errors"], "--plot: cannot plot to errors; give a name that ends with"),
    ],
)
def test_wrong_options_are_one_clear_error(arguments: list[str], words: str) -> None:
    assert words in refusal_text(*arguments)


def test_wrong_files_are_one_clear_error() -> None:
    Path("questions.txt").write_text("TRUE\n{")
    assert refusal_text("--synthetic", "5").startswith("QUESTIONS line 2: ")
    Path("questions.txt").unlink()
    assert "QUESTIONS: cannot read questions.txt" in refusal_text("--synthetic", "5")
    Path("questions.txt").write_text("TRUE\n")
    Path("spec.json").write_text(json.dumps(STREAM | {"source": "others"}))
    assert "SPEC source" in refusal_text("--synthetic", "5")
    Path("spec.json").write_text(json.dumps(STREAM | {"epsilon": 5}))
    assert "5" in refusal_text("--synthetic", "5")
    feed = {"source": "adult", "kind": "values", "neighbors": "replace", "epsilon": 4, "sensitivity": 1}
    Path("feed.json").write_text(json.dumps(feed))
    assert "the source has no table" in refusal_text("--synthetic", "5", source="feed.json")


def test_simulate_without_a_source_reads_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_BOOTSTRAP", "127.0.0.1:1")
    result = CliRunner().invoke(app, ["simulate", "spec.json", "questions.txt", "--synthetic", "5"])
    assert result.exit_code != 0
    assert "give --source" in str(result.exception)
