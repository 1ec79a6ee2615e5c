"""The committed files are those that the code exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stream.cli.output import CommandError
from stream.cli.setup_commands import contract_app
from stream.dev.contract_events import CONTRACT_VERSION, EVENTS
from stream.dev.contract_files import (
    DOCUMENT,
    VERSIONS,
    ContractError,
    export_files,
    generate_files,
    is_changed,
    list_drift,
    release_version,
)

RELEASED = ".".join(CONTRACT_VERSION.split(".")[:2])
CONTRACT = Path(__file__).parents[3] / "contract"


def contract(*arguments: str | Path) -> Result:
    return CliRunner().invoke(contract_app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the contract, and release an unreleased version in the copy."""
    copy = tmp_path / "contract"
    shutil.copytree(CONTRACT, copy)
    if not (copy / VERSIONS / RELEASED).exists():
        release_version(copy)
    return copy


def test_committed_contract_matches_code() -> None:
    assert list_drift(CONTRACT) == [], (
        "events or topics have changed: run 'sotto contract export' and commit contract/"
    )


def test_generate_files_has_one_schema_for_each_event() -> None:
    assert len(generate_files()) == len(EVENTS) + 1
    assert json.loads(generate_files()[DOCUMENT])["info"]["version"] == CONTRACT_VERSION


def test_export_repairs_drift_and_keeps_released_versions(folder: Path) -> None:
    (folder / "schemas" / "query.json").unlink()
    (folder / "schemas" / "no-more.json").write_text("{}")
    (folder / DOCUMENT).write_text("{}")
    kept = sorted((folder / VERSIONS).rglob("*.json"))
    assert export_files(folder) == [DOCUMENT, "schemas/no-more.json", "schemas/query.json"]
    assert list_drift(folder) == []
    assert export_files(folder) == []
    assert sorted((folder / VERSIONS).rglob("*.json")) == kept


def test_export_fills_empty_folder(tmp_path: Path) -> None:
    assert export_files(tmp_path / "new") == sorted(generate_files())
    assert list_drift(tmp_path / "new") == []


def test_check_fails_on_drift_with_remedy(folder: Path) -> None:
    (folder / "schemas" / "answer.json").unlink()
    result = contract("check", folder)
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == "out of date: schemas/answer.json; run 'sotto contract export'"
    assert contract("export", folder).output == "written: schemas/answer.json\n"
    assert contract("check", folder).output.startswith(f"contract {CONTRACT_VERSION}: up to date")


def edit_release(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the released version in the copy."""
    path = folder / VERSIONS / RELEASED / DOCUMENT
    released = json.loads(path.read_text())
    edit(released["components"]["schemas"]["Answer"])
    path.write_text(json.dumps(released))


def test_committed_contract_matches_its_released_version() -> None:
    assert not is_changed(CONTRACT), "raise CONTRACT_VERSION, or revert the change"


def test_check_fails_on_change_of_released_version(folder: Path) -> None:
    edit_release(folder, lambda answer: answer["properties"].update(mood={"type": "string"}))
    assert is_changed(folder)
    result = contract("check", folder)
    assert isinstance(result.exception, CommandError)
    assert "raise CONTRACT_VERSION" in str(result.exception)


@pytest.mark.parametrize(
    "edit",
    [
        lambda answer: answer["required"].pop(),
        lambda answer: answer["properties"].pop("alpha"),
        lambda answer: answer["properties"]["outcome"]["enum"].append("perhaps"),
        lambda answer: answer["properties"]["reason"].update(maxLength=7),
    ],
)
def test_is_changed_finds_changed_rule(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    edit_release(folder, edit)
    assert is_changed(folder)


def test_is_changed_ignores_descriptions(folder: Path) -> None:
    edit_release(folder, lambda answer: answer.update(description="another"))
    assert not is_changed(folder)


def test_event_fields_have_no_names_of_notes() -> None:
    names = {name for event in EVENTS for name in event.model.model_fields}
    assert names.isdisjoint({"title", "description", "summary", "default", "examples"})


def test_is_changed_ignores_unreleased_version(folder: Path) -> None:
    shutil.rmtree(folder / VERSIONS)
    assert not is_changed(folder)


def test_release_version_refuses_second_release(folder: Path) -> None:
    with pytest.raises(ContractError, match="released already"):
        release_version(folder)
    shutil.rmtree(folder / VERSIONS)
    path = release_version(folder)
    assert path == folder / VERSIONS / RELEASED / DOCUMENT
    assert path.read_text() == generate_files()[DOCUMENT]


def test_is_changed_names_unreadable_release(folder: Path) -> None:
    path = folder / VERSIONS / RELEASED / DOCUMENT
    path.write_text("not json")
    with pytest.raises(ContractError, match="take it from the release"):
        is_changed(folder)
