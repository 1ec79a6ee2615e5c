"""Errors in the file of targets name the field, and show no address or secret."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from stream.alerts.alert_service import warn_of_unknown_sources
from stream.alerts.alerts_file import AlertmanagerTarget, AlertsError, AlertsFile, WebhookTarget
from stream.cli import monitor_commands, service_commands
from stream.cli.output import CommandError
from stream.cli.service_commands import serve
from tests.unit.alerts.events import alert
from tests.unit.alerts.receiver import SECRET

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_file(tmp_path / "secret", SECRET)
    return tmp_path


def write_file(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def webhook(folder: Path, **fields: Any) -> dict[str, Any]:
    url = "https://hooks.example.org/in-the-address"
    return {"name": "oncall", "kind": "webhook", "url": url, "secret_files": [str(folder / "secret")], **fields}


def alertmanager(**fields: Any) -> dict[str, Any]:
    return {"name": "am", "kind": "alertmanager", "urls": ["http://alertmanager:9093"], **fields}


def test_target_of_a_mistyped_source_is_logged() -> None:
    target = AlertmanagerTarget.model_validate(alertmanager(sources=["flight", "vit*"]), strict=False)
    with capture_logs() as logged:
        warn_of_unknown_sources(target, ["flights", "vitals"])
        warn_of_unknown_sources(target, ["flight@2013-01-01T00:00:00Z", "vitals"])
    [line] = logged
    assert (line["event"], line["target"], line["sources"]) == ("no registered source matches", "am", ["flight"])


def test_target_matches_stream_name_in_each_period() -> None:
    target = AlertmanagerTarget.model_validate(alertmanager(sources=["flights"], streams=["late"]), strict=False)
    assert target.wants("flights@2013-01-01T00:00:00Z", "late@2013-01-01T00:00:00Z")
    assert not target.wants("vitals@2013-01-01T00:00:00Z", "late@2013-01-01T00:00:00Z")
    assert not target.wants("flights@2013-01-01T00:00:00Z", "early@2013-01-01T00:00:00Z")


def test_alerts_file_has_defaults(folder: Path) -> None:
    path = write_file(
        folder / "alerts.json", json.dumps({"targets": [webhook(folder), alertmanager(sources=["fl*"])]})
    )
    first, second = AlertsFile.read(path).targets
    assert isinstance(first, WebhookTarget)
    assert isinstance(second, AlertmanagerTarget)
    assert (first.timeout_seconds, first.give_up, second.resend) == (10.0, "1d", "1m")
    assert first.wants("any", "stream")
    assert second.wants("flights", "late")
    assert not second.wants("vitals", "late")
    assert [len(secret.key) for secret in first.secrets()] == [32]
    assert SECRET not in repr(first.secrets())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "ftp://hooks.example.org/in-the-address"}, ": targets.oncall.url: is not an HTTP address"),
        ({"url": "https:///in-the-address"}, "targets.oncall.url"),
        ({"url": "https://hooks.example.org:99999999/in-the-address"}, "targets.oncall.url"),
        ({"kind": "webhok"}, ": targets.oncall.kind: give one of 'webhook', 'alertmanager'"),
        (
            {"url": "https://hooks.example.org/in-the-address\r\nX-Other: y"},
            "oncall.url: has U+000D, which",
        ),
        (
            {"url": "https://hooks example.org/in-the-address"},
            "oncall.url: has U+0020, which is not allowed",
        ),
        ({"url": "https://hooks.example.org/in-the-address\x00"}, "has U+0000"),
        (
            {"url": "https://hooks|example/in-the-address"},
            "oncall.url: has an invalid host name",
        ),
        (
            {"url": "https://hooks..example/in-the-address"},
            "has an invalid host name; give https://",
        ),
        (
            {"url": "https://in-the-address:pw@hooks.example.org/", "bearer_file": "any"},
            "bearer_file: an address contains a user name or password too; remove one of the two",
        ),
        (
            {"ca_file": "/nowhere/at-all"},
            "target oncall: ca_file: /nowhere/at-all cannot be read (No such file or directory); give a PEM file",
        ),
        ({"ca_file": "/nowhere\x00"}, "ca_file"),
        ({"bearer_file": "/nowhere\x00"}, "bearer_file"),
        ({"secret_files": []}, "secret_files"),
        ({"secret_files": ["a", "b", "c"]}, "secret_files"),
        ({"give_up": "soon"}, "give_up: "),
        ({"name": "on call"}, "targets.0.name: "),
        ({"color": "red"}, "color: unknown field; remove it"),
        ({"secret_files": ["/nowhere/at-all"]}, "target oncall: secret_files: cannot read file /nowhere/at-all"),
        ({"bearer_file": "/nowhere/at-all"}, "target oncall: bearer_file: cannot read"),
    ],
)
def test_alerts_file_error_names_field_without_secrets(folder: Path, change: dict[str, Any], message: str) -> None:
    path = write_file(folder / "alerts.json", json.dumps({"targets": [webhook(folder, **change)]}))
    with pytest.raises(AlertsError) as error:
        AlertsFile.read(path)
    assert message in str(error.value)
    assert "targets: " not in str(error.value)
    assert "in-the-address" not in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "is empty"),
        ("in-the-file\nX: y", "contains line breaks, spaces"),
        ("in-the-file and", "contains line breaks, spaces"),
        ("é", "contains"),
    ],
)
def test_alerts_file_refuses_bearer_that_is_no_header(folder: Path, text: str, found: str) -> None:
    token = write_file(folder / "token", text)
    path = write_file(folder / "alerts.json", json.dumps({"targets": [webhook(folder, bearer_file=token)]}))
    with pytest.raises(AlertsError, match=f"target oncall: bearer_file: {token} {found}") as error:
        AlertsFile.read(path)
    assert "in-the-file" not in str(error.value)


def test_alerts_file_refuses_authorities_without_certificate(folder: Path) -> None:
    authorities = write_file(folder / "ca.pem", "nothing of the kind")
    path = write_file(folder / "alerts.json", json.dumps({"targets": [alertmanager(ca_file=authorities)]}))
    with pytest.raises(
        AlertsError, match=f"target am: ca_file: {authorities} contains no certificate; give a PEM file"
    ):
        AlertsFile.read(path)


@pytest.mark.parametrize("host", ["höoks.example", "a_b.example", "[::1]:9093", "127.0.0.1", "u:p@hooks.example."])
def test_alerts_file_accepts_every_valid_host(folder: Path, host: str) -> None:
    path = write_file(
        folder / "alerts.json", json.dumps({"targets": [alertmanager(urls=[f"http://{host}/x%20y?z=1"])]})
    )
    assert len(AlertsFile.read(path).targets) == 1


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_c2hvcnQ=", SECRET.removeprefix("whsec_"), SECRET * 2]
)
def test_alerts_file_refuses_weak_secret(folder: Path, text: str) -> None:
    write_file(folder / "secret", text)
    path = write_file(folder / "alerts.json", json.dumps({"targets": [webhook(folder)]}))
    with pytest.raises(AlertsError, match="is not a secret; give whsec_ and 24 to 64 random bytes"):
        AlertsFile.read(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": {"stream": "x"}}, "labels: stream is reserved for the alert"),
        ({"labels": {"group_a": "x"}}, "labels: group_a is reserved for the alert"),
        ({"labels": {"a-b": "x"}}, "labels"),
        ({"resend": "500ms"}, "resend: is less than 1s; give 1s or more"),
        ({"urls": []}, "urls"),
    ],
)
def test_alertmanager_target_error_names_field(folder: Path, fields: dict[str, Any], message: str) -> None:
    path = write_file(folder / "alerts.json", json.dumps({"targets": [alertmanager(**fields)]}))
    with pytest.raises(AlertsError, match=message):
        AlertsFile.read(path)


def test_alerts_file_refuses_open_files_and_duplicates(folder: Path) -> None:
    """It refuses files that others may read, names used twice and repeated fields."""
    text = json.dumps({"targets": [webhook(folder)]})
    with pytest.raises(AlertsError, match="is open to others; run 'chmod 600"):
        AlertsFile.read(write_file(folder / "open.json", text, 0o644))
    write_file(folder / "secret", SECRET, 0o640)
    with pytest.raises(AlertsError, match=r"target oncall: secret_files: file .* is open to others"):
        AlertsFile.read(write_file(folder / "alerts.json", text))
    write_file(folder / "secret", SECRET)
    twice = json.dumps({"targets": [webhook(folder), webhook(folder)]})
    with pytest.raises(AlertsError, match="the name oncall is used twice"):
        AlertsFile.read(write_file(folder / "alerts.json", twice))
    with pytest.raises(AlertsError, match="a field is given twice"):
        AlertsFile.read(
            write_file(folder / "alerts.json", text.replace("{", '{"page": "http://a/", "page": "http://b/", ', 1))
        )
    with pytest.raises(AlertsError, match="set SOTTO_ALERTS_FILE"):
        AlertsFile.read("")


def test_alerts_commands_refuse_wrong_file_before_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_ALERTS_FILE", write_file(folder / "alerts.json", "{}"))
    with pytest.raises(AlertsError, match="targets"):
        monitor_commands.serve_alerts(stop_with_stdin=False)
    with pytest.raises(CommandError, match="--processes: only"):
        serve("alerts", processes=2)


def test_guide_shows_a_file_and_docstrings_name_every_field() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "how-to" / "alerts.md").read_text()
    [example] = re.findall(r"^```text\n(\{\n  \"page\".*?\n\})\n```$", guide, flags=re.DOTALL | re.MULTILINE)
    assert len(AlertsFile.model_validate_json(example).targets) == 2
    named = set(re.findall(r"``(\w+)``", f"{WebhookTarget.__doc__} {AlertmanagerTarget.__doc__}"))
    assert {*WebhookTarget.model_fields, *AlertmanagerTarget.model_fields} - {"kind", "url"} <= named
    [message] = re.findall(r"^```text\n(\{\"type\".*?\})\n```$", guide, flags=re.DOTALL | re.MULTILINE)
    assert set(json.loads(message)["data"]) == set(
        json.loads(replace(alert(), monitor_url="https://sotto").body)["data"]
    )


def test_up_refuses_wrong_alerts_file_before_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.cli.service_commands.signal.signal", lambda *_: None)
    file = Path(write_file(folder / "alerts.json", "{}"))
    with pytest.raises(AlertsError, match="targets"):
        service_commands.up(
            workers=1, folder=folder / ".sotto", key_file=None, port=8080, alerts=file, broker_port=None
        )
    assert not (folder / ".sotto" / "broker").exists()
