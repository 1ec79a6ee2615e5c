"""Anchors: heads of the audit trail with the ends of topics, their time stamps, and the protocol of a witness.

An anchor holds facts that stay true unless Kafka's topics are rolled back. When an operator accepts a rollback, a new
*generation* of anchors begins in all witnesses, and anchors of earlier generations are not compared any more.

A time stamp of an authority (RFC 3161) proves that a head of the trail existed at a time. An authority keeps no stamps
and answers no questions about them, so it is not a witness itself. A missing stamp proves nothing. But nobody can get a
stamp with an earlier time for a trail that was rewritten later.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import TrailHead
from stream.errors import SottoError
from stream.optional_packages import import_or_missing
from stream.secret_files import is_encrypted_or_local

MAX_ANCHORS_READ: Final = 100
"""Maximum number of anchors that a witness returns."""
LARGEST_TIME: Final = 9_999_999_999_999
"""Largest time of an anchor, in milliseconds since 1970: 13 digits, in the year 2286."""

_STAMP_SECONDS: Final = 5
_LARGEST_STAMP: Final = 64 * 1024
_CERTIFICATES_TAG: Final = 0xA0
_EXTRA: Final = "timestamps"

Offset = Annotated[int, Field(ge=0)]


class WitnessError(SottoError):
    """A witness cannot be used; the message has the reason, but no credentials."""


class DamagedWitnessError(WitnessError):
    """Lines or objects of a witness are damaged; ``anchors`` has the others that were read."""

    def __init__(self, problem: str, anchors: list[Anchor]) -> None:
        super().__init__(problem)
        self.anchors = anchors


class Anchor(BaseModel):
    """A committed head of the trail, and end offsets of topics by partition, at one time.

    - ``written`` is the time of writing in milliseconds since 1970 (``next_anchor_time``).
    - ``reason`` is set if the anchor begins a generation: an operator has accepted that earlier anchors no longer hold.
    - ``stamp`` is the stamp of a time-stamp authority, in base64, on installation and head
      (``stamped_statement``).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    installation: str
    generation: Offset = 0
    written: Annotated[int, Field(ge=0, le=LARGEST_TIME)]
    head: TrailHead
    ends: dict[str, tuple[Offset, ...]] = {}
    reason: str | None = None
    stamp: str | None = None

    @property
    def time(self) -> str:
        """The time of writing, in UTC."""
        return datetime.fromtimestamp(self.written / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def encode(self) -> bytes:
        """Return the anchor as one line of JSON, without the newline."""
        return self.model_dump_json(exclude_none=True).encode()


class Witness(Protocol):
    """A place that keeps anchors and is administered apart from Kafka; its methods block."""

    @property
    def name(self) -> str:
        """The witness's address, without credentials."""

    def write(self, anchor: Anchor) -> None:
        """Append an anchor durably; WitnessError unless it was certainly written."""

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the latest ``MAX_ANCHORS_READ`` anchors of an installation; WitnessError if it cannot."""


def read_undamaged(witness: Witness, installation: str) -> tuple[list[Anchor], str]:
    """Return a witness's newest undamaged anchors, and the problem with the damaged ones, or an empty text."""
    try:
        return witness.read_newest(installation), ""
    except DamagedWitnessError as error:
        return error.anchors, str(error)


def parse_anchor(text: bytes | str) -> Anchor | None:
    """Parse an anchor; None if the text is no anchor, for example because a crash cut a line off."""
    try:
        return Anchor.model_validate_json(text)
    except ValidationError:
        return None


def next_anchor_time(latest: int) -> int:
    """Return the time of the next anchor: now, or just after the time ``latest`` if the clock went back."""
    return min(LARGEST_TIME, max(round(1000 * time.time()), latest + 1))


def newest_generation(anchors: Iterable[Anchor]) -> list[Anchor]:
    """Return the anchors of the newest generation; the anchor of the longest trail comes first."""
    found = list(anchors)
    generation = max((one.generation for one in found), default=0)
    newest = [one for one in found if one.generation == generation]
    return sorted(newest, key=lambda one: (one.head.entries, one.written), reverse=True)


def largest_end(anchors: Iterable[Anchor], topic: str, partition: int) -> int:
    """Return the largest end offset of a partition in these anchors; 0 if no anchor has the partition."""
    ends = (anchor.ends.get(topic, ()) for anchor in anchors)
    return max((one[partition] for one in ends if partition < len(one)), default=0)


def read_newest_generations(witnesses: Sequence[Witness], installation: str) -> list[list[Anchor]]:
    """Return the newest generation of each witness; WitnessError if a witness cannot be read."""
    return [newest_generation(one.read_newest(installation)) for one in witnesses]


def begin_generation(
    witnesses: Sequence[Witness],
    installation: str,
    head: TrailHead,
    reason: str,
    ends: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Begin a new generation in each witness with one anchor, so that earlier anchors are not compared any more.

    Call this before the topics change: if a later step fails, services grant nothing until all steps are repeated.

    Raises:
        WitnessError: a witness cannot be read or written.
    """
    newest = read_newest_generations(witnesses, installation)
    latest = max((one[0].generation for one in newest if one), default=0)
    anchor = Anchor(
        installation=installation,
        generation=latest + 1,
        written=next_anchor_time(max((one.written for found in newest for one in found), default=0)),
        head=head,
        ends=dict(ends or {}),
        reason=reason,
    )
    for witness in witnesses:
        witness.write(anchor)


def stamped_statement(installation: str, head: TrailHead) -> bytes:
    """Return the bytes that are stamped: the installation's name and the head, so that any tool can check a stamp."""
    return f"sotto trail {json.dumps(installation)} {head.entries}:{head.digest}".encode()


class _NoRedirections(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirection."""


class TimeStampAuthority:
    """A time-stamp authority (RFC 3161), which stamps statements on request."""

    def __init__(self, address: str) -> None:
        """Raise Missing without the client, and WitnessError for an invalid address."""
        self._client = import_or_missing("rfc3161_client", _EXTRA)
        parts = urlsplit(address)
        if parts.username is not None or not is_encrypted_or_local(parts.scheme, parts.hostname):
            raise WitnessError("SOTTO_TIMESTAMP_AUTHORITY: is no https address; give https://HOST/PATH")
        self.name = address

    def stamp(self, statement: bytes) -> str:
        """Return a stamp of a statement, in base64.

        Raises:
            WitnessError: the authority does not answer, or stamps something else.
        """
        builder = self._client.TimestampRequestBuilder().data(statement)
        request = builder.hash_algorithm(self._client.base.HashAlgorithm.SHA256).build()
        content = _sort_certificates(self._send(request.as_bytes()))
        try:
            response = self._client.decode_timestamp_response(content)
            given = (response.status, response.tst_info.nonce, response.tst_info.message_imprint.message)
        except ValueError:
            given = None
        if given != (0, request.nonce, sha256(statement).digest()):
            raise WitnessError(f"{self.name}: the answer is no stamp of the request")
        return b64encode(content).decode()

    def _send(self, request: bytes) -> bytes:
        wanted = Request(  # noqa: S310  (only https, or this machine)
            self.name, request, {"Content-Type": "application/timestamp-query"}, method="POST"
        )
        try:
            with build_opener(_NoRedirections).open(wanted, timeout=_STAMP_SECONDS) as answer:
                content: bytes = answer.read(_LARGEST_STAMP + 1)
        except HTTPError as error:
            error.close()
            raise WitnessError(f"{self.name}: the authority refused: {error.code}") from None
        except (OSError, HTTPException) as error:
            raise WitnessError(f"{self.name}: the authority was not reached: {type(error).__name__}") from None
        if len(content) > _LARGEST_STAMP:
            raise WitnessError(f"{self.name}: the answer is too large")
        return content


def _sort_certificates(answer: bytes) -> bytes:
    """Return a stamp with its certificates in DER's order, which OpenSSL does not keep and no signature covers."""
    try:
        [(_, start, end)] = _split_der(answer, 0, len(answer))
        for position in (1, 1, 0):  # the token, its content, and the signed data
            _, start, end = _split_der(answer, start, end)[position]
        for tag, begin, stop in _split_der(answer, start, end):
            if answer[tag] == _CERTIFICATES_TAG:
                certificates = sorted(answer[first:last] for first, _, last in _split_der(answer, begin, stop))
                return answer[:begin] + b"".join(certificates) + answer[stop:]
    except (IndexError, ValueError):
        pass  # no stamp: the decoder refuses it
    return answer


def _split_der(data: bytes, start: int, end: int) -> list[tuple[int, int, int]]:
    """Return where each element begins, where its content begins, and where both end."""
    elements = []
    while start < end:
        length, content = data[start + 1], start + 2
        if length & 0x80:
            first, content = content, content + (length & 0x7F)
            length = int.from_bytes(data[first:content])
        elements.append((start, content, content + length))
        start = content + length
    return elements


class TimeStampVerifier:
    """Verifies stamps by the certificates of authorities that an auditor trusts."""

    def __init__(self, roots: Path) -> None:
        """Read the certificates of a PEM file.

        Raises:
            Missing: the client is not installed.
            WitnessError: the file has no certificate.
        """
        self._client = import_or_missing("rfc3161_client", _EXTRA)
        x509 = import_or_missing("cryptography.x509", _EXTRA)
        try:
            self._roots = x509.load_pem_x509_certificates(roots.read_bytes())
        except (OSError, ValueError) as error:
            found = "is not set" if roots == Path() else f"{roots} has no certificates: {type(error).__name__}"
            raise WitnessError(
                f"SOTTO_TIMESTAMP_ROOTS: {found}; give a PEM file of the authorities that you trust"
            ) from None

    def find_time(self, anchor: Anchor) -> str | None:
        """Return the time at which an anchor's head was stamped; None if its stamp is invalid."""
        builder = self._client.VerifierBuilder(roots=list(self._roots))
        try:
            response = self._client.decode_timestamp_response(b64decode(anchor.stamp or "", validate=True))
            builder.build().verify_message(response, stamped_statement(anchor.installation, anchor.head))
        except (ValueError, self._client.errors.VerificationError):
            return None
        return f"{response.tst_info.gen_time:%Y-%m-%d %H:%M:%S UTC}"
