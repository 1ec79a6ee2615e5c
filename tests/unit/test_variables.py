"""Unknown variables with Sotto's prefix are reported with the probably intended name, and without their values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.wire import describe
from stream.settings import ALL_VARIABLES, Settings, unread_variables_warning, variable_of
from tests.commands import run_sotto

PROJECT = Path(__file__).parents[2]
VALUE = "s3cret"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SOTTO_TABLE_ROOT", "SOTTO_TABLE_ROOTS"),
        ("SOTTO_BATCH_EVENT", "SOTTO_BATCH_EVENTS"),
        ("SOTTO_NOISEKEY_FILE", "SOTTO_NOISE_KEY_FILE"),
        ("SOTTO_MONITOR_TOKN", "SOTTO_MONITOR_TOKEN"),
        ("sotto_prefx", "SOTTO_PREFIX"),
    ],
)
def test_misspelt_variable_is_named_with_the_closest_one(name: str, meant: str) -> None:
    """Its value is not shown."""
    message = unread_variables_warning({name: VALUE, "PATH": "/bin"})
    assert message == f"nothing reads {name} (is {meant} meant?); correct the name or unset it"


def test_variable_unlike_all_others_is_named_alone() -> None:
    """All unknown variables are in one line."""
    message = unread_variables_warning({"SOTTO_ZZZ": VALUE, "SOTTO_TABLE_ROOT": VALUE})
    assert message is not None
    assert message.startswith("nothing reads SOTTO_TABLE_ROOT (is SOTTO_TABLE_ROOTS meant?), SOTTO_ZZZ; ")
    assert len(unread_variables_warning({f"SOTTO_{number}": VALUE for number in range(1000)}) or "") < 500


def test_known_and_foreign_variables_are_not_reported() -> None:
    assert unread_variables_warning(dict.fromkeys(ALL_VARIABLES - {"SOTTO_KERNEL"}, VALUE)) is None
    assert (
        unread_variables_warning({"sotto_prefix": VALUE, "SOTTOVOCE": VALUE, "PATH": VALUE, "SOTTO_KERNEL": ""})
        is None
    )


def test_variables_of_kubernetes_services_are_not_reported() -> None:
    linked = {
        "SOTTO_KAFKA_SERVICE_HOST": "10.0.0.1",
        "SOTTO_KAFKA_SERVICE_PORT": "9092",
        "SOTTO_KAFKA_SERVICE_PORT_CLIENTS": "9092",
        "SOTTO_KAFKA_PORT": "tcp://10.0.0.1:9092",
        "SOTTO_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
    }
    assert unread_variables_warning(linked) is None
    assert "SOTTO_KAFKA_PORTS" in (unread_variables_warning({**linked, "SOTTO_KAFKA_PORTS": "1"}) or "")


@pytest.mark.parametrize("value", ["off", "OFF", ""])
def test_kernel_may_be_switched_off(value: str) -> None:
    assert unread_variables_warning({"SOTTO_KERNEL": value}) is None


@pytest.mark.parametrize("value", ["offf", "on", "no"])
def test_other_value_for_the_kernel_is_reported_as_ineffective(value: str) -> None:
    assert unread_variables_warning({"SOTTO_KERNEL": value}) == (
        "SOTTO_KERNEL has no effect: its only value is 'off'; unset it to use the compiled kernel"
    )


def test_command_warns_once_on_standard_error_alone(tmp_path: Path) -> None:
    result = run_sotto("key", "new", str(tmp_path / "noise.key"), SOTTO_TABLE_ROOT=VALUE)
    assert result.stderr == f"warning: {unread_variables_warning({'SOTTO_TABLE_ROOT': VALUE})}\n"
    assert "warning" not in result.stdout
    assert result.returncode == 0


@pytest.mark.parametrize("is_child", [False, True])
def test_service_warns_in_its_log_unless_its_parent_has(is_child: bool) -> None:
    arguments = ["--stop-with-stdin"] if is_child else []
    result = run_sotto("serve", "budget", "--processes", "2", "--json-logs", *arguments, SOTTO_TABLE_ROOT=VALUE)
    assert result.returncode == 1  # a service without a broker would not end
    assert result.stderr.splitlines()[-1].startswith("error: --processes")
    lines = [json.loads(line) for line in result.stderr.splitlines()[:-1]]
    assert [(one["level"], one["reason"]) for one in lines] == (
        [] if is_child else [("warning", unread_variables_warning({"SOTTO_TABLE_ROOT": VALUE}))]
    )


def test_every_variable_that_is_read_is_known() -> None:
    code = [*(PROJECT / "stream").rglob("*.py"), *(PROJECT / "tests").rglob("*.py"), PROJECT / "hatch_build.py"]
    read = {
        name
        for file in code
        if file != Path(__file__)
        for name in re.findall(r"environ(?:\.get\(|\[)\"(SOTTO_[A-Z_]+)\"", file.read_text())
    }
    deployed = [PROJECT / "docker-compose.yml", PROJECT / "Dockerfile", *(PROJECT / "deploy").rglob("*.yaml")]
    read |= {name for file in deployed for name in re.findall(r"\bSOTTO_[A-Z_]+[A-Z]\b", file.read_text())}
    assert {"SOTTO_SCREENSHOTS", "SOTTO_UID", "SOTTO_KERNEL"} <= read <= ALL_VARIABLES


def settings_refusal(monkeypatch: pytest.MonkeyPatch, **fields: str) -> str:
    for field, value in fields.items():
        monkeypatch.setenv(variable_of(field), value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    return describe(caught.value, variable_of)


@pytest.mark.parametrize(
    ("given", "session", "most"),
    [
        ({"heartbeat_ms": "9000"}, 6000, 2000),
        ({"heartbeat_ms": "2001"}, 6000, 2000),
        ({"session_timeout_ms": "2000"}, 2000, 666),
        ({"heartbeat_ms": "4000", "session_timeout_ms": "10000"}, 10000, 3333),
    ],
)
def test_heartbeat_is_a_third_of_the_session_at_most(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], session: int, most: int
) -> None:
    message = settings_refusal(monkeypatch, **given)
    assert message.startswith("SOTTO_HEARTBEAT_MS: ")
    assert f"a third of SOTTO_SESSION_TIMEOUT_MS ({session} ms)" in message
    assert f"set at most {most}" in message
    monkeypatch.setenv("SOTTO_HEARTBEAT_MS", str(most))
    assert Settings().heartbeat_ms == most


@pytest.mark.parametrize(
    "field", ["heartbeat_ms", "session_timeout_ms", "transaction_timeout_ms", "fetch_bytes", "standby_partitions"]
)
def test_setting_beyond_the_range_of_kafka_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    message = settings_refusal(monkeypatch, **{field: str(10**11)})
    assert message.startswith(f"{variable_of(field)}: 100000000000 is too large; give at most ")
