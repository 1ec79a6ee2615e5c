"""Builds the site like ``make docs``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import PROJECT

SPHINX = "import gc, sys; from sphinx.cmd.build import main; gc.disable(); sys.exit(main(sys.argv[1:]))"
"""Runs Sphinx without garbage collection: it makes millions of nodes that all live until the build ends."""


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site; a warning fails it."""
    command = [sys.executable, "-c", SPHINX, "--fail-on-warning", "--keep-going", "--quiet"]
    return subprocess.run(
        [*command, "--no-color", "-d", str(target / "trees"), str(source), str(target / "html")],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
