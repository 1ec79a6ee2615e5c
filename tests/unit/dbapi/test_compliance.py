"""The dialect passes the part of SQLAlchemy's compliance suite that applies to it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy.dialects import registry
from sqlalchemy.testing.exclusions import closed
from sqlalchemy.testing.requirements import SuiteRequirements

from stream import dbapi
from stream.dbapi.dialect import SottoDialect
from tests.builders import PEOPLE, installation, source, stream


class Requirements(SuiteRequirements):  # type: ignore[misc]
    """Features whose tests the suite skips."""

    duplicate_key_raises_integrity_error = closed()
    schemas = closed()
    has_temp_table = closed()
    view_reflection = closed()
    views = closed()


def test_dialect_passes_sqlalchemys_compliance_tests() -> None:
    """A separate process runs them, because SQLAlchemy's plugin changes pytest's collection."""
    run = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr
    assert int(re.findall(r"(\d+) passed", run.stdout)[-1]) >= 6


def main() -> int:
    """Run compliance_suite.py over an installation in memory whose only source is ``test_table``."""
    table = source("test_table", "table")
    opened = stream("numbers", "test_table", "laplace", mechanism={"answers": 10})
    driver = installation(opened, sources=[table], rows={"test_table": PEOPLE})

    def connect(*_: Any, **__: Any) -> Any:
        return dbapi.connect(driver)

    SottoDialect.connect = connect
    for name in ("sotto", "sotto.dbapi"):
        registry.register(name, "stream.dbapi.dialect", "SottoDialect")
    suite = Path(__file__).with_name("compliance_suite.py")
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("setup.cfg").write_text(
            "[sqla_testing]\nrequirement_cls = tests.unit.dbapi.test_compliance:Requirements\nprofile_file = profiles.txt\n"
        )
        plugins = ["-p", "sqlalchemy.testing.plugin.pytestplugin", "-p", "no:asyncio", "-p", "no:cacheprovider"]
        place = ["--noconftest", "--rootdir", folder, "-c", "setup.cfg", "-rs", "-v"]
        return int(pytest.main([*plugins, *place, "--dburi", "sotto://", str(suite)]))


if __name__ == "__main__":
    sys.exit(main())
