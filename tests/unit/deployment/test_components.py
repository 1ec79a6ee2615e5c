"""The Kubernetes components of further services are what the API takes, run them as they are, and hold no secret."""

from __future__ import annotations

from dataclasses import dataclass

import kubernetes_validate
import pytest

from stream.kafka.topics.acls import AclRole, default_principal
from stream.settings import Settings, variable_of
from tests.docs.checks import check_command
from tests.unit.deployment.manifests import (
    FILLED_IN,
    KUBERNETES,
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
    """The base, and what the component adds to it."""

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
def test_every_manifest_is_what_the_api_takes(component: Component, version: str) -> None:
    for one in component.manifests:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_service_is_the_command_with_its_settings(
    component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_its_figures_are_found_by_name_whether_or_not_it_is_ready(component: Component) -> None:
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


def test_it_holds_no_noise_key(component: Component) -> None:
    assert "noise" not in str(pod(component.workload))


def test_its_pod_may_do_no_more_than_the_others(component: Component) -> None:
    own, monitor = component.workload, workloads(component.manifests)["monitor"]
    assert pod(own)["securityContext"] == pod(monitor)["securityContext"]
    assert container(own)["securityContext"] == container(monitor)["securityContext"]
    assert pod(own)["automountServiceAccountToken"] is False
    assert pod(own)["enableServiceLinks"] is False
