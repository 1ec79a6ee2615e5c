"""Finds and reads the files of data lakes: objects in stores with an S3 API, and Delta tables.

Credentials, region and the store's address come from AWS's standard settings and are never part of a source.

The package deltalake reads a Delta table's log (github.com/delta-io/delta/blob/master/PROTOCOL.md). The files of its
newest version are read like other tables' files, with four exceptions:

- Only files in the table's folder are read.
- Partition columns have the log's values.
- If a file lacks a column, its cells are missing.
- Rows that the log marks as deleted are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from schemas import Address
from stream.optional_packages import S3_OBJECT_CHANGED, convert_s3_errors, import_or_missing, pl, s3_client
from stream.tables.encoding import as_text
from stream.tables.readers import table_files
from stream.tables.readers.iceberg import version_files
from stream.tables.readers.table_parts import FilePart
from stream.tables.table_errors import UnreadableError

_SUPPORTED_FEATURES: Final = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features that this module handles, or that do not change how files are read."""

_COLUMN_MAPPING: Final = "delta.columnMapping.mode"


def newest_local_files(folder: Path, listed: Sequence[table_files.TableFile]) -> tuple[table_files.TableFile, ...]:
    """Select the files of a local folder's newest version.

    Symbolic links that lead out of the folder, also from its log, are not followed.
    UnreadableError as for ``newest_files``.
    """
    table_folder = folder.resolve()
    listed_by_path = table_files.files_by_path(table_folder, listed)
    if not any(names[0] == table_files.DELTA_LOG for names in listed_by_path):
        raise UnreadableError("its _delta_log is not in the table's folder; copy the whole table")
    return newest_files(str(table_folder), listed_by_path, {})


def newest_files(
    table: str, listed: Mapping[table_files.PathParts, table_files.TableFile], options: Mapping[str, str]
) -> tuple[table_files.TableFile, ...]:
    """Select the files of a table's newest version, in the order of their names.

    ``options`` are settings of the object store. UnreadableError if the log cannot be read, names an
    unknown file, or uses unsupported features; Missing if the extra ``delta`` is not installed.
    """
    deltalake = import_or_missing("deltalake", "delta")
    with _as_log_errors():
        log = deltalake.DeltaTable(table, storage_options=dict(options))
        _require_supported_features(log)
        kept = _kept_rows(log)
        actions = pl.DataFrame(log.get_add_actions())
        columns = tuple(one.name for one in log.schema().fields)
        partition_columns = log.metadata().partition_columns
    table_files.require_file_count(actions)
    cells = {
        name: _partition_values_as_text(name, actions["partition"].struct.field(name))
        for name in partition_columns
    }
    found = []
    for number, (path, rows) in enumerate(actions.select("path", "num_records").iter_rows()):
        names = tuple(unquote(path).split("/"))
        if (
            names not in listed
            or names[0] == table_files.DELTA_LOG
            or not table_files.SPECIAL_NAMES.isdisjoint(names)
        ):
            raise UnreadableError("its log names a file that is not in its folder")
        table_files.require_table_name(names[-1])
        own_cells = tuple((name, column[number]) for name, column in cells.items())
        mask = kept.pop(f"{log.table_uri.removesuffix('/')}/{path}", None)
        found.append(
            (names, replace(listed[names], constant_columns=own_cells, columns=columns, rows=rows, kept_rows=mask))
        )
    if kept:
        raise UnreadableError("its log marks rows as deleted in files that do not belong to the table")
    return tuple(part for _, part in sorted(found, key=lambda one: one[0]))


def _require_supported_features(log: Any) -> None:
    if unsupported := set(log.protocol().reader_features or ()) - _SUPPORTED_FEATURES:
        raise UnreadableError(
            f"a Delta table with unsupported features: {', '.join(sorted(unsupported))}; write it without them"
        )
    if log.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
        raise UnreadableError(
            "a Delta table with column mapping, which is not supported; write it with delta.columnMapping.mode=none"
        )


def _partition_values_as_text(name: str, column: pl.Series) -> pl.Series:
    """Return a partition column as text, as it is in the log; deltalake has converted it to a type."""
    if column.dtype.is_float():
        return as_text(name, column)
    if isinstance(column.dtype, pl.Datetime):
        # The zone is always UTC, so cells do not contain it.
        column = column.dt.replace_time_zone(None)
    return column.cast(pl.String)


def _kept_rows(log: Any) -> dict[str, bytes]:
    """Return the deletion vector of each file by its address: a byte for each row, 0 if the row is deleted."""
    return {
        address: column.cast(pl.UInt8).to_numpy().tobytes()
        for batch in map(pl.DataFrame, log.deletion_vectors())
        for address, column in zip(batch["filepath"], batch["selection_vector"], strict=True)
    }


@contextmanager
def _as_log_errors() -> Iterator[None]:
    """Convert errors of deltalake to UnreadableError, without their messages, which may quote the log."""
    failures = import_module("deltalake.exceptions")
    try:
        yield
    except (failures.DeltaError, OSError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its Delta log cannot be read: {type(error).__name__}") from None


def open_objects(address: Address, most_bytes: int | None = None) -> Iterator[FilePart]:
    """Yield each object of an address.

    UnreadableError if the objects have more than ``most_bytes`` in total, or change while they are read.
    """
    files = object_files(address)
    table_files.require_size(files, most_bytes)
    for file in files:
        yield FilePart.open(file, _read_options(), partial(_ObjectReader, file))
    if object_files(address) != files:
        raise UnreadableError(table_files.CHANGED_WHILE_READ)


def object_files(address: Address) -> tuple[table_files.TableFile, ...]:
    """List the objects of an address; UnreadableError if there are none, or if one is not a table."""
    path_pattern = table_files.PathPattern.from_names(address.parts, is_folder=address.is_folder)
    if table_files.is_iceberg_metadata(address.parts):
        return _iceberg_files(address)
    if path_pattern is None:
        table_files.require_table_name(address.parts[-1])
        only: table_files.PathParts = ()
        listed = {only: one for one in _list_objects(address.host, "/".join(address.parts), exact=True)}  # noqa: B035  (lists one object at most)
        names = list(listed)
    else:
        folder = "".join(f"{name}/" for name in path_pattern.folder)
        listed = {tuple(one["Key"][len(folder) :].split("/")): one for one in _list_objects(address.host, folder)}
        if path_pattern.is_all_files and any(names[0] == table_files.DELTA_LOG for names in listed):
            files = {one: _object_file(address.host, found, one) for one, found in listed.items()}
            return newest_files(f"s3://{address.host}/{folder}", files, _delta_options())
        names = path_pattern.select(list(listed))
    if not names:
        raise UnreadableError("missing")
    return tuple(_object_file(address.host, listed[one], one) for one in names)


def _iceberg_files(address: Address) -> tuple[table_files.TableFile, ...]:
    folder = "".join(f"{name}/" for name in address.parts[:-2])
    listed = {
        names: _object_file(address.host, one, names)
        for one in _list_objects(address.host, folder)
        if (names := tuple(one["Key"][len(folder) :].split("/")))
    }

    def read_bytes(file: table_files.TableFile) -> bytes:
        with _ObjectReader(file) as body:
            return body.readall()

    return version_files(address.parts[-2:], listed, read_bytes, _read_options())


class _ObjectReader(RawIOBase):
    """Reads the bytes of an object; UnreadableError if it has changed since it was listed."""

    def __init__(self, file: table_files.TableFile) -> None:
        bucket, _, key = file.location.removeprefix("s3://").partition("/")
        with _as_store_errors():
            self._body = _client().get_object(Bucket=bucket, Key=key, IfMatch=str(file.stamp[0]))["Body"]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_store_errors():
            read = self._body.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)

    def close(self) -> None:
        super().close()
        self._body.close()


def _object_file(bucket: str, listed: dict[str, Any], names: table_files.PathParts) -> table_files.TableFile:
    stamp = (listed["ETag"], listed["LastModified"].isoformat(), listed["Size"])
    return table_files.TableFile(
        f"s3://{bucket}/{listed['Key']}",
        listed["Size"],
        stamp,
        table_files.columns_from_folders(names),
        name="/".join(names),
    )


def _list_objects(bucket: str, prefix: str, *, exact: bool = False) -> list[dict[str, Any]]:
    """List the objects with this prefix or, if ``exact``, this key; objects that only mark folders are left out."""
    found: list[dict[str, Any]] = []
    with _as_store_errors():
        for page in _client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for one in page.get("Contents", ()):
                if exact and one["Key"] == prefix:
                    return [one]
                if not one["Key"].endswith("/"):
                    found.append(one)
            if exact or len(found) > table_files.MAX_LISTED_FILES:
                break
    if len(found) > table_files.MAX_LISTED_FILES:
        raise UnreadableError(f"more than {table_files.MAX_LISTED_FILES} files below its folder")
    return [] if exact else found


def _as_store_errors() -> AbstractContextManager[None]:
    return convert_s3_errors(
        lambda cause: UnreadableError(table_files.CHANGED_WHILE_READ if cause == S3_OBJECT_CHANGED else cause)
    )


_client = lru_cache(maxsize=1)(partial(s3_client, connect_seconds=10, read_seconds=60, attempts=3))


def _read_options() -> dict[str, Any]:
    """Return polars' options for reading objects; boto3 finds the credentials."""
    return {"storage_options": _store_settings(), "credential_provider": pl.CredentialProviderAWS()}


def _delta_options() -> dict[str, str]:
    """Return deltalake's options for reading a log.

    They include the credentials that boto3 finds, because deltalake looks for them in few places.
    """
    found = pl.CredentialProviderAWS()()[0]
    return _store_settings() | {name: text for name, text in found.items() if text is not None}


def _store_settings() -> dict[str, str]:
    client = _client()
    store = {"aws_endpoint_url": client.meta.endpoint_url, "aws_region": client.meta.region_name}
    if client.meta.endpoint_url.startswith("http://"):
        store["aws_allow_http"] = "true"
    return store
