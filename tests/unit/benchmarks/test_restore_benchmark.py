"""The benchmark of restores measures the memory that retired streams leave in a worker."""

from __future__ import annotations

import pytest

from benchmarks import restore


def test_restore_benchmark_measures_retired_streams(capsys: pytest.CaptureFixture[str]) -> None:
    restore.main(["--retired", "160"])
    printed = capsys.readouterr().out
    assert "160 retired streams" in printed
    assert "file of each" in printed
