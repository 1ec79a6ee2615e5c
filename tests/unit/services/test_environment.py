"""Child processes get no secret that they do not need."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stream.kafka.client.broker_connections import BearerToken
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import Replicas, RoleName, Service
from stream.settings import (
    KAFKA_CREDENTIAL_VARIABLES,
    KEY_FILE_VARIABLE,
    MONITOR_NAMES_VARIABLES,
    MONITOR_TOKEN_VARIABLES,
    NOISE_KEY_VARIABLES,
    SECRET_VARIABLES,
    Settings,
    environment_without,
    variable_of,
)

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def _everything_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "set")


def test_every_secret_setting_is_among_the_secrets() -> None:
    telling = ("password", "token", "key")
    named = {variable_of(name) for name in Settings.model_fields if any(word in name for word in telling)}
    assert named <= SECRET_VARIABLES


class _Child:
    """Replaces a process, which is never started."""

    environment: dict[str, str]

    def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
        _Child.environment = env


@pytest.mark.parametrize(
    ("role", "kept"),
    [("worker", {KEY_FILE_VARIABLE}), ("budget", {KEY_FILE_VARIABLE}), ("monitor", MONITOR_NAMES_VARIABLES)],
)
def test_service_gets_its_own_secrets_alone(
    role: RoleName, kept: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.services.processes.subprocess.Popen", _Child)
    Service(role, Settings(), None if role == "monitor" else tmp_path / "noise.key", tmp_path / "log")
    assert _Child.environment.keys() & SECRET_VARIABLES == kept | KAFKA_CREDENTIAL_VARIABLES
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_replicas_get_no_key_but_their_file_and_no_token() -> None:
    monitors = MONITOR_TOKEN_VARIABLES | MONITOR_NAMES_VARIABLES
    for arguments, needless in (([], monitors), (["--key-file", "noise.key"], monitors | NOISE_KEY_VARIABLES)):
        environment = Replicas(Settings(), "worker", 1, arguments).environment(0)
        assert environment.keys() & SECRET_VARIABLES == SECRET_VARIABLES - needless


def test_replicas_have_separate_names_and_keep_them() -> None:
    for settings, first in ((Settings(instance="a"), "a-0"), (Settings(), None)):
        replicas = Replicas(settings, "feed", 2)
        [one, again], other = (
            [replicas.environment(0)["SOTTO_INSTANCE"] for _ in range(2)],
            replicas.environment(1),
        )
        assert one == again != other["SOTTO_INSTANCE"]
        assert one == first or first is None
        assert Settings(instance=one).instance == one


def test_process_may_be_named_after_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod 7_a.example")
    assert Settings(instance="@host").instance == "pod-7_a.example"
    with pytest.raises(ValidationError):
        Settings(instance="@elsewhere")


def test_key_command_gets_no_secret() -> None:
    names = " ".join(sorted(SECRET_VARIABLES))
    script = f"import os; print('{KEY}' if not set('{names}'.split()) & set(os.environ) else 'a secret is set')"
    assert NoiseKey.from_command(f'{sys.executable} -c "{script}"').secret.hex() == KEY


async def test_token_command_gets_no_secret() -> None:
    script = "import os; print(sum(name.startswith(('SOTTO_NOISE', 'SOTTO_MONITOR', 'SOTTO_SASL')) for name in os.environ))"
    settings = Settings(sasl_token_file="", sasl_token_command=f'{sys.executable} -c "{script}"')
    assert await BearerToken(settings).token() == "0"


def test_environment_keeps_all_other_variables() -> None:
    assert environment_without(SECRET_VARIABLES, {"PATH": "x", "SOTTO_PREFIX": "y", KEY_FILE_VARIABLE: "z"}) == {
        "PATH": "x",
        "SOTTO_PREFIX": "y",
    }
