"""The AsyncAPI project's own parser, run by Node.js."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream.kafka.broker_process import file_lock

WARNING = 1
"""Diagnostics have severity 0 (error), 1 (warning), 2 (information) or 3 (hint)."""

_HERE = Path(__file__).parent
_CACHE = Path(__file__).parents[4] / ".sotto" / "cache"
_INSTALL_SECONDS = 300.0
_PARSE_SECONDS = 600.0


def missing() -> str | None:
    """Return what the parser needs and this machine lacks; None if nothing."""
    lacking = [name for name in ("node", "npm") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found; install Node.js 18 or later" if lacking else None


def parse(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the parser's result for each document."""
    result = subprocess.run(
        [_program("node"), str(_installed() / "parse.js"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PARSE_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    findings: list[dict[str, Any]] = json.loads(result.stdout)
    return findings


def _installed() -> Path:
    """Return a folder with the parser in the versions of ``package.json``, which is installed once and then kept."""
    manifest = (_HERE / "package.json").read_bytes()
    folder = _CACHE / f"asyncapi-parser-{hashlib.sha256(manifest).hexdigest()[:12]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock"), _INSTALL_SECONDS):
        done = folder / "installed"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_bytes(manifest)
            _install(folder)
            done.touch()
        shutil.copyfile(_HERE / "parse.js", folder / "parse.js")
    return folder


def _install(folder: Path) -> None:
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    result = subprocess.run(
        [_program("npm"), "install", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_SECONDS,
    )
    assert result.returncode == 0, f"npm could not install the parser; is the network reachable?\n{result.stderr}"


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found
