"""The parts of pages that the site's build generates from the code."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import yaml

from schemas import Mechanism
from stream.kafka.acls import AclRole
from stream.kafka.topic_layouts import layout
from stream.processing.topic_names import Topics
from tests.docs.pages import DOCS, PROJECT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("reference", DOCS / "extensions" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(table: str) -> dict[str, list[str]]:
    """Return the rows of a Markdown table by their first cells."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("architecture.md", "channels"),
        ("security.md", "topics"),
        ("security.md", "roles"),
        ("troubleshooting.md", "alerts"),
    ],
)
def test_pages_have_the_marks_of_their_tables(page: str, mark: str, reference: ModuleType) -> None:
    assert f"*`make docs` inserts: {mark}*" in Path(DOCS / page).read_text(encoding="utf-8")
    assert mark in reference.GENERATED


def test_each_mark_has_text(reference: ModuleType) -> None:
    """Each part can be generated, without a build of the site."""
    assert all(generate() for generate in reference.GENERATED.values())


def test_channels_table_names_writers(reference: ModuleType) -> None:
    rows = rows_of(reference.channels())
    assert rows["`queries`"][0] == "producers and feeds"
    assert len(rows) > 12


def test_topics_table_has_every_configuration(reference: ModuleType) -> None:
    rows = rows_of(reference.topic_configurations())
    assert set(rows) == {f"`{one.name}`" for one in layout(Topics("sotto"))}
    assert "`retention.ms=-1`" in rows["`sotto.trail`"][0]


def test_roles_table_has_every_role_with_its_writes(reference: ModuleType) -> None:
    rows = rows_of(reference.role_rights())
    assert set(rows) == {role.value for role in AclRole}
    assert rows["producer"] == ["`queries`", *["–"] * 6]
    assert rows["alerts"][:2] == ["–", "`answers`, `ledger`"]


def test_alerts_table_has_every_rule_with_a_remedy(reference: ModuleType) -> None:
    groups = yaml.safe_load((PROJECT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    rows = rows_of(reference.alert_rules())
    assert set(rows) == {f"`{rule['alert']}`" for group in groups for rule in group["rules"]}
    assert all(condition.startswith("`") and remedy for condition, remedy in rows.values())


def test_definitions_page_names_schemas_of_the_clone_for_each_mechanism() -> None:
    """Without the site, the page's files have the fields of all sources and mechanisms."""
    page = (DOCS / "reference" / "definitions.md").read_text(encoding="utf-8")
    files = re.findall(r"`(?:contract/schemas/)?([a-z-]+\.json)`", page)
    defined = [json.loads((PROJECT / "contract" / "schemas" / one).read_bytes())["$defs"] for one in files]
    assert {one.__name__ for one in get_args(get_args(Mechanism)[0])} <= {name for one in defined for name in one}
    assert "TableSource" in defined[0]
