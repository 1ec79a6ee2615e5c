"""Reads the Kubernetes manifests: their files, the manifests built from them, and the parts of pods."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream.settings import Settings

PROJECT = Path(__file__).parents[3]
KUBERNETES = PROJECT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
TABLES = KUBERNETES / "components" / "tables"
EXAMPLE = KUBERNETES / "overlays" / "example"
SERVING = ["budget", "worker"]
COMPONENTS = ["topics", *SERVING, "monitor"]
FILLED_IN = {"status.podIP": "10.0.0.1", "metadata.name": "pod-7f9c-x2"}

UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "": 1}

Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


def settings_of(folder: Path) -> dict[str, str]:
    lines = (folder / "settings.env").read_text().split()
    return dict(line.split("=", maxsplit=1) for line in lines)


def files() -> list[Manifest]:
    """Return the manifests of the base without ``kubectl``: its files, and the generated ConfigMap."""
    (kustomization,) = read(BASE / "kustomization.yaml")
    generated = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "sotto-settings"},
        "data": settings_of(BASE),
    }
    return [generated, *(one for name in kustomization["resources"] for one in read(BASE / name))]


def built(folder: Path) -> list[Manifest]:
    """Return the manifests that ``kubectl`` or ``kustomize`` builds from a folder."""
    if kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize", str(folder)]
    elif kustomize := shutil.which("kustomize"):
        command = [kustomize, "build", str(folder)]
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def workloads(manifests: list[Manifest]) -> dict[str, Manifest]:
    found = [*of_kind(manifests, "Job"), *of_kind(manifests, "Deployment")]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found}


def pod(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]["spec"]
    return found


def container(workload: Manifest) -> Manifest:
    (found,) = pod(workload)["containers"]
    return dict(found)


def labels(workload: Manifest) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def selects(selector: Manifest, workload: Manifest) -> bool:
    carried = labels(workload)
    return all(carried.get(name) == wanted for name, wanted in selector.get("matchLabels", {}).items()) and all(
        rule["operator"] == "In" and carried.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", [])
    )


def environment(manifests: list[Manifest], workload: Manifest) -> dict[str, str]:
    """Return all variables of a container; values that the cluster sets are an address or the pod's name."""
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "ConfigMap")}
    found: dict[str, str] = {}
    for source in container(workload).get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    for one in container(workload).get("env", []):
        if "value" not in one:
            found[one["name"]] = FILLED_IN[one["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[one["name"]] = one["value"]
    return found


def settings(manifests: list[Manifest], workload: Manifest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("SOTTO_")]:
        monkeypatch.delenv(name)
    for name, value in environment(manifests, workload).items():
        monkeypatch.setenv(name, value)
    return Settings()


def quantity(text: str) -> Fraction:
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|)", str(text)).groups()  # type: ignore[union-attr]
    return Fraction(number) * UNITS[unit]
