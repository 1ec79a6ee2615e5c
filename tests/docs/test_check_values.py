"""Values in the documentation and names of options in help texts are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from schemas import SparseVectorCalibration
from stream.cli.app import app
from stream.formatting import format_error_bound
from stream.privacy.planning.plans import ranking_error
from tests.docs.pages import DOCS, page

PLANNED = "sotto plan --mechanism above_threshold --epsilon 1 --cutoff 20 --queries 1000 --beta 0.05"


def row(path: Path, opening: str) -> list[str]:
    [found] = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {opening}")]
    return [cell.strip(" *") for cell in found.strip("|").split("|")[1:]]


def calibrations(*changed: str) -> dict[str, SparseVectorCalibration]:
    result = CliRunner().invoke(app, [*shlex.split(PLANNED)[1:], *changed, "--json"], catch_exceptions=False)
    printed: dict[str, Any] = json.loads(result.stdout)
    found = [SparseVectorCalibration.model_validate_json(json.dumps(one)) for one in printed["calibrations"]]
    return {one.method: one for one in found}


def test_check_values_equal_the_command_beside_them() -> None:
    path = DOCS / "proofs" / "above-threshold.md"
    assert PLANNED in path.read_text(encoding="utf-8")
    for cutoff in (1, 20):
        found = calibrations("--cutoff", str(cutoff))
        alphas = [one.alpha for one in found.values()]
        alphas.insert(1, ranking_error(found["textbook"]))
        alphas.append(calibrations("--cutoff", str(cutoff), "--monotone")["one_sided"].alpha)
        assert row(path, f"$c = {cutoff}$, $k = 1000$ ") == [
            format_error_bound(alpha, grouped=True) for alpha in alphas
        ]


def test_quick_start_states_the_true_count_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number beside the first question is exact for the table that the page's program writes."""
    path = DOCS / "quick-start.md"
    [program] = re.findall(r"<<'END'\n(.*?)\nEND\n", path.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    exec(program, {})  # noqa: S102
    asked = re.search(r'--where "(.*)"', "".join(one.text for one in page(path).of_language("sh")))
    assert asked is not None
    count = pl.read_csv("data/survey.csv").filter(pl.sql_expr(asked[1])).height
    assert f"The true number is {count};" in path.read_text(encoding="utf-8")


def _commands(command: Any, path: str = "sotto") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from _commands(command.get_command(context, name), f"{path} {name}")


def test_help_names_only_options_of_its_command() -> None:
    """Options of other commands are quoted with the command, as 'sotto stream show STREAM --json'."""
    for path, command in _commands(typer.main.get_command(app)):
        options = {name for one in command.params for name in one.opts}
        texts = [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]
        own_texts = [re.sub(r"'[^']*'", "", text) for text in texts]
        assert set(re.findall(r"--[a-z][a-z-]*", " ".join(own_texts))) <= options, path
