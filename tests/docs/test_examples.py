"""The examples that need no broker do what they say."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from examples.departures_view import departures as departures_view
from examples.nightly_report.report import STATEMENTS, report
from examples.parquet_folder import visits as parquet_folder
from sotto import Driver
from stream.tables.demo_tables import adult_source
from tests.docs.checks import check_command
from tests.docs.pages import PROJECT, commands, take_apart

NIGHT = datetime(2026, 1, 31, 3, tzinfo=UTC)
FOLDERS = sorted(path.parent for path in (PROJECT / "examples").glob("*/README.md"))


def driver(mechanism: dict[str, Any]) -> Driver:
    made = Driver(noise_key=bytes(32))
    made.register(adult_source(epsilon=4.0))
    spec = {"stream": "nightly", "source": "adult", "epsilon": 1.0, "expected_queries": 100}
    made.open({**spec, "mechanism": mechanism})
    return made


def test_report_has_numbers_with_error_bars_and_the_budget_left() -> None:
    text, complete = report(driver({"kind": "pmw", "attributes": ["age", "sex", "income>50K"]}), "nightly", NIGHT)
    assert complete
    assert "# nightly, 2026-01-31" in text
    truths = {"F": 16_192, "M": 32_650}
    for sex, truth in truths.items():
        found = re.search(rf"\| {sex} \| ([\d,]+) \| ([\d,]+) \|", text)
        assert found, text
        estimate, error = (int(number.replace(",", "")) for number in found.groups())
        assert abs(estimate - truth) <= error + 1
    assert text.count("Cost: ε") == len(STATEMENTS)
    assert "Of adult's ε 4, 3 is left to be granted." in text


def test_second_report_is_free_on_a_stream_with_an_estimate() -> None:
    made = driver({"kind": "pmw", "attributes": ["age", "sex", "income>50K"]})
    first, _ = report(made, "nightly", NIGHT)
    second, _ = report(made, "nightly", NIGHT)
    assert second.count("Cost: ε 0\n") == len(STATEMENTS)
    assert first.count("Cost: ε 0\n") < len(STATEMENTS)


def test_report_of_an_exhausted_grant_is_incomplete() -> None:
    text, complete = report(driver({"kind": "laplace", "answers": 2, "dimensions": 2}), "nightly", NIGHT)
    assert not complete
    assert "Not asked: " in text
    assert "exhausted" in text
    assert "| F |" in text


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_has_a_page_of_one_screen(folder: Any) -> None:
    """Its links and commands are correct."""
    text = (folder / "README.md").read_text()
    assert len(text.splitlines()) <= 40
    found = take_apart(text, folder.name)
    assert [link for link in found.links if not link.startswith("https:") and not (folder / link).exists()] == []
    assert any(link.endswith((".py", ".java")) and (folder / link).exists() for link in found.links)
    for block in found.blocks:
        for command in commands(block.text):
            check_command(command)


def test_folder_of_parquet_files_is_counted_by_duckdb(tmp_path: Path) -> None:
    """The report's number of people and sum are near the truth of the files."""
    parquet_folder.write_visits(tmp_path)
    text = parquet_folder.report(tmp_path)
    visits = {month: pl.read_parquet(tmp_path / f"month={month}" / "visits.parquet") for month in range(1, 13)}
    people = re.search(r"count\(DISTINCT patient\) ([\d.]+)", text)
    wards = re.findall(r"ward (\w+), count\(\*\) ([\d.]+)", text)
    assert people is not None
    assert abs(float(people[1]) - visits[1]["patient"].n_unique()) < 100
    assert [ward for ward, _ in wards] == list(parquet_folder.WARDS)
    # Nearly all patients have fewer than ten visits; four visits of each count.
    assert 0.5 < sum(float(count) for _, count in wards) / sum(part.height for part in visits.values()) < 1


def test_view_of_departures_is_answered_near_the_truth(tmp_path: Path) -> None:
    """All twenty answers about the joined rows are within twice their error bound."""
    departures_view.write_tables(tmp_path)
    found = departures_view.report(tmp_path)
    assert found.height == 20
    assert found.filter((pl.col("answer") - pl.col("truth")).abs() > 2 * pl.col("bound")).is_empty()
