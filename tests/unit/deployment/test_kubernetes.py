"""The Kubernetes manifests are valid by the API, start the real services, and have no secret.

Each check looks at the files themselves and, where ``kubectl`` or ``kustomize`` is installed, at what they build.
"""

from __future__ import annotations

import copy
import re
import tomllib
import urllib.request
from fractions import Fraction

import kubernetes_validate
import pytest
import yaml

from stream.engine.health import ServiceHealth
from stream.kafka.acls import AclRole, default_principal
from stream.kafka.broker_addresses import free_port
from stream.monitor.api.routes import ROUTES
from stream.settings import KEY_FILE_VARIABLE, Settings, variable_of
from tests.docs.checks import check_command
from tests.unit.deployment.manifests import (
    BASE,
    COMPONENTS,
    EXAMPLE,
    FILLED_IN,
    KUBERNETES,
    PROJECT,
    SERVING,
    TABLES,
    Manifest,
    built,
    container,
    environment,
    files,
    of_kind,
    pod,
    quantity,
    read,
    selects,
    settings,
    settings_of,
    workloads,
)

VERSIONS = ["1.28", kubernetes_validate.latest_version()]


@pytest.fixture(scope="module", params=["files", "base", "example"])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return files() if request.param == "files" else built(BASE if request.param == "base" else EXAMPLE)


def stated_memory() -> list[int]:
    text = " ".join((PROJECT / "docs" / "scaling.md").read_text().split())
    worker = re.search(r"a worker takes at most (\d+) MB, plus (\d+) MB for each partition", text)
    copies = re.search(r"\[warm copies\]\(#warm-copies\): [\d.]+ kB a stream, and at most (\d+) MB", text)
    assert worker is not None
    assert copies is not None
    return [int(number) * 10**6 for number in (*worker.groups(), *copies.groups())]


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_by_api(manifests: list[Manifest], version: str) -> None:
    for one in manifests:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_validation_finds_unknown_field_and_wrong_type(version: str) -> None:
    worker = workloads(files())["worker"]
    for wrong in ({"replicas": "two"}, {"replica": 2}):
        broken = copy.deepcopy(worker)
        broken["spec"] |= wrong
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, version, strict=True)


def test_workloads_are_services_and_job_for_topics(manifests: list[Manifest]) -> None:
    found = workloads(manifests)
    assert set(found) == set(COMPONENTS)
    assert found["topics"]["kind"] == "Job"
    assert {one["kind"] for name, one in found.items() if name != "topics"} == {"Deployment"}
    assert len({container(one)["image"] for one in found.values()}) == 1
    for name, one in found.items():
        check_command(" ".join(["sotto", *container(one)["args"]]))
        assert container(one)["args"][:2] == (["topics", "create"] if name == "topics" else ["serve", name])


def test_example_has_this_version_of_image() -> None:
    (image,) = read(EXAMPLE / "kustomization.yaml")[0]["images"]
    assert image["newTag"] == tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert {container(one)["image"] for one in workloads(files()).values()} == {image["name"]}


@pytest.mark.parametrize("name", COMPONENTS)
def test_variables_are_settings_with_valid_values(
    manifests: list[Manifest], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = workloads(manifests)[name]
    known = {variable_of(field) for field in Settings.model_fields} | {KEY_FILE_VARIABLE}
    assert set(environment(manifests, workload)) <= known
    taken = settings(manifests, workload, monkeypatch)
    assert taken.security_protocol == "SASL_SSL"
    if name != "topics":
        assert f"User:{taken.sasl_username}" == default_principal(AclRole(name), taken)
    assert (KEY_FILE_VARIABLE in environment(manifests, workload)) == (name in SERVING)
    assert taken.instance == (FILLED_IN["metadata.name"] if name in SERVING else "")


@pytest.mark.parametrize("name", COMPONENTS)
def test_files_of_settings_are_mounted_under_secrets(manifests: list[Manifest], name: str) -> None:
    workload = workloads(manifests)[name]
    volumes = {one["name"]: one for one in pod(workload)["volumes"]}
    mounted = {mount["name"]: mount for mount in container(workload)["volumeMounts"]}
    assert set(volumes) == set(mounted)
    there = {
        f"{mounted[volume]['mountPath']}/{item['path']}"
        for volume, one in volumes.items()
        for source in one.get("projected", {}).get("sources", [])
        for item in next(iter(source.values()))["items"]
    }
    named = {value for key, value in environment(manifests, workload).items() if key.endswith("_FILE")}
    assert named == there
    assert all(path.startswith("/run/secrets/") for path in named)
    for one in volumes.values():
        if "projected" in one:
            assert one["projected"]["defaultMode"] == 0o440
            assert mounted[one["name"]]["readOnly"] is True


def test_references_are_created_here_or_on_production_page(
    manifests: list[Manifest],
) -> None:
    text = (PROJECT / "docs" / "production.md").read_text().replace("\\\n", " ")
    made = {
        (kind.replace("secret generic", "secret"), name): set(re.findall(r"--from-\w+=([^=\s]+)=", rest))
        for kind, name, rest in re.findall(r"kubectl create (secret generic|configmap) (\S+) (.*)", text)
    }
    asked: dict[tuple[str, str], set[str]] = {}
    for workload in workloads(manifests).values():
        for volume in pod(workload)["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                ((kind, one),) = source.items()
                keys = {item["key"] for item in one["items"]}
                asked.setdefault((kind.lower(), one["name"]), set()).update(keys)
    assert made == asked
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for workload in workloads(manifests).values()
        for volume in pod(workload)["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {one["metadata"]["name"] for one in of_kind(manifests, "PersistentVolumeClaim")}
    assert of_kind(manifests, "Secret") == []


def test_users_are_those_whose_passwords_the_production_page_stores(manifests: list[Manifest]) -> None:
    """The page makes each Secret of the file that has the password of the workload's user."""
    text = (PROJECT / "docs" / "production.md").read_text()
    users = dict(re.findall(r"(sotto-kafka-\S+) --from-file=password=(\S+)\.password", text))
    for workload in workloads(manifests).values():
        [secret] = [
            name
            for volume in pod(workload)["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            if (name := source.get("secret", {}).get("name", "")).startswith("sotto-kafka-")
        ]
        assert (
            users.get(secret, secret.replace("-kafka", ""))
            == environment(manifests, workload)["SOTTO_SASL_USERNAME"]
        )


def test_files_contain_no_secret() -> None:
    text = "\n".join(path.read_text() for path in KUBERNETES.rglob("*") if path.is_file())
    assert not re.search(r"\b[0-9a-fA-F]{32,}\b|BEGIN [A-Z ]*KEY", text)
    assert "SOTTO_SASL_PASSWORD=" not in text
    assert "secretKeyRef" not in text


@pytest.mark.parametrize("name", COMPONENTS)
def test_pods_have_no_root_capabilities_writable_files_or_token(manifests: list[Manifest], name: str) -> None:
    workload = workloads(manifests)[name]
    (user,) = re.findall(r"^USER (\d+)$", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert pod(workload)["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(user),
        "fsGroup": int(user),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(workload)["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod(workload))
    assert all(
        set(volume) & {"projected", "emptyDir"} or volume["persistentVolumeClaim"]["readOnly"]
        for volume in pod(workload)["volumes"]
    )


def test_services_overwrite_no_setting(manifests: list[Manifest]) -> None:
    """A cluster sets variables with a Service's name in pods, and SOTTO_MONITOR_PORT would be one of them."""
    variables = {
        f"{one['metadata']['name'].upper().replace('-', '_')}_PORT" for one in of_kind(manifests, "Service")
    }
    assert variables & {variable_of(field) for field in Settings.model_fields} == {"SOTTO_MONITOR_PORT"}
    assert all(pod(one)["enableServiceLinks"] is False for one in workloads(manifests).values())


@pytest.fixture(scope="module")
def health() -> str:
    """Yield the address of a service's real probes."""
    port = free_port()
    service = ServiceHealth("worker")
    service.set_not_ready_reason("")
    service.serve("127.0.0.1", port)
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("name", SERVING)
def test_services_are_probed_at_their_address(
    manifests: list[Manifest], name: str, health: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = workloads(manifests)[name]
    taken = settings(manifests, workload, monkeypatch)
    assert container(workload)["ports"] == [{"name": "metrics", "containerPort": taken.metrics_port}]
    assert taken.metrics_host == "10.0.0.1"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container(workload)[probe]["httpGet"] == {"path": path, "port": "metrics"}
        with urllib.request.urlopen(health + path, timeout=30) as answer:  # noqa: S310
            assert answer.read() == b"ok\n"


def test_monitor_is_probed_at_its_address(manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads(manifests)["monitor"]
    taken = settings(manifests, workload, monkeypatch)
    assert container(workload)["ports"] == [{"name": "http", "containerPort": taken.monitor_port}]
    assert taken.monitor_host == "10.0.0.1"
    open_paths = {route.path for route in ROUTES if route.access is None}
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert path in open_paths
        assert container(workload)[probe]["httpGet"] == {"path": path, "port": "http"}


def grants_memory() -> int:
    """Return the bytes for the largest number of grants in docs/production.md, with the size of a grant in docs/scaling.md."""
    (each,) = re.findall(
        r"at\s+most (\d+\.\d) kB while the ledger is read", (PROJECT / "docs" / "scaling.md").read_text()
    )
    (room,) = re.findall(r"\[([\d,]+) grants\]", (PROJECT / "docs" / "production.md").read_text())
    return round(float(each) * 1000 * int(room.replace(",", "")))


@pytest.mark.parametrize("name", SERVING)
def test_memory_matches_scaling_page(
    manifests: list[Manifest], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = workloads(manifests)
    taken = settings(manifests, found[name], monkeypatch)
    arguments = container(found["topics"])["args"]
    partitions = int(arguments[arguments.index("--partitions") + 1]) if name == "worker" else 1
    fixed, each, copy_of_one = stated_memory()
    needed = fixed + each * partitions + (taken.standby_partitions * copy_of_one if name == "worker" else 0)
    if name == "budget":
        needed += grants_memory()
    if taken.table_roots:
        # Two versions of the table exist during a refresh.
        needed += 2 * (taken.table_bytes + (128 << 20)) + taken.table_reading_bytes
    resources = container(found[name])["resources"]
    assert needed <= quantity(resources["limits"]["memory"]) <= needed * Fraction(13, 10)
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert set(resources["limits"]) == {"memory"}
    mounts = {mount["mountPath"] for mount in container(found[name])["volumeMounts"]}
    assert set(filter(None, taken.table_roots.split(":"))) <= mounts


def test_disruption_budget_leaves_one_replica(manifests: list[Manifest]) -> None:
    budgets = of_kind(manifests, "PodDisruptionBudget")
    for name in SERVING:
        workload = workloads(manifests)[name]
        (budget,) = [one for one in budgets if selects(one["spec"]["selector"], workload)]
        assert budget["spec"]["maxUnavailable"] < workload["spec"]["replicas"]
        assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert len(budgets) == len(SERVING)


def test_selectors_match_exactly_their_own_pods(manifests: list[Manifest]) -> None:
    found = workloads(manifests)
    for one in of_kind(manifests, "Deployment"):
        assert [name for name, other in found.items() if selects(one["spec"]["selector"], other)] == [
            one["metadata"]["labels"]["app.kubernetes.io/component"]
        ]
    for service in of_kind(manifests, "Service"):
        (workload,) = [one for one in found.values() if selects({"matchLabels": service["spec"]["selector"]}, one)]
        ports = {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]


@pytest.mark.parametrize("name", COMPONENTS)
def test_network_policies_allow_only_dns_kafka_and_own_ports(
    manifests: list[Manifest], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = workloads(manifests)[name]
    policies = [
        one["spec"] for one in of_kind(manifests, "NetworkPolicy") if selects(one["spec"]["podSelector"], workload)
    ]
    assert all(one["podSelector"] for one in policies)  # nobody else's pods
    assert {kind for one in policies for kind in one["policyTypes"]} == {"Ingress", "Egress"}
    kafka = int(settings(manifests, workload, monkeypatch).bootstrap.rpartition(":")[2])
    out = [
        (rule.get("to"), port["port"])
        for one in policies
        for rule in one.get("egress", [])
        for port in rule["ports"]
    ]
    assert {port for _, port in out} == {53, kafka}
    into = [rule for one in policies for rule in one.get("ingress", [])]
    assert [port["port"] for rule in into for port in rule["ports"]] == [
        port["name"] for port in container(workload).get("ports", [])
    ]
    assert all(rule["from"] for rule in into)


def test_pods_have_grace_period_of_compose_file(manifests: list[Manifest]) -> None:
    composed = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    for name, service in (("budget", "budget"), ("worker", "worker-1")):
        given = pod(workloads(manifests)[name])["terminationGracePeriodSeconds"]
        assert f"{given}s" == composed[service]["stop_grace_period"]


def test_example_narrows_only_kafka_egress() -> None:
    def egress(manifests: list[Manifest]) -> list[Manifest]:
        (found,) = [one for one in of_kind(manifests, "NetworkPolicy") if one["metadata"]["name"] == "sotto"]
        rules: list[Manifest] = found["spec"]["egress"]
        return rules

    names, kafka = egress(files())
    (patch,) = read(EXAMPLE / "kafka.yaml")
    assert patch["spec"]["egress"][0] == names
    assert patch["spec"]["egress"][1]["ports"] == kafka["ports"]
    assert patch["spec"]["egress"][1]["to"]


def test_tables_are_mounted_read_only_for_worker_and_budget() -> None:
    assert settings_of(TABLES)["SOTTO_TABLE_ROOTS"] == "/data"
    (component,) = read(TABLES / "kustomization.yaml")
    patched = [one for patch in component["patches"] for one in read(TABLES / patch["path"])]
    assert [one["metadata"]["name"] for one in patched] == ["sotto-worker", "sotto-budget"]
    for one in patched:
        (mount,) = container(one)["volumeMounts"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/data", True)
