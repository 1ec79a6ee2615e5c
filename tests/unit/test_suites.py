"""Checks the tables that divide and order the tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.suites import (
    APART,
    COMMIT,
    FIRST,
    SUITES,
    TOGETHER,
    has_commit_tests,
    rank_of,
    rotated,
    scope_of,
    suite_of,
)

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", [*SUITES, *FIRST, *APART, *TOGETHER])
def test_tables_name_existing_tests(path: str) -> None:
    file, _, test = path.partition("::")
    assert (PROJECT / file).exists()
    assert f"def {test.partition('[')[0]}" in ("def " if not test else (PROJECT / file).read_text())


def test_suite_of_uses_longest_path() -> None:
    assert suite_of("tests/unit/cli/test_cli.py::test_a") == COMMIT
    assert suite_of("tests/chaos/test_kills.py::test_a") == "chaos"
    assert suite_of("tests/chaos/test_checker.py::test_a[b]") == COMMIT


def test_has_commit_tests_finds_exceptions_in_full_files() -> None:
    assert has_commit_tests("tests/kafka/test_contract.py")
    assert has_commit_tests("tests/simulation/test_mutations.py")
    assert not has_commit_tests("tests/chaos/test_kills.py")


def test_contributing_lists_every_suite() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    assert [suite for suite in {*SUITES.values()} if f"`{suite}`" not in text] == []


def test_rank_of_orders_slow_files_before_their_folders() -> None:
    expected = [
        "tests/release/test_image.py::test_a",
        "tests/chaos/test_kills.py::test_a",
        "tests/kafka/test_monitor.py::test_a",
        "tests/privacy/test_audit_variants.py::test_a[x]",
        "tests/privacy/test_loss.py::test_a",
        "tests/unit/cli/test_cli.py::test_a",
    ]
    assert all(rank_of(one) < rank_of(other) for one, other in pairwise(expected))
    assert rank_of("tests/kafka/test_up.py::test_a") < rank_of("tests/kafka/test_monitor.py::test_a")


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/unit/cli/test_cli.py::test_a[b::c]", "tests/unit/cli/test_cli.py"),
        ("tests/simulation/test_mutations.py::test_a[b]", "tests/simulation/test_mutations.py::test_a[b]"),
        ("tests/browser/test_top.py::test_a", "a browser"),
    ],
)
def test_scope_of_keeps_files_together_unless_listed(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_rotated_gives_each_worker_another_start_and_all_files() -> None:
    files = [Path(f"test_{number}.py") for number in range(7)]
    orders = [rotated(files, worker, 3) for worker in range(3)]
    assert [order[0] for order in orders] == [files[0], files[2], files[4]]
    assert all(sorted(order) == files for order in orders)
