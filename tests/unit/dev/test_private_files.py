"""A simulation never reads private data of an installation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas import TableSource
from stream.dev.simulation_inputs import SimulationError, require_public, require_shipped_table
from stream.tables.demo_tables import ADULT_PATH, adult_source
from tests import builders


def source(path: Path | str, name: str = "people") -> TableSource:
    fields = {"neighbors": "replace", "epsilon": 1.0, "path": str(path), "attributes": {"age": 9}}
    found: TableSource = builders.parse_source(builders.source(name, "table", **fields))
    return found


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.csv"
    path.write_text("age\n1\n2\n")
    return path


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "public.csv"
    path.write_text("age\n1\n2\n")
    return path


def aliases(private: Path) -> list[Path]:
    """Return other names of the same file."""
    symbolic, hard = private.with_name("symbolic.csv"), private.with_name("hard.csv")
    symbolic.symlink_to(private)
    os.link(private, hard)
    return [private, private.parent / "." / ".." / private.parent.name / private.name, symbolic, hard]


def test_file_of_the_source_is_refused_under_any_name(private: Path) -> None:
    for path in aliases(private):
        with pytest.raises(SimulationError, match="source 'people' and private"):
            require_public(path, source(private))


def test_file_of_any_registered_source_is_refused_under_any_name(private: Path, public: Path) -> None:
    registered = [source(public.with_name("gone.csv"), "others"), source(private, "patients")]
    for path in aliases(private):
        with pytest.raises(SimulationError, match="source 'patients' and private"):
            require_public(path, source(Path("elsewhere.csv")), registered=registered)
    assert require_public(public, source(Path("elsewhere.csv")), registered=registered) == public.resolve()


def test_file_in_the_table_roots_is_refused_through_any_link(tmp_path: Path, public: Path) -> None:
    roots = tmp_path / "roots"
    (roots / "below").mkdir(parents=True)
    inside = roots / "below" / "table.csv"
    inside.write_text("age\n1\n")
    link, folder = tmp_path / "link.csv", tmp_path / "folder"
    link.symlink_to(inside)
    folder.symlink_to(roots)
    for path, root in ((inside, roots), (link, roots), (inside, folder), (folder / "below" / "table.csv", roots)):
        with pytest.raises(SimulationError, match="SOTTO_TABLE_ROOTS"):
            require_public(path, source(public), roots=[root])


def test_shipped_table_is_public_at_any_path_and_in_any_source(tmp_path: Path) -> None:
    link = tmp_path / "census.csv.gz"
    link.symlink_to(ADULT_PATH)
    own = adult_source(1.0)
    for path in (ADULT_PATH, link):
        assert require_public(path, own, roots=[ADULT_PATH.parent], registered=[own]) == ADULT_PATH.resolve()
    require_shipped_table(own)


def test_table_of_another_source_is_no_default(private: Path) -> None:
    with pytest.raises(SimulationError, match="--table a public file, or use --synthetic"):
        require_shipped_table(source(private))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="there is no file"):
        require_public(tmp_path / "none.csv", source(tmp_path / "private.csv"))


@pytest.mark.parametrize("path", ["{}/", "{}/year=*/*.csv", "{}/*.csv"])
def test_file_in_the_folder_of_a_source_is_private(tmp_path: Path, public: Path, path: str) -> None:
    inside = tmp_path / "visits" / "year=2024" / "a.csv"
    inside.parent.mkdir(parents=True)
    inside.write_text("age\n1\n")
    visits, stored = source(path.format(tmp_path / "visits")), source("s3://clinic/visits/")
    with pytest.raises(SimulationError, match="the file of source 'people' and private"):
        require_public(inside, stored, registered=[visits])
    assert require_public(public, stored, registered=[visits]) == public.resolve()
    with pytest.raises(SimulationError, match="its own table is private"):
        require_shipped_table(stored)
