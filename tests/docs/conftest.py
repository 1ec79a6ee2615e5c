"""Builds the site once; the build also runs the notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.sites import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site's build: ``html`` has the pages, and ``jupyter_execute`` the notebook with its cells' outputs."""
    target = tmp_path_factory.mktemp("site")
    result = build(DOCS, target)
    assert result.returncode == 0, result.stderr
    return target
