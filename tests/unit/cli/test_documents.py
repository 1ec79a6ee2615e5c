"""Commands read UTF-8 text, whole or by lines, and report other input in one line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from schemas import StreamSpec
from stream.cli.output import CommandError, numbered_lines, parse_document, read_document
from tests.commands import run_sotto

SPEC = '{"source": "s", "stream": "t", "mechanism": {"kind": "laplace"}, "epsilon": 1.0, "expected_queries": 1}'
DEEP = "[" * 100_000

NO_TEXT = [
    pytest.param(b"\x00\xff\xfe\x80", id="binary"),
    pytest.param(SPEC.encode("utf-16"), id="UTF-16"),
    pytest.param(SPEC.replace("t", "é").encode("latin-1"), id="Latin-1"),
]


def set_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@pytest.mark.parametrize("data", NO_TEXT)
def test_document_that_is_no_text_is_named(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stream.json"
    file.write_bytes(data)
    with pytest.raises(CommandError, match=rf"^{file}: is not UTF-8 text; save it as UTF-8"):
        read_document(str(file))
    set_standard_input(monkeypatch, data)
    with pytest.raises(CommandError, match=r"^standard input: is not UTF-8 text"):
        read_document("-")


def test_document_nested_too_deeply_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stream.json"
    file.write_text(DEEP)
    with pytest.raises(CommandError, match=rf"^{file}: \d+ objects and lists; give at most 9216"):
        read_document(str(file))
    set_standard_input(monkeypatch, DEEP.encode())
    with pytest.raises(CommandError, match=r"^standard input: \d+ objects and lists; give at most 9216"):
        read_document("-")
    with pytest.raises(CommandError, match=r"^document: \d+ objects and lists; give at most 9216"):
        read_document('{"a":' + DEEP)


def test_table_in_the_place_of_its_declaration_is_named(tmp_path: Path) -> None:
    """Its times are not counted as fields."""
    file = tmp_path / "visits.csv"
    file.write_text("at,ward\n" + "12:30:00,A\n" * 8_000)
    refused = run_sotto("source", "check", str(file))
    assert (
        refused.stderr.strip()
        == f"error: {file}: is not JSON; give a JSON object (a source names its table in 'path')"
    )


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_blank_document_or_list_is_refused(blank: str) -> None:
    with pytest.raises(CommandError, match=r"^document: is empty; give inline JSON, a file, or - for"):
        read_document(blank)
    with pytest.raises(CommandError, match=r"^document: is not an object; give one"):
        parse_document(TypeAdapter(StreamSpec), "[]")


@pytest.mark.parametrize(("text", "column"), [("{stream: 1}", 2), ("{'stream': 1}", 2), ('{"cutoff": 3,}', 14)])
def test_invalid_json_has_its_place_and_remedy(text: str, column: int) -> None:
    message = (
        f"^document: is not JSON at line 1, column {column}; put names and texts in double quotes, and a comma"
    )
    with pytest.raises(CommandError, match=message):
        read_document(text)


def test_byte_order_mark_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stream.json"
    file.write_text(SPEC, encoding="utf-8-sig")
    assert read_document(str(file)) == SPEC
    set_standard_input(monkeypatch, file.read_bytes())
    assert read_document("-") == SPEC
    file.write_text("a\n\n b \n", encoding="utf-8-sig")
    with numbered_lines(str(file)) as lines:
        assert list(lines) == [(1, b"a"), (3, b"b")]


def test_fault_is_reported_with_its_document(tmp_path: Path) -> None:
    file = tmp_path / "stream.json"
    file.write_text(SPEC.replace("1.0", "-1"))
    for argument, name in ((str(file), str(file)), (file.read_text(), "document")):
        with pytest.raises(CommandError, match=rf"^{name}: epsilon: -1 is too"):
            parse_document(TypeAdapter(StreamSpec), argument)


@pytest.mark.parametrize(
    "arguments",
    [
        ("stream", "open", "FILE"),
        ("ask", "s", "--question", "FILE"),
        ("simulate", "FILE", "FILE"),
        ("simulate", SPEC, "FILE"),
        ("estimate", "s", "r", "--grant", "FILE"),
    ],
)
def test_no_command_shows_a_traceback_for_a_binary_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(b"\x00\xff\xfe\x80")
    refused = run_sotto(*(str(file) if one == "FILE" else one for one in arguments))
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert str(file) in refused.stderr
    assert refused.stderr.count("\n") == 1
