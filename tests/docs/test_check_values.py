"""Tables of α in the documentation have the planner's values, with the digits of `sotto plan`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from schemas import SparseVectorCalibration
from stream.cli.app import app
from stream.formatting import format_error_bound
from stream.privacy.planning.plans import ranking_error
from tests.docs.pages import DOCS

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
