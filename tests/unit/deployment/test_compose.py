"""The compose file starts the intended services, with existing commands and without secrets."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from stream.cli.app import app
from stream.kafka.kafka_files import KAFKA_VERSION
from stream.settings import KEY_FILE_VARIABLE, KEY_VARIABLE, Settings

PROJECT = Path(__file__).parents[3]
COMPOSE = PROJECT / "docker-compose.yml"
OWN = ["topics", "budget", "worker-1", "worker-2", "feed", "monitor", "alerts"]
SERVING = ["budget", "worker-1", "worker-2"]
DASHBOARDS = ["prometheus", "grafana"]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


@pytest.fixture(scope="module")
def services(composed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = composed["services"]
    return found


def stages() -> list[str]:
    return re.split(r"^FROM ", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]


def test_compose_has_exactly_the_intended_services(
    services: dict[str, dict[str, Any]],
) -> None:
    """One Kafka, one budget service, two workers, a feed, and the monitoring."""
    assert list(services) == ["kafka", *OWN, *DASHBOARDS]
    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert {services[name]["image"] for name in OWN} == {services["budget"]["image"]}
    assert all(services[name]["build"] == "." for name in OWN)


@pytest.mark.parametrize("name", OWN)
def test_compose_commands_exist_with_their_options(services: dict[str, dict[str, Any]], name: str) -> None:
    command: Any = typer.main.get_command(app)
    arguments: list[str] = services[name]["command"]
    context = command.make_context("sotto", list(arguments))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        subname, command, rest = command.resolve_command(context, rest)
        context = command.make_context(subname, rest, parent=context)
    assert context.command_path.split()[1] == arguments[0]


@pytest.mark.parametrize("name", [*SERVING, "feed", "monitor", "alerts"])
def test_compose_services_wait_for_topics_and_restart(services: dict[str, dict[str, Any]], name: str) -> None:
    """They wait for Kafka and its topics, and restart after a crash."""
    assert services[name]["depends_on"] == {
        "kafka": {"condition": "service_healthy"},
        "topics": {"condition": "service_completed_successfully"},
    }
    assert services[name]["restart"] == "unless-stopped"
    assert services["topics"]["restart"] == "no"
    assert services["kafka"]["healthcheck"]
    assert services[name]["healthcheck"]


@pytest.mark.parametrize("name", [*SERVING, "feed"])
def test_restarted_container_keeps_its_name_in_the_group(services: dict[str, dict[str, Any]], name: str) -> None:
    assert services[name]["environment"]["SOTTO_INSTANCE"] == "@host"


@pytest.mark.parametrize("name", OWN)
def test_compose_services_use_the_advertised_address_of_kafka(
    services: dict[str, dict[str, Any]], name: str
) -> None:
    advertised = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INSIDE://{services[name]['environment']['SOTTO_BOOTSTRAP']}" in advertised.split(",")


@pytest.mark.parametrize("name", OWN)
def test_compose_variables_are_ones_that_sotto_reads(services: dict[str, dict[str, Any]], name: str) -> None:
    read = {f"SOTTO_{field.upper()}" for field in Settings.model_fields} | {KEY_FILE_VARIABLE}
    assert set(services[name]["environment"]) <= read


@pytest.mark.parametrize("name", SERVING)
def test_health_check_requests_readiness_at_the_metrics_port(
    services: dict[str, dict[str, Any]], name: str
) -> None:
    port = services[name]["environment"]["SOTTO_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in services[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", SERVING)
def test_noise_key_is_a_mounted_file_and_data_is_read_only(
    composed: dict[str, Any], services: dict[str, dict[str, Any]], name: str
) -> None:
    assert services[name]["secrets"] == ["noise_key"]
    assert services[name]["environment"][KEY_FILE_VARIABLE] == "/run/secrets/noise_key"
    assert list(composed["secrets"]["noise_key"]) == ["file"]
    data, temporary = services[name]["volumes"]
    assert data.endswith(":/data:ro")
    assert temporary == services[name]["environment"]["SOTTO_ENGINE_FOLDER"]


def test_monitor_has_a_mounted_folder_of_names_and_no_secret(
    services: dict[str, dict[str, Any]],
) -> None:
    """It has neither a token nor a noise key."""
    monitor = services["monitor"]
    assert "secrets" not in monitor
    assert not {KEY_VARIABLE, KEY_FILE_VARIABLE} & set(monitor["environment"])
    folder, name = monitor["environment"]["SOTTO_MONITOR_NAMES_FILE"].rsplit("/", 1)
    assert folder.startswith("/run/secrets/")
    assert [volume.rpartition(":-")[2] for volume in monitor["volumes"]] == [f"./names}}:{folder}:ro"]
    assert name == "names.json"
    assert "http://127.0.0.1:8080/healthz" in monitor["healthcheck"]["test"][-1]


def test_alerts_are_sent_only_with_a_profile_and_a_mounted_file(
    services: dict[str, dict[str, Any]],
) -> None:
    alerts = services["alerts"]
    assert alerts["profiles"] == ["alerts"]
    assert not {KEY_VARIABLE, KEY_FILE_VARIABLE} & set(alerts["environment"])
    folder, name = alerts["environment"]["SOTTO_ALERTS_FILE"].rsplit("/", 1)
    assert [volume.rpartition(":-")[2] for volume in alerts["volumes"]] == [f"./alerts}}:{folder}:ro"]
    assert name == "alerts.json"
    port = alerts["environment"]["SOTTO_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in alerts["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_have_read_access_only(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    assert service["secrets"] == ["monitor_viewer_token"]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert all((PROJECT / volume.split(":")[0]).is_dir() for volume in service["volumes"])


def test_compose_files_contain_no_secret() -> None:
    for path in (COMPOSE, PROJECT / "Dockerfile"):
        text = path.read_text()
        assert f"{KEY_VARIABLE}:" not in text
        assert f"{KEY_VARIABLE}=" not in text
        assert not re.search(r"\b[0-9a-fA-F]{64}\b", text)
    assert {"*.key", "*.token"} <= set((PROJECT / ".gitignore").read_text().split())
    assert (PROJECT / ".dockerignore").read_text().splitlines()[1] == "*"


def test_compose_publishes_no_port_beyond_this_machine(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", OWN)
def test_containers_have_no_root_capabilities_or_writable_files(
    services: dict[str, dict[str, Any]], name: str
) -> None:
    assert services[name]["user"] == "${SOTTO_UID:-10001}"
    assert services[name]["cap_drop"] == ["ALL"]
    assert services[name]["read_only"] is True


def test_image_is_built_in_stages_and_runs_as_an_ordinary_user() -> None:
    build, final = stages()
    assert "pip install" in build
    assert "pip install" not in final
    assert "COPY --from=build" in final
    assert re.search(r"^USER 10001$", final, flags=re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["sotto"\]$', final, flags=re.MULTILINE)


def test_image_copies_every_package_of_the_project() -> None:
    build, _final = stages()
    shown = {
        line.strip().strip("!") for line in (PROJECT / ".dockerignore").read_text().splitlines() if "!" in line
    }
    copied = {word for line in re.findall(r"^COPY (.+)$", build, flags=re.MULTILINE) for word in line.split()[:-1]}
    assert copied == shown
    assert all((PROJECT / name).exists() for name in copied)


def composer() -> list[str]:
    """Return the command that checks the file: Docker Compose, or otherwise the library that loads its files."""
    docker, loader = shutil.which("docker"), shutil.which("compose-spec")
    if docker and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return [docker, "compose", "--file", str(COMPOSE), "config", "--quiet"]
    if loader:
        return [loader, str(COMPOSE)]
    pytest.skip("neither docker compose nor compose-spec (github.com/compose-spec/compose-go) is installed")


def test_docker_compose_accepts_the_file() -> None:
    environment = {**os.environ, "SOTTO_UID": "10001"}
    accepted = subprocess.run(composer(), capture_output=True, text=True, env=environment, check=False)
    assert accepted.returncode == 0, accepted.stderr


def test_docker_compose_refuses_a_file_with_an_unknown_field(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(COMPOSE.read_text().replace("cap_drop:", "cap_dropped:"))
    command = [str(broken) if word == str(COMPOSE) else word for word in composer()]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
