"""A witness in a bucket with an S3 API: one object for each anchor, the newest first in a listing.

Credentials, region and the store's address come from AWS's standard settings. An error has only the
store's error code.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from schemas import Address
from stream.diagnostics import get_logger
from stream.optional_packages import import_or_missing
from stream.witnesses.anchor import ANCHORS_READ, LARGEST_TIME, Anchor, WitnessError, parse_anchor

_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_ANCHORS_READ: Final = 10
"""Newest anchors that are read; each takes a request."""
_LARGEST_OBJECT: Final = 1 << 20
"""Bytes of the largest object that is read."""
_LARGEST_GENERATION: Final = 9_999
_plain_word = re.compile(r"[A-Za-z0-9.]{1,60}", re.ASCII)

log = get_logger("witness")


class S3Witness:
    """A folder of a bucket. Object Lock of the bucket keeps its anchors from everyone."""

    def __init__(self, address: Address) -> None:
        """Raise Missing if boto3 is not installed."""
        import_or_missing("boto3", "s3")
        self._bucket = address.host
        self._folder = "".join(f"{part}/" for part in address.parts)
        self._lock_is_checked = False
        self.name = f"s3://{self._bucket}/{self._folder}"

    def write(self, anchor: Anchor) -> None:
        """Put an object under a new key; the bucket's default retention applies to it."""
        with self._as_witness_errors():
            self._check_lock()
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._key(anchor),
                Body=anchor.encode(),
                ContentType="application/json",
                ChecksumAlgorithm="SHA256",  # Object Lock requires a checksum
            )

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the anchors of the first keys, which are the newest; pass over other objects."""
        found: list[Anchor] = []
        others = 0
        with self._as_witness_errors():
            listed = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=f"{self._folder}{installation}/", MaxKeys=ANCHORS_READ
            )
            for one in listed.get("Contents", ()):
                anchor = self._read_anchor(one["Key"]) if one["Size"] <= _LARGEST_OBJECT else None
                if anchor is None or anchor.installation != installation:
                    others += 1
                    continue
                found.append(anchor)
                if len(found) == _ANCHORS_READ:
                    break
        if others and not found:
            raise WitnessError(f"{self.name}: the first {others} objects are no anchors; remove them")
        if others:
            log.error(
                "objects of a witness are no anchors", witness=self.name, objects=others, remedy="remove them"
            )
        return found

    def _read_anchor(self, key: str) -> Anchor | None:
        return parse_anchor(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def _key(self, anchor: Anchor) -> str:
        # Stores list keys in ascending order.
        generation, time = _LARGEST_GENERATION - anchor.generation, LARGEST_TIME - anchor.written
        return f"{self._folder}{anchor.installation}/{generation:04d}-{time:013d}-{secrets.token_hex(8)}.json"

    def _check_lock(self) -> None:
        """Log once if the bucket does not keep its objects from deletion."""
        if self._lock_is_checked:
            return
        try:
            found = self._client.get_object_lock_configuration(Bucket=self._bucket)
            is_kept = bool(found.get("ObjectLockConfiguration", {}).get("Rule"))
        except import_module("botocore.exceptions").ClientError:
            is_kept = False
        self._lock_is_checked = True
        if not is_kept:
            log.warning(
                "witness without object lock",
                witness=self.name,
                remedy="whoever may delete its objects can remove anchors; set a default retention on the bucket",
            )

    @cached_property
    def _client(self) -> Any:
        boto3 = import_or_missing("boto3", "s3")
        settings = import_module("botocore.config").Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )
        return boto3.Session().client("s3", config=settings)

    @contextmanager
    def _as_witness_errors(self) -> Iterator[None]:
        """Convert the store's errors, without their messages."""
        failures = import_module("botocore.exceptions")
        try:
            yield
        except failures.ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            word = code if isinstance(code, str) and _plain_word.fullmatch(code) else "no error code"
            raise WitnessError(f"{self.name}: the store refused: {word}") from None
        except failures.BotoCoreError as error:
            raise WitnessError(f"{self.name}: the store was not reached: {type(error).__name__}") from None
