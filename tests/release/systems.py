"""Makes a small Debian with Python in a folder from the files of this machine's packages, in a tenth of debootstrap's time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PYTHON = "python3-venv"
OLDEST = (3, 11)
UNREAD = ("/usr/share/doc/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/man/")
"""Folders of files that no running program reads."""
USERS = Path("usr/share/base-passwd")
FIELDS = ("binary:Package", "Package", "Essential", "Priority", "Pre-Depends", "Depends", "Provides", "Version")


def lacking_for_base() -> str | None:
    """Return what this machine lacks for a base system with Python from its packages; None if nothing."""
    if shutil.which("dpkg-query") is None:
        return "a base for the image is made of Debian's packages, and there are none here"
    version = next((one["Version"] for one in _packages() if one["Package"] == PYTHON), "")
    if version == "":
        return f"{PYTHON} not installed (Debian, Ubuntu: apt install {PYTHON})"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"{PYTHON} of this machine is of Python {version}"
    return None


def install_system(folder: Path) -> None:
    """Copy Debian's essential packages, Python and its venv module into an empty folder, with the users of a new system."""
    places = sorted({*_places(_needed()), str(Path(os.path.realpath("/bin")) / "sh")})
    for link in Path("/").iterdir():
        if link.is_symlink() and link.name.startswith(("bin", "sbin", "lib")):
            (folder / link.name).symlink_to(link.readlink())
    packing = ["--create", "--directory=/", "--no-recursion", "--null", "--files-from=-"]
    listed = "".join(f"{place.lstrip('/')}\0" for place in places if place != "/")
    packed = subprocess.run([_program("tar"), *packing], input=listed.encode(), capture_output=True, check=True)
    unpacking = ["--extract", f"--directory={folder}", "--preserve-permissions"]
    subprocess.run([_program("tar"), *unpacking], input=packed.stdout, check=True)
    for name in ("passwd", "group"):
        shutil.copy(folder / USERS / f"{name}.master", folder / "etc" / name)


def _program(name: str) -> str:
    return shutil.which(name) or name


def _packages() -> list[dict[str, str]]:
    """Return the fields of each installed package."""
    form = "\t".join(f"${{{field}}}" for field in FIELDS) + "\n"
    result = subprocess.run(
        [_program("dpkg-query"), "--show", f"--showformat={form}"], capture_output=True, text=True, check=True
    )
    return [dict(zip(FIELDS, line.split("\t"), strict=True)) for line in result.stdout.splitlines()]


def _needed() -> list[str]:
    """Return Debian's essential packages and Python's, with all their dependencies."""
    packages = [one for one in _packages() if one["Version"]]
    by_name = {one["Package"]: one for one in packages}
    for one in packages:
        for provided in _names(one["Provides"]):
            by_name.setdefault(provided[0], one)
    found: dict[str, None] = {}
    left = [one["Package"] for one in packages if one["Essential"] == "yes" or one["Priority"] == "required"]
    left.append(PYTHON)
    while left:
        one = by_name[left.pop()]
        if one["binary:Package"] in found:
            continue
        found[one["binary:Package"]] = None
        for alternatives in _names(f"{one['Pre-Depends']}, {one['Depends']}"):
            left += [name for name in alternatives if name in by_name][:1]
    return list(found)


def _names(written: str) -> Iterator[list[str]]:
    """Return the packages of a list of dependencies, each with its alternatives."""
    for group in written.split(","):
        if group.strip():
            yield [one.split("(")[0].strip().partition(":")[0] for one in group.split("|")]


def _places(packages: list[str]) -> Iterator[str]:
    """Yield the paths of the packages' files and folders, and of their compiled Python files."""
    result = subprocess.run(
        [_program("dpkg-query"), "--listfiles", *packages], capture_output=True, text=True, check=True
    )
    for line in result.stdout.splitlines():
        if line.startswith("/") and not f"{line}/".startswith(UNREAD):
            place = Path(os.path.realpath(Path(line).parent)) / Path(line).name
            if place.is_symlink() or place.exists():
                yield str(place)
                if place.suffix == ".py":
                    yield from map(str, place.parent.glob(f"__pycache__/{place.stem}.cpython-*.pyc"))
