"""The production page's commands, run in order on a broker with TLS, SCRAM and access lists."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stream.kafka.broker_addresses import free_port
from stream.kafka.kafka_programs import fetch_jars, java_launcher
from stream.secret_files import write_secret
from tests.docs.pages import DOCS, PROJECT, page
from tests.kafka.secured import ADMINISTRATOR, Authority, SecuredKafka

pytestmark = pytest.mark.kafka

PAGE = DOCS / "production.md"
STOP_SECONDS = 30.0
NEW_WORKER = "as sotto-worker-2 sotto serve worker --key-file noise.key 2>> worker.log &\n"
ASK = "as sotto-producer sotto ask report --where \"fever = '1'\" --timeout 120\n"
KUBECTL = """#!/bin/sh
case "$1 $2" in
  "create "*) exec {kubectl} "$@" --dry-run=client -o name ;;
  "apply -k") exec {kubectl} kustomize "$3" > /dev/null ;;
esac
"""
"""A replacement for kubectl that only builds the objects, because the tests have no cluster."""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[SecuredKafka]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    started = SecuredKafka.start(folder)
    try:
        started.add_users([ADMINISTRATOR])
        yield started
    finally:
        started.broker.stop()


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def restart(kafka: SecuredKafka) -> None:
    """Restart the broker, which reads its truststore only then."""
    kafka.broker.stop()
    kafka.broker.start()


def prepare(folder: Path, kafka: SecuredKafka) -> tuple[Path, Path]:
    """Prepare what a reader has: Kafka's tools, the administrator's password and two authorities; return tools and a certificate."""
    tools = folder / "bin"
    tools.mkdir()
    run = f'#!/bin/sh\nexec "{java_launcher()}" -XX:TieredStopAtLevel=1 -Xmx256m -cp "{fetch_jars()}/*"'
    write_program(tools / "kafka-configs.sh", f'{run} kafka.admin.ConfigCommand "$@"\n')
    write_program(tools / "kubectl", KUBECTL.format(kubectl=shutil.which("kubectl") or "true"))
    work = folder / "work"
    work.mkdir()
    (work / "deploy").symlink_to(PROJECT / "deploy")
    (work / "ca.pem").write_bytes(kafka.authority.file.read_bytes())
    write_secret(work / "administrator.password", kafka.passwords[ADMINISTRATOR])
    new = Authority(work, "new-ca")
    with kafka.authority.file.open("ab") as trusted:
        trusted.write(new.file.read_bytes())
    restart(kafka)
    certificate, key = new.issue("broker")
    both = folder / "new-broker.pem"
    write_secret(both, key.read_text() + certificate.read_text())
    return tools, both


def script(kafka: SecuredKafka, certificate: Path) -> str:
    """Return the page's blocks as one program, with the steps that it leaves to the reader: addresses, one broker, restarts."""
    parts = []
    for block in page(PAGE).of_language("sh"):
        if "--delete-config" in block.text:
            parts.append(f'kill "$(jobs -p %2)"\nwait %2\n{NEW_WORKER}{ASK}')
        if "ssl.keystore.location" in block.text:
            parts.append(f"cp {certificate} {kafka.folder / 'broker.pem'}\n")
        if "sotto source add" in block.text:
            parts.append(
                "until grep -q 'partition ready' budget.log && grep -q 'partition ready' worker.log; do sleep 0.2; done\n"
            )
        parts += [f": {block.place}\n", block.text]
    served = f"openssl s_client -connect {kafka.clients} </dev/null 2>/dev/null"
    is_renewed = f"{served} | grep 'issuer=.*new-ca' && renewed=yes && break"
    parts.append(f"renewed=; for try in $(seq 300); do {is_renewed}; sleep 0.2; done; test $renewed\n")
    parts.append(f"mv new-ca.pem ca.pem\ncp ca.pem {kafka.authority.file}\nsotto topics check\n{ASK}")
    text = "".join(parts)
    for shown, used in (
        ("kafka-1:9093,kafka-2:9093,kafka-3:9093", kafka.clients),
        ("--replication 3", "--replication 1"),
        ("/etc/kafka/broker-1.pem", str(kafka.folder / "broker.pem")),
    ):
        assert shown in text
        text = text.replace(shown, used)
    return text


def end_group(leader: subprocess.Popen[bytes]) -> None:
    """End the program and the services that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + STOP_SECONDS
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, number)
            while time.monotonic() < until:
                os.killpg(leader.pid, 0)
                time.sleep(0.1)


def test_production_page_leads_from_a_cluster_to_answers(kafka: SecuredKafka, tmp_path: Path) -> None:
    """There are three answers: the first one, one after the workers' user was rotated, and one with only the new authority.

    The broker then starts again, also with only the new authority, because its own file has the new certificate.
    """
    tools, certificate = prepare(tmp_path, kafka)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOTTO_")}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-euxo", "pipefail", "-c", script(kafka, certificate)]
    with (tmp_path / "output").open("w+") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path / "work",
            env={**kept, "PATH": path, "COLUMNS": "200", "SOTTO_MONITOR_PORT": str(free_port())},
            start_new_session=True,
        )
        try:
            status = running.wait(600)
        finally:
            end_group(running)
        output.seek(0)
        text = output.read()
    assert status == 0, text[-3000:]
    answers = [line for line in text.splitlines() if line.startswith("report ")]
    assert len(answers) == 3
    assert all(" answer " in line for line in answers)
    restart(kafka)
