"""``sotto plan --about pairs`` recommends a mechanism for questions about two attributes."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from schemas import StreamSpec
from stream.cli.app import app
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.workload_choices import (
    StreamParameters,
    compare_mechanisms,
    is_informative,
    mean_count,
)
from tests.builders import installation, source, stream


def command_output(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    return result.stdout


def facts(sizes: tuple[int, ...], rows: int | None = None, neighbors: str = "add-remove") -> SourceFacts:
    universe = math.prod(sizes)
    return SourceFacts(sizes=sizes, universe=universe, rows=rows, neighbors=neighbors, disjoint=True)  # type: ignore[arg-type]


def build_parameters(**more: Any) -> StreamParameters:
    return StreamParameters(**{"epsilon": 1.0, "delta": 0.0, "beta": 0.05, "queries": 1000, **more})


def kinds(sizes: tuple[int, ...], **more: Any) -> list[str]:
    names = [f"a{place}" for place in range(len(sizes))]
    return [one.kind for one in compare_mechanisms(facts(sizes, 6366), names, build_parameters(**more))]


def test_few_cells_select_a_histogram_and_many_attributes_pmw() -> None:
    assert kinds((3, 4, 2))[0] == "histogram"
    assert kinds((5, 6, 7, 6, 4, 6, 6, 6, 2))[0] == "pmw"


def test_expected_error_is_near_the_measured_one() -> None:
    sizes, rows = (4, 3, 5, 2, 3, 4, 2), 5000
    rng = np.random.default_rng(2)
    columns = {f"a{place}": rng.integers(0, size, rows).tolist() for place, size in enumerate(sizes)}
    found = compare_mechanisms(facts(sizes, rows), list(columns), build_parameters())
    for choice in found:
        if choice.kind == "laplace":
            made = installation(
                stream("s", "t", mechanism=choice.mechanism, epsilon=1.0, expected_queries=21),
                sources=[source("t", "table", path="-", attributes=dict(zip(columns, sizes, strict=True)))],
                rows={"t": columns},
            )
            errors: list[float] = []
            for x, y in combinations(range(len(sizes)), 2):
                [answer] = made.ask_many([{"id": f"{x}{y}", "stream": "s", "group_by": [f"a{x}", f"a{y}"]}])
                shape = (sizes[x], sizes[y])
                flat = np.ravel_multi_index((np.array(columns[f"a{x}"]), np.array(columns[f"a{y}"])), shape)
                errors += np.abs(
                    np.array(answer.estimates) - np.bincount(flat, minlength=math.prod(shape))
                ).tolist()
            assert choice.error == pytest.approx(np.mean(errors), rel=0.3)


def test_cell_of_a_histogram_has_the_error_of_a_count_for_the_same_epsilon() -> None:
    found = compare_mechanisms(facts((661, 3)), ["x", "y"], build_parameters(epsilon=4.0))
    errors = {choice.kind: choice.error for choice in found}
    assert errors["histogram"] == errors["laplace"] == pytest.approx(0.25)


def test_plan_about_pairs_names_the_pairs_that_it_leaves_out() -> None:
    """Pairs of more cells than an answer can list do not count; without a number of rows the measured pairs are at most all."""
    said = command_output("plan", "--about", "pairs", "--sizes", "5000,10,20,30,4,6,7", "--epsilon", "1")
    assert "counts of 15 of 21 pairs, without those of over 4,096 cells, of 7 attributes" in said
    assert "measures up to 15 of 15 pairs" in said


def test_recommended_mechanism_is_a_definition() -> None:
    [best, *_] = compare_mechanisms(facts((5, 6, 7)), ["x", "y", "z"], build_parameters())
    spec = StreamSpec.model_validate(stream("s", "t", mechanism=best.mechanism))
    assert spec.mechanism.kind == best.kind


def test_one_attribute_has_no_pairs() -> None:
    with pytest.raises(PlanError, match="workload: one attribute makes no pairs; give more attributes"):
        compare_mechanisms(facts((7,)), ["x"], build_parameters())


def test_informative_counts_exceed_three_times_the_error() -> None:
    assert mean_count(facts((2, 5), 100)) == 10.0
    assert mean_count(facts((2, 5))) is None
    assert is_informative(3.0, 10.0)
    assert not is_informative(4.0, 10.0)


def test_command_prints_the_choice_and_a_warning() -> None:
    common = ["plan", "--about", "pairs", "--sizes", "5,6,7,6,4,6,6,6,2", "--epsilon", "1"]
    shown = command_output(*common, "--rows", "6366")
    assert "→ take pmw" in shown
    assert "not informative" not in shown
    assert "not informative" in command_output(*common, "--rows", "300")
    document = json.loads(command_output(*common, "--rows", "6366", "--json"))
    assert (document["choice"], document["informative"]) == ("pmw", True)
