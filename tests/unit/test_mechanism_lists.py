"""Every list of mechanisms names all kinds of the union ``Mechanism``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stream.dev.shipped_cases import SHIPPED
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.privacy.planning.choices import MODELS
from stream.privacy.planning.plans import MECHANISMS_OF
from tests.chaos.load import MIXED
from tests.unit.mechanisms import KINDS
from tests.unit.refreshes import GOING_ON, KEEPING

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


LISTS = {
    "SHIPPED in stream/dev/shipped_cases.py": set(SHIPPED),
    "MECHANISMS_OF in stream/privacy/planning/plans.py": set().union(*MECHANISMS_OF.values()),
    "KINDS in tests/unit/mechanisms.py": {one.mechanism["kind"] for one in KINDS} | ON_LIVE_TOPICS_ALONE,
    "MIXED in tests/chaos/load.py": {mechanism["kind"] for _, mechanism in MIXED.values()}
    | {"above_threshold"}
    | ON_LIVE_TOPICS_ALONE,
    "GOING_ON or KEEPING in tests/unit/refreshes.py": set(GOING_ON | KEEPING)
    | ON_LIVE_TOPICS_ALONE
    | NOT_REFRESHED,
    "SPECS in stream/monitor/static/mechanisms.js": keys_in_script("mechanisms.js", "SPECS"),
    "MECHANISMS in stream/monitor/static/format.js": keys_in_script("format.js", "MECHANISMS"),
    "WORDS in stream/monitor/static/format.js": keys_in_script("format.js", "WORDS"),
    "the table 'you want' in docs/mechanisms.md": kinds_in_table("you want"),
    "the table of α in docs/mechanisms.md": kinds_in_table("mechanism"),
}


@pytest.mark.parametrize("place", LISTS)
def test_list_names_every_mechanism(place: str) -> None:
    assert not set(MODELS) - LISTS[place], f"add these kinds to {place}"
    assert not LISTS[place] - set(MODELS), f"remove these kinds from {place}"


def test_page_knows_the_mechanisms_that_charge_every_answer() -> None:
    """A histogram has ``answers`` too, but charges windows of a live topic, not questions."""
    text = (PROJECT / "stream" / "monitor" / "static" / "mechanisms.js").read_text()
    [listed] = re.findall(r"const ALWAYS_CHARGED = \[(.*)\];", text)
    charging = {kind for kind, model in MODELS.items() if "answers" in model.model_fields} - {"histogram"}
    assert set(re.findall(r"\w+", listed)) == charging, "correct ALWAYS_CHARGED in mechanisms.js"


def test_mechanisms_with_kept_results_are_closed_by_a_refresh() -> None:
    """The noise of these mechanisms must never be added to another version of the data."""
    assert set(RESULTS_KEPT_BY_MECHANISM) == set(KEEPING)
