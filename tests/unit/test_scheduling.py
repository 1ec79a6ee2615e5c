"""The lists of the schedule name files that exist, and say what is handed out first."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.scheduling import APART, FIRST, TOGETHER, place, scope

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", [*FIRST, *APART, *TOGETHER])
def test_all_that_is_listed_exists(path: str) -> None:
    assert (PROJECT / path).exists()


def test_what_takes_longest_is_first_and_a_file_goes_before_its_folder() -> None:
    wanted = [
        "tests/release/test_image.py::test_a",
        "tests/chaos/test_kills.py::test_a",
        "tests/kafka/test_monitor.py::test_a",
        "tests/privacy/test_audit_variants.py::test_a[x]",
        "tests/privacy/test_loss.py::test_a",
        "tests/unit/test_cli.py::test_a",
    ]
    assert all(place(one) < place(other) for one, other in pairwise(wanted))
    assert place("tests/kafka/test_up.py::test_a") < place("tests/kafka/test_monitor.py::test_a")


@pytest.mark.parametrize(
    ("nodeid", "wanted"),
    [
        ("tests/unit/test_cli.py::test_a[b::c]", "tests/unit/test_cli.py"),
        ("tests/simulation/test_mutations.py::test_a[b]", "tests/simulation/test_mutations.py::test_a[b]"),
        ("tests/browser/test_top.py::test_a", "a browser"),
    ],
)
def test_tests_of_a_file_stay_together_unless_they_stand_by_themselves(nodeid: str, wanted: str) -> None:
    assert scope(nodeid) == wanted
