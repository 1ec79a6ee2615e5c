"""Which tests wait for each other where several processes share them: file by file, and the longest first.

Whoever comes last must not be long, or one process works while the others are done. Tests of some files stand by themselves, so
that each of them is scheduled on its own; some files share what is slow to start, and one process has all of them.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

FIRST = (
    "tests/release/test_image.py",  # waits for the network before all
    "tests/release/test_release.py",
    "tests/docs/test_site.py",
    "tests/kafka/test_up.py",
    "tests/kafka/test_command.py",
    "tests/chaos/",
    "tests/upgrade/test_mixed.py",
    "tests/browser/",
    "tests/kafka/",
    "tests/docs/",
    "tests/simulation/",
    "tests/privacy/test_answer_accuracy.py",
    "tests/privacy/test_audit_variants.py",
    "tests/privacy/",
)
"""What takes longest, from the longest on: a file, or all of a folder that stand here by no name of their own."""

APART = (
    "tests/simulation/test_mutations.py",
    "tests/privacy/test_audit_variants.py",
    "tests/chaos/test_kills.py",
    "tests/chaos/test_network.py",
    "tests/chaos/test_restores.py",
    "tests/chaos/test_starts.py",
)
"""Files whose tests share nothing that is slow to set up."""

TOGETHER = {
    "tests/browser/": "a browser",
    "tests/docs/test_notebook.py": "the site",
    "tests/docs/test_site.py": "the site",
    "tests/kafka/test_security.py": "a secured broker",
    "tests/kafka/test_credentials.py": "a secured broker",
}
"""Files that share what one process starts once."""


class Schedule(LoadFileScheduling):  # type: ignore[misc]  # xdist says nothing of its types
    """Hands out files, single tests of some, and some files as one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """What a test is handed out with: all of one scope go to one process."""
    file = nodeid.partition("::")[0]
    if file in APART:
        return nodeid
    return next((name for path, name in TOGETHER.items() if file.startswith(path)), file)


def place(nodeid: str) -> int:
    """How early a test should be started: by the longest name in the list that it stands under."""
    under = [path for path in FIRST if nodeid.startswith(path)]
    return FIRST.index(max(under, key=len)) if under else len(FIRST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule | None:
    """Take this schedule for ``--dist loadfile``."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would be by how many tests a file has
    return Schedule(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort where several processes share the tests; a single one takes the fast ones first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid))
