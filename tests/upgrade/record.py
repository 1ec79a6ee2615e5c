"""Keeps the records of this version for tests of later versions: ``python -m tests.upgrade.record NAME``.

The engine and all processors run on the simulated broker, without faults: streams of all mechanisms are opened, asked,
closed and halted. One file gets all committed records, byte for byte; another file gets the version's own code, and replaces
that of the previous version. Run it once, from a checkout of the version to be kept: a file that a later version wrote would
prove nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

from schemas import CloseStream, HaltStream, OpenStream, StreamSpec
from tests.builders import KEY
from tests.chaos.load import ROWS, Questions
from tests.simulation.cast import CASTS, PARTITIONS, SETTINGS
from tests.simulation.schedule import lazily
from tests.simulation.world import World, perform

FOLDER = Path(__file__).parent / "recorded"
ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "sotto", "stream")
CODE_SUFFIX = "-code.tar.xz"
QUESTIONS = 20
WORK_OUTSTANDING, WORK_RATE = 0.006, 0.002


async def _live(world: World) -> dict[str, Any]:
    """Ask, open, close and halt; then return all committed records."""
    world.start("budget")
    world.start("worker")
    world.start("worker")
    questions = Questions(world.streams, 7)
    await _ask(world, questions, QUESTIONS)
    closed, halted = world.streams[0], world.streams[1]
    world.request(CloseStream(request="close", source=closed.source, stream=closed.stream))
    world.request(HaltStream(request="halt", source=halted.source, stream=halted.stream))
    world.request(OpenStream(request="open", stream=closed.model_copy(update={"stream": "opened-later"})))
    while not all(world.has_receipt(name) for name in ("close", "halt", "open")):
        await world.broker.arrival(1.0)
    await _ask(world, questions, QUESTIONS)
    for spec in world.streams:
        if spec.mechanism.kind in {"pmw", "sparse_pmw"}:
            await _ask(world, questions, QUESTIONS, spec)  # until an answer shows that its hypothesis is wrong
    violations = await world.settle() or world.examine()
    if violations:
        raise AssertionError(violations)
    kept = {
        name: getattr(world.topics, name)
        for name in ("queries", "control", "answers", "state", "requests", "charges", "ledger")
    }
    return {
        "asked": world.asked,
        "topics": kept,
        "records": [
            [topic, number, one.offset, one.timestamp, (one.key or b"").decode(), one.value and one.value.decode()]
            for (topic, number), records in world.logs().items()
            if topic in kept.values()
            for one in records
        ],
        "ends": [
            [place.topic, place.partition, log.end]
            for place, log in world.broker.logs.items()
            if place.topic in kept.values()
        ],
        "committed": [
            [name, place.topic, place.partition, offset]
            for name, group in world.broker.groups.items()
            for place, offset in group.offsets.items()
        ],
    }


async def _ask(world: World, questions: Questions, count: int, stream: StreamSpec | None = None) -> None:
    for _ in range(count):
        world.ask(*questions.next(stream))
        await asyncio.sleep(0.3)
    await asyncio.sleep(5.0)


def keep_code(name: str, root: Path) -> None:
    """Keep the Python files of a checkout's packages; the same files make the same archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            text = path.read_bytes()
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    for earlier in FOLDER.glob(f"*{CODE_SUFFIX}"):
        earlier.unlink()
    (FOLDER / f"{name}{CODE_SUFFIX}").write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def main(name: str) -> None:
    """Write both files."""
    with lazily():
        installations = [perform(_live, seed) for seed in range(CASTS)]
    document = {
        "version": name,
        "prefix": SETTINGS.prefix,
        "partitions": PARTITIONS,
        "key": KEY.secret.hex(),
        "rows": ROWS,
        "work": [WORK_OUTSTANDING, WORK_RATE],
        "installations": installations,
    }
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))
    keep_code(name, ROOT)


if __name__ == "__main__":
    main(sys.argv[1])
