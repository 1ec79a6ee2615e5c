"""Every list of mechanisms names all kinds of the union ``Mechanism``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stream.dev.audit.shipped_cases import SHIPPED
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.privacy.planning.choices import MODELS
from stream.privacy.planning.plans import MECHANISMS_OF
from tests.chaos.load import MIXED
from tests.unit.processors.mechanisms import KINDS
from tests.unit.processors.refreshes import GOING_ON, KEEPING

PROJECT = Path(__file__).parents[2]
ON_LIVE_TOPICS_ALONE = {"running_count"}
NOT_REFRESHED = {"randomized_response", "unknown_groups"}
"""Mechanisms that need no table, or a table with texts; other tests cover their refreshes."""


def keys_in_script(script: str, constant: str) -> set[str]:
    """Return the keys of an object literal in the monitor's JavaScript."""
    text = (PROJECT / "stream" / "monitor" / "static" / script).read_text()
    [body] = re.findall(rf"const {constant} = \{{\n(.*?)\n\}};", text, re.DOTALL)
    return set(re.findall(r"^  (\w+): ", body, re.MULTILINE))


def kinds_in_table(first_heading: str) -> set[str]:
    """Return the names in a table of docs/mechanisms.md that begins with this heading."""
    text = (PROJECT / "docs" / "mechanisms.md").read_text()
    table = text[text.index(f"| {first_heading} |") :].partition("\n\n")[0]
    return set(re.findall(r"`(\w+)`", table)) & set(MODELS)


@pytest.mark.parametrize(
    ("named", "elsewhere"),
    [
        pytest.param(set(SHIPPED), set(), id="audit cases"),
        pytest.param(set().union(*MECHANISMS_OF.values()), set(), id="sources"),
        pytest.param({one.mechanism["kind"] for one in KINDS}, ON_LIVE_TOPICS_ALONE, id="driver"),
        pytest.param(
            {mechanism["kind"] for _, mechanism in MIXED.values()} | {"above_threshold"},
            ON_LIVE_TOPICS_ALONE,
            id="simulation and chaos",
        ),
        pytest.param(set(GOING_ON | KEEPING), ON_LIVE_TOPICS_ALONE | NOT_REFRESHED, id="refreshes"),
        pytest.param(keys_in_script("mechanisms.js", "SPECS"), set(), id="forms of the page"),
        pytest.param(keys_in_script("format.js", "MECHANISMS"), set(), id="names on the page"),
        pytest.param(keys_in_script("format.js", "WORDS"), set(), id="counters on the page"),
        pytest.param(kinds_in_table("you want"), set(), id="choice in the documents"),
        pytest.param(kinds_in_table("mechanism"), set(), id="accuracy in the documents"),
    ],
)
def test_list_names_every_mechanism(named: set[str], elsewhere: set[str]) -> None:
    assert named | elsewhere == set(MODELS)


def test_mechanisms_with_kept_results_are_those_that_a_refresh_closes() -> None:
    """Their noise must never be added to another version of the data."""
    assert set(RESULTS_KEPT_BY_MECHANISM) == set(KEEPING)
