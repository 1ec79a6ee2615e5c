"""The committed files are those that the code exports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stream.cli.output import CommandError
from stream.cli.run.key_commands import contract_app
from stream.dev.contract.contract_events import CONTRACT_VERSION, EVENTS
from stream.dev.contract.contract_files import (
    DOCUMENT,
    VERSIONS,
    ContractError,
    broken,
    drift,
    export,
    files,
    release,
)

RELEASED = ".".join(CONTRACT_VERSION.split(".")[:2])
CONTRACT = Path(__file__).parents[3] / "contract"


def contract(*arguments: str | Path) -> Result:
    return CliRunner().invoke(contract_app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "contract"
    shutil.copytree(CONTRACT, copy)
    return copy


def test_the_committed_contract_is_that_of_the_code() -> None:
    assert drift(CONTRACT) == [], "events or topics have changed: run 'sotto contract export' and commit contract/"


def test_there_is_one_schema_for_each_event_and_one_document() -> None:
    assert len(files()) == len(EVENTS) + 1
    assert json.loads(files()[DOCUMENT])["info"]["version"] == CONTRACT_VERSION


def test_exporting_mends_whatever_drifted_and_keeps_released_versions(folder: Path) -> None:
    (folder / "schemas" / "query.json").unlink()
    (folder / "schemas" / "no-more.json").write_text("{}")
    (folder / DOCUMENT).write_text("{}")
    kept = sorted((folder / VERSIONS).rglob("*.json"))
    assert export(folder) == [DOCUMENT, "schemas/no-more.json", "schemas/query.json"]
    assert drift(folder) == []
    assert export(folder) == []
    assert sorted((folder / VERSIONS).rglob("*.json")) == kept


def test_a_contract_is_exported_into_an_empty_folder(tmp_path: Path) -> None:
    assert export(tmp_path / "new") == sorted(files())
    assert drift(tmp_path / "new") == []


def test_check_fails_on_drift_and_says_what_to_do(folder: Path) -> None:
    (folder / "schemas" / "answer.json").unlink()
    result = contract("check", folder)
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == "out of date: schemas/answer.json; run 'sotto contract export'"
    assert contract("export", folder).output == "written: schemas/answer.json\n"
    assert (
        contract("check", folder).output
        == f"contract {CONTRACT_VERSION}: up to date, and breaks no released version\n"
    )


def with_released(folder: Path, version: str) -> None:
    """Pretend that a version was released whose answers had a field that is gone."""
    document = json.loads(files()[DOCUMENT])
    document["components"]["schemas"]["Answer"]["properties"]["mood"] = {"type": "string"}
    path = folder / VERSIONS / version / DOCUMENT
    path.parent.mkdir()
    path.write_text(json.dumps(document))


def test_check_fails_on_what_breaks_a_released_version_and_names_it(folder: Path) -> None:
    with_released(folder, "0.1")
    assert broken(folder) == ["0.1: Answer.mood: is gone"]
    result = contract("check", folder)
    assert result.output == "breaks 0.1: Answer.mood: is gone\n"
    assert isinstance(result.exception, CommandError)
    assert "increase the major version" in str(result.exception)
    shutil.rmtree(folder / VERSIONS / RELEASED)
    with pytest.raises(ContractError, match=r"breaks released ones: 0\.1: Answer\.mood"):
        release(folder)


def test_versions_with_another_major_number_may_be_broken(folder: Path) -> None:
    with_released(folder, "9.1")
    assert broken(folder) == []


def test_a_version_is_released_once(folder: Path) -> None:
    with pytest.raises(ContractError, match="released already"):
        release(folder)
    shutil.rmtree(folder / VERSIONS)
    path = release(folder)
    assert path == folder / VERSIONS / RELEASED / DOCUMENT
    assert path.read_text() == files()[DOCUMENT]


def test_a_released_document_that_cannot_be_read_is_named(folder: Path) -> None:
    path = next((folder / VERSIONS).glob(f"*/{DOCUMENT}"))
    path.write_text("not json")
    with pytest.raises(ContractError, match="take it from the release"):
        broken(folder)
