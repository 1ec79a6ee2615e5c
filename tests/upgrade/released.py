"""Runs services of the last release from its own code, which is kept with its records.

Only Sotto's packages are from that release. Their dependencies are those of this version, as after an upgrade in place.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from stream.services import processes
from tests.upgrade.record import CODE_SUFFIX, FOLDER


def kept_code() -> Path:
    """Return the archive of the last release's code; the code of earlier releases is not kept."""
    [found] = FOLDER.glob(f"*{CODE_SUFFIX}")
    return found


def version_of(archive: Path) -> str:
    """Return the name of an archive's version."""
    return archive.name.removesuffix(CODE_SUFFIX)


def unpack(folder: Path) -> Path:
    """Return the code, unpacked into a separate folder."""
    code = folder / "released"
    with tarfile.open(fileobj=io.BytesIO(kept_code().read_bytes()), mode="r:xz") as archive:
        # File by file, because the first releases of Python 3.11 lack the filter without which later releases warn.
        for member in archive:
            if (content := archive.extractfile(member)) is not None:
                path = code / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return code


@contextmanager
def services_of(code: Path) -> Iterator[None]:
    """Let services that are started in this block run this code."""
    # The code of the last release starts its command line as ``stream.cli``.
    with patch.dict(os.environ, {"PYTHONPATH": str(code)}), patch.object(processes, "PROGRAM", "stream.cli"):
        yield
