"""A feed of vital signs and a stream on it, and commands about them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.preloaded import command

SOURCE = {"source": "vitals", "kind": "values", "neighbors": "add-remove", "epsilon": 4.0, "sensitivity": 1.0}
STREAM = {
    "stream": "ward-7",
    "source": "vitals",
    "epsilon": 1.0,
    "beta": 1e-6,
    "mechanism": {"kind": "above_threshold", "threshold": 1000.0, "cutoff": 3},
}


def run_in(
    *arguments: str, environment: dict[str, str], timeout: float = 120, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return command(arguments, {**os.environ, **environment}, timeout, folder)
