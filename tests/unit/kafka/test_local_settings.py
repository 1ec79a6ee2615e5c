"""Without settings of a broker, commands use a local broker's owner-only file in the working folder or a folder above it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.cli.monitor_commands import LOCK_FILE, OPERATOR_FILE, find_monitor, lock_folder
from stream.errors import Unreachable
from stream.kafka.broker_addresses import address_origin, local_address, local_settings
from stream.kafka.broker_process import BrokerState, read_own_state, start_mark, write_state
from stream.monitor.api.tokens import TokenError
from stream.secret_files import SecretFileError
from stream.settings import Settings

TOKEN = "t" * 40


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder whose broker seems to run (as this process) at a port without a listener; the working folder is two below it."""
    for name in list(os.environ):
        if name.startswith("SOTTO_"):
            monkeypatch.delenv(name)
    write_broker_state(tmp_path)
    below = tmp_path / "reports" / "nightly"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def write_broker_state(folder: Path, port: int = 1, mark: str | None = None) -> Path:
    broker = folder / ".sotto" / "broker"
    broker.mkdir(parents=True, exist_ok=True)
    mark = mark or start_mark(os.getpid()) or ""
    write_state(broker, BrokerState(os.getpid(), mark, port))
    return broker / "broker.json"


def test_local_settings_use_broker_of_nearest_folder(project: Path) -> None:
    assert local_settings().bootstrap == "127.0.0.1:1"
    assert local_settings(prefix="other").bootstrap == "127.0.0.1:1"
    assert address_origin(local_settings()) == f"as {project / '.sotto'} says"
    write_broker_state(project / "reports", port=2)
    assert local_settings().bootstrap == "127.0.0.1:2"


def test_local_settings_prefer_given_and_set_values(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_address() is not None
    assert local_settings(bootstrap="kafka:9").bootstrap == "kafka:9"
    # Settings for security refer to another broker than the local one.
    secured = local_settings(security_protocol="SSL")
    assert secured.bootstrap == "127.0.0.1:9092"
    assert address_origin(secured) == "the default: SOTTO_BOOTSTRAP is not set"
    monkeypatch.setenv("SOTTO_BOOTSTRAP", "kafka:8")
    assert local_settings().bootstrap == "kafka:8"
    assert address_origin(local_settings()) == "as SOTTO_BOOTSTRAP says"
    assert address_origin(Settings(bootstrap="127.0.0.1:9092")) == "as given"
    assert project


def test_local_address_ignores_untrusted_or_stale_file(project: Path) -> None:
    file = project / ".sotto" / "broker" / "broker.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert read_own_state(file.parent) is None
    assert local_address() is None
    file.chmod(0o600)
    assert local_address() is not None
    target = file.rename(file.with_name("elsewhere.json"))
    file.symlink_to(target)
    assert local_address() is None
    file.unlink()
    file.write_bytes(b"{")
    file.chmod(0o600)
    assert local_address() is None
    write_broker_state(project, mark="another process of the same number")
    assert local_address() is None


async def test_refused_connection_names_address_and_origin(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connection_error(**fields: str) -> str:
        with pytest.raises(Unreachable) as caught:
            async with AsyncClient(**fields):
                pass
        return str(caught.value)

    assert f"no broker answers at 127.0.0.1:1 (as {project / '.sotto'} says)" in await connection_error()
    assert "127.0.0.1:2 (as given)" in await connection_error(bootstrap="127.0.0.1:2")
    monkeypatch.setenv("SOTTO_BOOTSTRAP", "127.0.0.1:3")
    assert "127.0.0.1:3 (as SOTTO_BOOTSTRAP says); start one with 'sotto broker start'" in await connection_error()


def test_find_monitor_uses_running_installation_and_token(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / ".sotto"
    folder.chmod(0o700)
    (folder / OPERATOR_FILE).write_text(TOKEN)
    (folder / OPERATOR_FILE).chmod(0o600)
    with lock_folder(folder) as holder:
        with pytest.raises(TokenError):
            find_monitor(None, Settings())
        holder.write_addresses("127.0.0.1:1", "http://127.0.0.1:4567/")
        assert find_monitor(None, Settings()) == ("http://127.0.0.1:4567", TOKEN)
        # The token is not sent to an address from the settings.
        with pytest.raises(TokenError):
            find_monitor("http://elsewhere:1/", Settings())
        with pytest.raises(TokenError):
            find_monitor(None, Settings(monitor_port=4567))
        monkeypatch.setenv("SOTTO_MONITOR_TOKEN", "u" * 40)
        assert find_monitor(None, Settings())[1] == "u" * 40
        monkeypatch.delenv("SOTTO_MONITOR_TOKEN")
        (folder / OPERATOR_FILE).chmod(0o644)
        with pytest.raises(SecretFileError, match="open to others"):
            find_monitor(None, Settings())
    (folder / LOCK_FILE).write_text(
        json.dumps({"pid": os.getpid(), "mark": "another", "monitor": "http://127.0.0.1:4567/"})
    )
    with pytest.raises(TokenError):
        find_monitor(None, Settings())
