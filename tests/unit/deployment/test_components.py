"""The Kubernetes components of further services are valid by the API, start the real services, and have no secret."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import kubernetes_validate
import pytest

from stream.kafka.acls import AclRole, default_principal
from stream.settings import Settings, variable_of
from tests.docs.checks import check_command
from tests.unit.deployment.manifests import (
    FILLED_IN,
    KUBERNETES,
    PROJECT,
    Manifest,
    container,
    environment,
    files,
    of_kind,
    pod,
    read,
    selects,
    settings,
    workloads,
)

COMPONENTS = KUBERNETES / "components"


@dataclass(frozen=True)
class Component:
    """A service that a component adds to the base."""

    folder: str
    name: str
    role: AclRole
    manifests: list[Manifest]
    """The manifests of the base with those that the component adds."""

    @property
    def workload(self) -> Manifest:
        return workloads(self.manifests)[self.name]


@pytest.fixture(
    scope="module",
    params=[("alerts", "alerts", AclRole.ALERTS), ("live", "feed", AclRole.FEED)],
    ids=lambda given: given[0],
)
def component(request: pytest.FixtureRequest) -> Component:
    folder, name, role = request.param
    (kustomization,) = read(COMPONENTS / folder / "kustomization.yaml")
    added = (one for resource in kustomization["resources"] for one in read(COMPONENTS / folder / resource))
    return Component(folder, name, role, [*files(), *added])


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_component_manifests_are_valid_by_api(component: Component, version: str) -> None:
    for one in component.manifests:
        kubernetes_validate.validate(one, version, strict=True)


def test_component_runs_command_with_its_settings(component: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests, workload = component.manifests, component.workload
    check_command(" ".join(["sotto", *container(workload)["args"]]))
    assert set(environment(manifests, workload)) <= {variable_of(field) for field in Settings.model_fields}
    taken = settings(manifests, workload, monkeypatch)
    assert f"User:{taken.sasl_username}" == default_principal(component.role, taken)
    assert taken.instance == (FILLED_IN["metadata.name"] if component.role is AclRole.FEED else "")
    mounts = {mount["name"]: mount["mountPath"] for mount in container(workload)["volumeMounts"]}
    assert all(path.startswith("/run/secrets/") for name, path in mounts.items() if name != "tmp")
    if component.role is AclRole.ALERTS:
        assert taken.alerts_file == f"{mounts['alerts']}/alerts.json"
    assert container(workload)["ports"] == [{"name": "metrics", "containerPort": taken.metrics_port}]
    probes = {name: container(workload)[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {"livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_component_metrics_are_found_by_name_if_not_ready(component: Component) -> None:
    (service,) = [
        one["spec"]
        for one in of_kind(component.manifests, "Service")
        if selects({"matchLabels": one["spec"]["selector"]}, component.workload)
    ]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    (port,) = container(component.workload)["ports"]
    assert [(one["port"], one["targetPort"]) for one in service["ports"]] == [
        (port["containerPort"], port["name"])
    ]


def test_component_has_no_noise_key(component: Component) -> None:
    assert "noise" not in str(pod(component.workload))


def test_component_pod_has_rights_of_other_pods(component: Component) -> None:
    own, monitor = component.workload, workloads(component.manifests)["monitor"]
    assert pod(own)["securityContext"] == pod(monitor)["securityContext"]
    assert container(own)["securityContext"] == container(monitor)["securityContext"]
    assert pod(own)["automountServiceAccountToken"] is False
    assert pod(own)["enableServiceLinks"] is False


@pytest.fixture(scope="module")
def backup() -> list[Manifest]:
    return [*files(), *read(COMPONENTS / "backup" / "backup.yaml")]


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_backup_manifests_are_valid_by_api(backup: list[Manifest], version: str) -> None:
    for one in backup:
        kubernetes_validate.validate(one, version, strict=True)


def test_backup_runs_as_its_own_principal_on_its_claim(backup: list[Manifest]) -> None:
    """The job has Kafka's password of the role backup, no noise key, and the rights of other pods."""
    (job,) = [one["spec"]["jobTemplate"] for one in of_kind(backup, "CronJob")]
    (claim,) = of_kind(backup, "PersistentVolumeClaim")
    monitor = workloads(backup)["monitor"]
    given = environment(backup, job)
    principal = default_principal(AclRole.BACKUP, Settings())
    assert f"User:{given['SOTTO_SASL_USERNAME']}" == principal
    assert "noise" not in str(job)
    assert pod(job)["securityContext"] == pod(monitor)["securityContext"]
    assert container(job)["securityContext"] == container(monitor)["securityContext"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container(job)["volumeMounts"]}
    assert mounts["backups"] == given["FOLDER"]
    (volume,) = [one for one in pod(job)["volumes"] if one["name"] == "backups"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_backup_exports_verifies_and_keeps_seven_days(backup: list[Manifest], tmp_path: Path) -> None:
    """The job checks a new file; if the check fails, earlier files are kept, and the failed one for a day."""
    (job,) = [one["spec"]["jobTemplate"] for one in of_kind(backup, "CronJob")]
    for command in ("sotto ledger export FILE", "sotto ledger verify FILE"):
        check_command(command)
    stub = tmp_path / "sotto"
    stub.write_text(
        '#!/bin/sh\necho "$2" >> "$FOLDER/log"\n[ "$2" = verify ] && exit "$STATUS"; set -C; echo > "$3"\n'
    )
    stub.chmod(0o755)
    for status, kept in (("1", {"sotto-old", "sotto-new"}), ("0", {"sotto-new"})):
        folder = tmp_path / status
        folder.mkdir()
        for name, days in (("sotto-old", 8), ("sotto-new", 1), ("unverified-old", 2)):
            file = folder / f"{name}.backup"
            file.touch()
            os.utime(file, (file.stat().st_mtime - 86_400 * days,) * 2)
        for _ in range(2):
            done = subprocess.run(
                [*container(job)["command"], *container(job)["args"]],
                env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "FOLDER": str(folder), "STATUS": status},
                check=False,
            )
            assert done.returncode == int(status)
        assert (folder / "log").read_text().split() == ["export", "verify"] * 2
        names = {path.name.removesuffix(".backup") for path in folder.glob("*.backup")}
        assert kept < names
        made = "sotto-20" if status == "0" else "unverified-20"
        assert all(name.startswith(made) for name in names - kept)


def test_single_sign_on_reaches_its_provider_and_mounts_the_secret() -> None:
    """The component changes only the monitor: it mounts the Secret of the access page, and allows egress to port 443."""
    folder = COMPONENTS / "single-sign-on"
    (kustomization,) = read(folder / "kustomization.yaml")
    assert (kustomization["resources"], kustomization["patches"]) == (["network.yaml"], [{"path": "monitor.yaml"}])
    (policy,) = read(folder / "network.yaml")
    kubernetes_validate.validate(policy, "1.28", strict=True)
    found = workloads(files())
    assert [name for name, one in found.items() if selects(policy["spec"]["podSelector"], one)] == ["monitor"]
    assert policy["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]
    (patch,) = read(folder / "monitor.yaml")
    assert patch["metadata"]["name"] == found["monitor"]["metadata"]["name"]
    assert container(patch)["name"] == container(found["monitor"])["name"]
    (variable,), (mount,), (volume,) = (
        container(patch)["env"],
        container(patch)["volumeMounts"],
        pod(patch)["volumes"],
    )
    assert variable["name"] == variable_of("monitor_oidc_client_secret_file")
    place, _, key = variable["value"].rpartition("/")
    assert (mount["name"], mount["mountPath"]) == (volume["name"], place)
    secret = f"kubectl create secret generic {volume['secret']['secretName']} --from-file={key}={key}"
    assert secret in (PROJECT / "docs" / "how-to" / "access.md").read_text()
