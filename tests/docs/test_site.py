"""The site builds without a warning, and a broken site causes warnings."""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path

import pytest

from schemas import Mechanism
from stream.dev.shipped_cases import cases_of
from stream.settings import Settings, variable_of
from tests.docs.pages import DOCS, PROJECT, page
from tests.docs.sites import build

BROKEN = r"""# Seeded

## Here

[a page that is not there](nowhere.md), [a heading that is not there](page.md#nowhere), [one here](#nowhere),
[a file that is not there](../stream/nowhere.py), ![a figure](nowhere.svg), $\nosuchcommand{x}$.

[This page](page.md), [this heading](page.md#there), [here](#here), [this file](../stream/settings.py) and
[this folder](../stream/tables) are there: $\frac12 \le x$.
"""


@pytest.fixture(scope="module")
def site(built: Path) -> Path:
    return built / "html"


def test_site_builds_without_a_warning(site: Path) -> None:
    assert {path.stem for path in DOCS.rglob("*.md")} <= {path.stem for path in site.rglob("*.html")}


def test_formulas_are_mathml_and_pages_load_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "proofs" / "above-threshold.html").read_text()
    assert text.count("<math") > 50
    assert "MathJax" not in text
    for path in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', path.read_text()), path


def test_reference_has_every_command_setting_and_mechanism(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text()
    for name in (
        "serve",
        "up",
        "ask",
        "answers",
        "plan",
        "simulate",
        "key rotate",
        "source show",
        "stream open",
        "topics create",
    ):
        assert f"sotto {name}" in commands
    settings = (site / "reference/settings.html").read_text()
    assert all(variable_of(name) in settings for name in Settings.model_fields)
    definitions = (site / "reference/definitions.html").read_text()
    assert all(model.__name__ in definitions for model in Mechanism.__args__[0].__args__)
    assert "redeliver" in (site / "reference/python.html").read_text()


def test_audit_page_lists_every_shipped_case(site: Path) -> None:
    page_text = (site / "auditing.html").read_text().replace("’", "'")
    assert all(escape(case.pair, quote=False) in page_text for case in cases_of())


def test_each_seeded_fault_fails_the_build_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    shutil.copytree(DOCS / "extensions", source / "extensions")
    (tmp_path / "stream").symlink_to(PROJECT / "stream")
    (source / "index.md").write_text("# Start\n\n```{toctree}\nseeded\npage\n```\n")
    (source / "page.md").write_text("# Page\n\n## There\n\nText.\n")
    (source / "lost.md").write_text("# Not in the navigation\n")
    (source / "seeded.md").write_text(BROKEN)
    result = build(source, tmp_path)
    assert result.returncode != 0
    warnings = result.stderr.splitlines()
    for broken in (
        *("nowhere.md", "in doc 'page': 'nowhere'", "found: 'nowhere'", "nowhere.py"),
        *("nowhere.svg", "nosuchcommand", "lost.md"),
    ):
        assert any(broken in line for line in warnings), (broken, result.stderr)
    assert sum("WARNING" in line for line in warnings) == 7, result.stderr


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "stream/tables/adult/CITATION.md"])
def test_links_of_pages_outside_the_site_exist(name: str) -> None:
    path = PROJECT / name
    for link in page(path).links:
        if not link.startswith("https://"):
            target, _, heading = link.partition("#")
            assert (path.parent / target).exists(), link
            assert not heading or _has_heading(path.parent / target, heading), link


def _has_heading(path: Path, slug: str) -> bool:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return slug in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
