"""Data folders for new brokers: Kafka's own tool makes the first of a kind, and the others are copies of it with ids of their own.

The tool is a Java program of a second and a half. What it writes depends on Kafka's version, of which each has a cache folder.
"""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from stream.kafka.broker_server import new_cluster_id

__all__ = ["Kind", "copied", "keep"]

Kind = Literal["single", "member"]
"""A node that is alone, or one of several whose voters the properties list."""

_IDENTITY: Final = "meta.properties"


def copied(jars: Path, data: Path, kind: Kind, *, cluster: str, node: int) -> bool:
    """Makes a data folder for a node of a cluster from the one that was kept; returns whether there is one.

    Args:
        jars: Kafka's jars, and where it is kept.
        data: The folder that is made.
        kind: What kind of node it is for.
        cluster: The cluster's id.
        node: The node's number.
    """
    ids = {"cluster.id": cluster, "node.id": str(node)}
    if kind == "member":
        # A single node's folder goes by the same id in its list of voters, and is alone in its cluster.
        ids["directory.id"] = new_cluster_id()
    try:
        shutil.copytree(_kept(jars, kind), data)
        identity = data / _IDENTITY
        told = dict(line.split("=", 1) for line in identity.read_text().splitlines() if not line.startswith("#"))
        identity.write_text("".join(f"{name}={value}\n" for name, value in {**told, **ids}.items()))
    except (OSError, ValueError):
        shutil.rmtree(data, ignore_errors=True)
        return False
    return True


def keep(jars: Path, data: Path, kind: Kind) -> None:
    """Keeps a copy of a data folder that was never used, unless there is one or it cannot be written."""
    kept = _kept(jars, kind)
    if kept.exists():
        return
    # Another may be faster. It appears at once when complete.
    with suppress(OSError), tempfile.TemporaryDirectory(dir=jars, prefix=".formatted-") as folder:
        shutil.copytree(data, Path(folder) / "data").rename(kept)


def _kept(jars: Path, kind: Kind) -> Path:
    return jars / f"formatted-{kind}"
