"""``sotto audit``: its output and its exit status, on real audits of few runs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from stream.cli import demo_command
from stream.cli.app import app
from stream.dev.audit_cases import Case
from stream.dev.shipped_cases import cases_of
from tests.privacy import audit_variants as variants
from tests.privacy.audit_variants import broken


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> Case:
    """Let the command audit only the first case."""
    case = cases_of(["above_threshold"])[0]
    monkeypatch.setattr(demo_command, "cases_of", lambda _: (case,))
    return case


def run_audit(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["audit", *arguments], env={"COLUMNS": "160"})
    return result.exit_code, result.stdout


def test_audit_of_a_shipped_case_exits_with_0(one_case: Case) -> None:
    status, printed = run_audit("--runs", "800", "--json")
    found = json.loads(printed)
    assert status == 0
    assert found["flagged"] is False
    assert [finding["verdict"] for finding in found["findings"]] == ["not flagged"]
    assert found["findings"][0]["epsilon"] == one_case.epsilon
    assert 0.2 * one_case.epsilon < found["findings"][0]["epsilon_at_least"] <= one_case.epsilon


@pytest.mark.usefixtures("one_case")
def test_audit_of_a_broken_variant_exits_with_1() -> None:
    with broken(variants.lsl_5):
        status, printed = run_audit("--runs", "1000")
    assert status == 1
    assert "FLAGGED" in printed
    assert "below above" in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--runs", "10"), "--runs"), (("--false-alarm", "0"), "--false-alarm"), (("--mechanism", "dice"), "dice")],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["audit", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code != 0
    assert named in result.output + str(result.exception)
