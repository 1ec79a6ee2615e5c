"""The last release's own code, kept beside what it wrote, and its services run from it.

Its packages alone are of that release: what they stand on is what is installed for this one, as where both are upgraded in
place.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.upgrade.record import CODE_SUFFIX, FOLDER


def kept_code() -> Path:
    """The archive of the last release's code; of earlier ones none is kept."""
    [found] = FOLDER.glob(f"*{CODE_SUFFIX}")
    return found


def version_of(archive: Path) -> str:
    """The name of the version that an archive holds."""
    return archive.name.removesuffix(CODE_SUFFIX)


def unpack(folder: Path) -> Path:
    """The code in a folder of its own."""
    code = folder / "released"
    with tarfile.open(fileobj=io.BytesIO(kept_code().read_bytes()), mode="r:xz") as archive:
        # File by file: the first releases of Python 3.11 do not know the filter without which later ones warn.
        for member in archive:
            if (content := archive.extractfile(member)) is not None:
                path = code / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return code


@contextmanager
def services_of(code: Path) -> Iterator[None]:
    """Have services that are started meanwhile run this code."""
    with patch.dict(os.environ, {"PYTHONPATH": str(code)}):
        yield
