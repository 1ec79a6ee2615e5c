"""Class paths of Java programs that use the local broker, such as Kafka Streams."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jgo.parse import Coordinate

from stream.kafka.broker_process import BrokerError, file_lock
from stream.kafka.kafka_files import require_own_folder
from stream.kafka.kafka_programs import (
    JARS_LOCK_TIMEOUT_SECONDS,
    PARALLEL_DOWNLOADS,
    describe_fetch_error,
    download,
    fetch_jars,
    maven_context,
    system_certificates,
)


def java_classpath(*coordinates: str) -> str:
    """Returns a class path of Kafka's jars and those of further Maven coordinates.

    Args:
        coordinates: Such as `org.apache.kafka:kafka-streams:4.3.1`; resolved with all dependencies.
            Unlike Kafka's jars, these are not pinned.

    Raises:
        BrokerError: As for `fetch_jars`, and if a coordinate cannot be resolved.
    """
    folder = fetch_jars()
    jars = sorted(folder.glob("*.jar"))
    known = {jar.name for jar in jars}
    for coordinate in coordinates:
        extras = _resolve(coordinate, folder.parent / "maven", known)
        jars += extras
        known.update(jar.name for jar in extras)
    return os.pathsep.join(str(jar) for jar in jars)


def _resolve(coordinate: str, repository: Path, known: Collection[str]) -> list[Path]:
    with file_lock(repository.with_suffix(".lock"), JARS_LOCK_TIMEOUT_SECONDS), system_certificates():
        try:
            repository.mkdir(mode=0o700, exist_ok=True)
            require_own_folder(repository)
            context = maven_context(repository)
            wanted = context.create_dependency(Coordinate.parse(coordinate))
            inputs, others = context.resolver.resolve([wanted])
            dependencies = [*inputs, *(other for other in others if other.scope in {"compile", "runtime"})]
            artifacts = [dependency.artifact for dependency in dependencies]
            with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
                return list(pool.map(download, [one for one in artifacts if one.filename not in known]))
        except BrokerError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise BrokerError(describe_fetch_error(coordinate, error)) from error
