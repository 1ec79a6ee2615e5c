"""Standard output and standard error of commands: encodings that lack signs, full disks, closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream.cli import app

PROJECT = Path(__file__).parents[3]
PRINTING = """
from stream.cli.app import replace_standard_streams
replace_standard_streams()
from stream.cli.output import say, show_json, show_table
say("ε 1 ± 2 → \\udc80")
show_json({"name": "é😀ε\\x1b"})
show_table("streams", ["stream", "±"], [["s", "ε"]])
"""
VERSION = "import sys; sys.argv = ['sotto', '--version']; from sotto.__main__ import main; main()"


def run(code: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SOTTO_", "PYTHON"))}
    environment = {**kept, "COLUMNS": "80", "PYTHONPATH": str(PROJECT), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", code],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_output_in_any_encoding_is_printed_whole(encoding: str) -> None:
    """Characters that standard output's encoding lacks are replaced by text, and JSON keeps its values."""
    done = run(PRINTING, env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    said, shown, *table = done.stdout.decode(encoding).splitlines()
    plain = (
        "ε 1 ± 2 → " if encoding == "utf-8" else "ε 1 ± 2 → ".encode(encoding, "backslashreplace").decode(encoding)
    )
    assert said == f"{plain}\\udc80"
    assert json.loads(shown) == {"name": "é😀ε\x1b"}
    assert any("s" in line for line in table)


def to_full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def to_closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    ("opened", "arguments", "status", "why"),
    [
        (to_full_disk, ["--version"], 1, "No space left on device"),
        (to_closed_pipe, ["--version"], 141, ""),
        (to_closed_pipe, ["--help"], 141, ""),
        (to_closed_pipe, ["stream", "open", "--help"], 141, ""),
        (to_closed_pipe, ["key", "new", "KEY"], 1, "its reader has closed it"),
    ],
)
def test_output_that_cannot_be_written_ends_the_command(
    opened: Callable[[], int], arguments: list[str], status: int, why: str, tmp_path: Path
) -> None:
    """One line says so; none does if the reader of a pipe has read enough of a command that changes nothing."""
    descriptor, words = opened(), [str(tmp_path / "key") if one == "KEY" else one for one in arguments]
    try:
        done = run(VERSION.replace("'--version'", str(words)[1:-1]), stdout=descriptor)
    finally:
        os.close(descriptor)
    told = f"error: standard output: cannot be written ({why}); the command's changes are kept, but its output is incomplete"
    assert (done.returncode, done.stderr.decode().splitlines()) == (status, [told] * bool(why))


@pytest.mark.parametrize(
    ("words", "changes_nothing"),
    [
        ("", True),
        ("stream", True),
        ("stream list", True),
        ("ask list", False),
        ("answers", True),
        ("ask s", False),
    ],
)
def test_reading_commands_are_told_from_others(words: str, *, changes_nothing: bool) -> None:
    assert app._changes_nothing(words.split()) == changes_nothing


def test_messages_that_cannot_be_written_change_no_status() -> None:
    """A command whose standard error is on a full disk does its work, and ends with its usual status."""
    descriptor = to_full_disk()
    try:
        done = run(VERSION, stderr=descriptor, env={"SOTTO_UNHEARD": "1"})
    finally:
        os.close(descriptor)
    assert done.returncode == 0
    assert done.stdout.startswith(b"sotto ")


def test_width_of_thousands_of_digits_is_ignored() -> None:
    """A command whose ``COLUMNS`` is no width of a terminal prints as if none were given."""
    done = run(PRINTING, env={"COLUMNS": "1" * 4500})
    assert (done.returncode, done.stderr) == (0, b"")


def test_main_raises_a_key_error_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyError is shown as a bug, not as one line about a user's input."""

    def broken() -> None:
        raise KeyError("patients")

    monkeypatch.setattr(app, "app", broken)
    with pytest.raises(KeyError):
        app.main()


def test_an_error_without_text_is_not_silent(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Only a closed pipe of a reading command ends without a line."""

    def time_out() -> None:
        raise TimeoutError

    monkeypatch.setattr(app, "app", time_out)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, "error: no answer in time; try again\n")
