"""``sotto token``: what it prints, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stream.cli.app import app
from stream.cli.output import CommandError
from stream.monitor.api.tokens import TokenError, read_names


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOTTO_MONITOR_NAMES_FILE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["token", *arguments])


def run_successfully(*arguments: str) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.exception
    return result


def list_tokens() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_successfully("list", "--json", "--file", "names.json").stdout)
    return found


def test_token_create_prints_token_once() -> None:
    made = run_successfully("create", "ana", "--role", "viewer", "--expires", "12h", "--file", "names.json")
    token = made.stdout.strip()
    bearer = read_names(Path("names.json")).bearer(token, time.time())
    assert bearer is not None
    assert (bearer.name, bearer.role) == ("ana", "viewer")
    assert bearer.expires == pytest.approx(time.time() + 12 * 3600, abs=600)
    assert "only this time" in made.stderr
    (row,) = list_tokens()
    assert row.keys() == {"id", "name", "role", "created", "expires", "revoked", "standing"}
    assert row["standing"] == "valid"
    secret = token.split("_", 2)[2]
    for again in (
        run_successfully("list", "--file", "names.json"),
        run_successfully("revoke", "ana", "--file", "names.json"),
    ):
        assert secret not in again.output
        assert row["id"] in again.output
    assert list_tokens()[0]["standing"] == "revoked"
    assert "nothing to do" in run_successfully("revoke", row["id"], "--file", "names.json").output


def test_token_create_may_write_token_to_file() -> None:
    made = run_successfully(
        "create", "prometheus", "--role", "viewer", "--expires", "never", "--into", "p.token", "--file", "n"
    )
    text = Path("p.token").read_text().strip()
    assert text not in made.output
    assert stat.S_IMODE(Path("p.token").stat().st_mode) == 0o600
    assert read_names(Path("n")).bearer(text, 1e12) is not None
    again = run("create", "prometheus", "--role", "viewer", "--into", "p.token", "--file", "n")
    assert isinstance(again.exception, CommandError)
    assert len(read_names(Path("n")).tokens) == 1


def test_token_command_uses_given_set_or_nearest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = run("create", "ana", "--role", "viewer")
    assert isinstance(without.exception, CommandError)
    assert "SOTTO_MONITOR_NAMES_FILE" in str(without.exception)
    (tmp_path / ".sotto").mkdir(mode=0o700)
    nearest = tmp_path / ".sotto" / "names.json"
    run_successfully("create", "first", "--role", "viewer", "--file", str(nearest))
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    run_successfully("create", "second", "--role", "viewer")
    assert [token.name for token in read_names(nearest).tokens] == ["first", "second"]
    monkeypatch.setenv("SOTTO_MONITOR_NAMES_FILE", str(tmp_path / "set.json"))
    run_successfully("create", "third", "--role", "operator")
    assert [token.name for token in read_names(tmp_path / "set.json").tokens] == ["third"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "two words", "--role", "viewer"), "name: 'two words'"),
        (("create", "ana", "--role", "viewer", "--expires", "soon"), "--expires: 'soon'"),
        (("create", "ana", "--role", "viewer", "--expires", "0d"), "--expires: '0d'"),
        (("revoke", "nobody"), "no name and no token 'nobody'"),
    ],
)
def test_token_command_names_wrong_argument(arguments: tuple[str, ...], message: str) -> None:
    run_successfully("create", "ben", "--role", "viewer", "--file", "names.json")
    before = Path("names.json").read_bytes()
    result = run(*arguments, "--file", "names.json")
    assert isinstance(result.exception, (CommandError, TokenError))
    assert message in str(result.exception)
    assert Path("names.json").read_bytes() == before


def test_token_list_and_revoke_create_no_file() -> None:
    for arguments in (("list",), ("revoke", "ana")):
        result = run(*arguments, "--file", "names.json")
        assert isinstance(result.exception, CommandError)
        assert not Path("names.json").exists()
