"""``SOTTO_TABLE_ROOTS`` has folders and addresses in one text, and the end of each is unambiguous."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import Address
from stream.tables.readers.table_files import parse_roots
from stream.tables.table_errors import TableDataError


def folders_and_addresses(text: str) -> list[str | Address]:
    return [str(root) if isinstance(root, Path) else root for root in parse_roots(text)]


def test_folders_and_addresses_are_separated_by_colons() -> None:
    clinic, other = Address.parse_root("s3://clinic/visits/"), Address.parse_root("s3://other")
    server, ported = (
        Address.parse_root("postgresql://db"),
        Address.parse_root("postgresql://db:6432/clinic/public/"),
    )
    assert folders_and_addresses("") == []
    assert folders_and_addresses("/a::b") == ["/a", "b"]
    assert folders_and_addresses("s3://clinic/visits/") == [clinic]
    assert folders_and_addresses("a:s3://clinic/visits/:/b:./c:d") == ["a", clinic, "/b", "c", "d"]
    assert folders_and_addresses("s3://clinic/visits/:s3://other:postgresql://db") == [clinic, other, server]
    assert folders_and_addresses("postgresql://db:6432/clinic/public/:postgresql://db:/a") == [
        ported,
        server,
        "/a",
    ]
    assert folders_and_addresses("postgresql://db:5432") == [server]
    assert folders_and_addresses("s3://other:") == [other]


@pytest.mark.parametrize(
    "text",
    [
        "s3://clinic:data",
        "s3://clinic/a:b",
        "s3://clinic::data",
        "s3://clinic:80",
        "postgresql://db:5432x",
        "postgresql://db:5432:6432",
    ],
)
def test_ambiguous_roots_are_refused(text: str) -> None:
    with pytest.raises(TableDataError, match=r"^SOTTO_TABLE_ROOTS: "):
        parse_roots(text)


@pytest.mark.parametrize(
    "text",
    [
        "gs://hunter2",
        "s3://hunter2/*",
        "s3://hunter2/..",
        "s3://hunter2/%2e",
        "postgresql://reader:hunter2@db",
        "postgresql://hunter2@db",
        "/a:postgresql://db/hunter2?sslmode=disable",
    ],
)
def test_malformed_root_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(TableDataError, match=r"^SOTTO_TABLE_ROOTS: ") as refused:
        parse_roots(text)
    assert "hunter2" not in str(refused.value)
