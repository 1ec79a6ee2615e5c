"""The Kubernetes component of live topics is what the API takes, runs feeds as they are, and holds no secret and no noise key."""

from __future__ import annotations

import kubernetes_validate
import pytest

from stream.kafka.acls import Role, usual_principal
from stream.settings import Settings, variable
from tests.docs.checks import check_command
from tests.unit.deployment.manifests import (
    KUBERNETES,
    Manifest,
    container,
    environment,
    files,
    pod,
    read,
    settings,
    workloads,
)

COMPONENT = KUBERNETES / "components" / "live"


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """The base, and what the component adds to it."""
    (kustomization,) = read(COMPONENT / "kustomization.yaml")
    return [*files(), *(one for name in kustomization["resources"] for one in read(COMPONENT / name))]


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_every_manifest_is_what_the_api_takes(manifests: list[Manifest], version: str) -> None:
    for one in manifests:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_service_is_the_command_with_its_settings(
    manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = workloads(manifests)["feed"]
    check_command(" ".join(["sotto", *container(workload)["args"]]))
    assert set(environment(manifests, workload)) <= {variable(field) for field in Settings.model_fields}
    taken = settings(manifests, workload, monkeypatch)
    assert f"User:{taken.sasl_username}" == usual_principal(Role.FEED, taken)
    mounts = {mount["name"]: mount["mountPath"] for mount in container(workload)["volumeMounts"]}
    assert "noise" not in str(pod(workload))
    assert all(path.startswith("/run/secrets/") for name, path in mounts.items() if name != "tmp")
    assert container(workload)["ports"] == [{"name": "metrics", "containerPort": taken.metrics_port}]
    probes = {name: container(workload)[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {"livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_its_pod_may_do_no_more_than_the_others(manifests: list[Manifest]) -> None:
    feed, monitor = (workloads(manifests)[name] for name in ("feed", "monitor"))
    assert pod(feed)["securityContext"] == pod(monitor)["securityContext"]
    assert container(feed)["securityContext"] == container(monitor)["securityContext"]
    assert pod(feed)["automountServiceAccountToken"] is False
    assert pod(feed)["enableServiceLinks"] is False
