"""A process that reads tables can do little else: the operating system confines it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stream.tables.readers import reading_process
from stream.tables.readers.reading_process import confine

pytestmark = pytest.mark.skipif(not reading_process.landlock_version(), reason="takes Landlock")

TRIES = """
import os, pathlib, socket, stream, sys
from stream.tables.readers.reading_process import confine

inside, outside, port, who = *map(pathlib.Path, sys.argv[1:3]), *map(int, sys.argv[3:])
tries = {
    "read inside": lambda: (inside / "a.csv").read_text(),
    "list inside": lambda: os.listdir(inside),
    "follow a link": lambda: (inside / "link.csv").read_text(),
    "read outside": lambda: (outside / "key").read_text(),
    "list outside": lambda: os.listdir(outside),
    "read beside the packages": lambda: (pathlib.Path(stream.__file__).parents[1] / "pyproject.toml").read_text(),
    "read another's environment": lambda: pathlib.Path(f"/proc/{who}/environ").read_bytes(),
    "write inside": lambda: (inside / "a.csv").write_text(""),
    "make inside": lambda: (inside / "b.csv").write_text(""),
    "cut one short": lambda: os.truncate(inside / "a.csv", 0),
    "remove inside": lambda: (inside / "a.csv").unlink(),
    "start a program": lambda: os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}), 0),
    "connect": lambda: socket.create_connection(("127.0.0.1", port)),
    "signal another": lambda: os.kill(who, 0),
    "change a mode": lambda: (outside / "key").chmod(0o600),
    "set times": lambda: os.utime(outside / "key"),
    "connect by a path": lambda: socket.socket(socket.AF_UNIX).connect(str(outside / "socket")),
    "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", port)),
}

def done(tried):
    try:
        tried()
    except PermissionError:
        return False
    return True

confine([inside])
print(*(name for name, tried in tries.items() if done(tried)), sep=",")
"""
NAMES = set(re.findall(r'^    "(.+?)": lambda', TRIES, re.MULTILINE))
FREE = {"read inside", "list inside"}
LENGTHS = {"cut one short"} if reading_process.landlock_version() < 3 else set()
NETWORK = {"connect"} if reading_process.landlock_version() < 4 else set()
OTHERS = {"signal another"} if reading_process.landlock_version() < 6 else set()
UNHELD = {"change a mode", "set times", "connect by a path", "send a datagram"}
"""Actions that Landlock cannot forbid, or is not told to forbid."""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of tables, with a link to a place outside, and a folder of secrets."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "a.csv").write_text("x\n1\n")
    (outside / "key").write_text("secret")
    (inside / "link.csv").symlink_to(outside / "key")
    return inside, outside


def test_confined_process_can_do_allowed_actions_only(folders: tuple[Path, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(folders[1] / "socket"))
        local.listen()
        arguments = [*map(str, folders), str(server.getsockname()[1]), str(os.getpid())]

        def possible(program: str) -> set[str]:
            done = subprocess.run(
                [sys.executable, "-P", "-c", program, *arguments], capture_output=True, text=True, check=True
            )
            return set(done.stdout.strip().split(","))

        assert possible(TRIES) == FREE | LENGTHS | NETWORK | OTHERS | UNHELD
        # Without the confinement, all these actions succeed.
        assert possible(TRIES.replace("confine([inside])", "")) == NAMES > FREE


def test_confine_changes_nothing_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "landlock_version", lambda: 0)
    assert not confine([])
    assert Path(__file__).read_text()


def test_reading_process_has_one_thread_when_confined() -> None:
    program = "import os; import stream.tables.readers.reading_process; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
