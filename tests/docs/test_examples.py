"""The examples that need no broker do what they say."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from examples.nightly_report.report import STATEMENTS, report
from sotto import Driver
from stream.tables import adult
from tests.docs.checks import check_command
from tests.docs.pages import PROJECT, commands, take_apart

NIGHT = datetime(2026, 1, 31, 3, tzinfo=UTC)
FOLDERS = sorted(path.parent for path in (PROJECT / "examples").glob("*/README.md"))


def driver(mechanism: dict[str, Any]) -> Driver:
    made = Driver(noise_key=bytes(32))
    made.register(adult.source(epsilon=4.0))
    spec = {"stream": "nightly", "source": "adult", "epsilon": 1.0, "expected_queries": 100}
    made.open({**spec, "mechanism": mechanism})
    return made


def test_a_report_has_each_number_with_its_error_bar_and_the_budget_left() -> None:
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


def test_on_a_stream_with_an_estimate_the_second_night_is_free() -> None:
    made = driver({"kind": "pmw", "attributes": ["age", "sex", "income>50K"]})
    first, _ = report(made, "nightly", NIGHT)
    second, _ = report(made, "nightly", NIGHT)
    assert second.count("Cost: ε 0\n") == len(STATEMENTS)
    assert first.count("Cost: ε 0\n") < len(STATEMENTS)


def test_when_the_grant_is_used_up_the_report_says_so_and_is_not_complete() -> None:
    text, complete = report(driver({"kind": "laplace", "answers": 2, "dimensions": 2}), "nightly", NIGHT)
    assert not complete
    assert "Not asked: " in text
    assert "exhausted" in text
    assert "| F |" in text


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_has_a_page_of_one_screen_whose_links_and_commands_are_right(folder: Any) -> None:
    text = (folder / "README.md").read_text()
    assert len(text.splitlines()) <= 40
    found = take_apart(text, folder.name)
    assert [link for link in found.links if not link.startswith("https:") and not (folder / link).exists()] == []
    assert any(link.endswith((".py", ".java")) and (folder / link).exists() for link in found.links)
    for block in found.blocks:
        for command in commands(block.text):
            check_command(command)
