"""The notebook runs from its first cell to its last, and its text about its numbers is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.docs.pages import DOCS

NOTEBOOK = DOCS / "notebook.ipynb"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def read(path: Path = NOTEBOOK) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def cell_outputs(built: Path) -> list[Any]:
    """The outputs of all cells, in order, from the build of the site."""
    notebook = read(built / "jupyter_execute" / NOTEBOOK.name)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in read().cells]
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.fixture(scope="module")
def printed_text(cell_outputs: list[Any]) -> str:
    return ESCAPES.sub("", "\n".join(one.text for one in cell_outputs if one.output_type == "stream"))


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, f"nothing like {pattern!r} in:\n{text}"
    return [float(number.replace(",", "")) for number in found.groups()]


def test_notebook_has_no_stored_outputs() -> None:
    for cell in read().cells:
        assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


def test_separate_noise_for_each_answer_has_much_more_error(printed_text: str) -> None:
    [estimate] = numbers(r"each count is within ±([\d.,]+)", printed_text)
    [own_noise] = numbers(r"each number is within ±([\d.,]+)", printed_text)
    assert own_noise > 3 * estimate


def test_all_500_questions_are_answered_within_plan_and_grant(printed_text: str) -> None:
    answered, spent = numbers(r"(\d+) answers for ε = ([\d.]+)", printed_text)
    [planned] = numbers(r"each count is within ±([\d.,]+)", printed_text)
    [promised] = numbers(r"each count within ± (\d+); ε = 3 left for other streams", printed_text)
    assert answered == 500
    assert 0 < spent <= 1
    assert promised == round(planned)


def test_every_answer_is_within_its_error_bar(printed_text: str) -> None:
    """Most are far within it."""
    largest, mean, promised = numbers(r"largest error (\d+), mean (\d+); promised ± (\d+)", printed_text)
    within, asked = numbers(r"(\d+) of (\d+) within their own ±", printed_text)
    assert within == asked == 500
    assert mean < largest / 2 < promised


def test_closed_stream_refunds_the_unspent_amount(printed_text: str) -> None:
    spent, refunded, left = numbers(r"spent ε = ([\d.]+), refunded ([\d.]+), left ([\d.]+) of 4", printed_text)
    assert refunded > 0
    assert spent + refunded == pytest.approx(1, abs=2e-3)
    assert spent + left == pytest.approx(4, abs=2e-3)


def test_notebook_draws_a_dashboard_and_tables_with_error_bars(cell_outputs: list[Any]) -> None:
    shown = [one.data for one in cell_outputs if "data" in one]
    assert [one for one in shown if "image/png" in one]
    tables = [one["text/html"] for one in shown if "text/html" in one]
    assert any("people ±" in table and "questions" not in table for table in tables)
    assert any("±" in table and "<svg" in table for table in tables)
