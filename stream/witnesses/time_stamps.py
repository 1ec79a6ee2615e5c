"""Time stamps of an authority (RFC 3161): proof that a head of the trail existed at a time.

An authority keeps no stamps and answers no questions about them, so it is not a witness itself. A missing stamp proves
nothing. But nobody can get a stamp with an earlier time for a trail that was rewritten later.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from schemas import TrailHead
from stream.optional_packages import import_or_missing
from stream.witnesses.anchor import Anchor, WitnessError, newest_generation
from stream.witnesses.witness_kinds import FileWitness

_SECONDS: Final = 5
_LARGEST_STAMP: Final = 64 * 1024
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_EXTRA: Final = "timestamps"


def stamped_statement(installation: str, head: TrailHead) -> bytes:
    """Return the bytes that are stamped: the installation's name and the head, so that any tool can check a stamp."""
    return f"sotto trail {json.dumps(installation)} {head.entries}:{head.digest}".encode()


def read_stamps(path: Path, roots: Path, installation: str) -> list[tuple[Anchor, str | None]]:
    """Return a file's newest generation, with the time of each anchor's stamp, or None if the stamp is invalid.

    Raises:
        Missing: the client is not installed.
        WitnessError: a file cannot be read.
    """
    verifier = TimeStampVerifier(roots)
    own = newest_generation(one for one in FileWitness(path).read_all() if one.installation == installation)
    return [(one, verifier.find_time(one)) for one in own]


class _NoRedirections(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirection."""


class TimeStamper:
    """A witness that has the heads of anchors stamped, and keeps the anchors with their stamps in a file."""

    def __init__(self, address: str, path: Path) -> None:
        """Raise Missing without the client, and WitnessError for an invalid address."""
        self._client = import_or_missing("rfc3161_client", _EXTRA)
        parts = urlsplit(address)
        if parts.username is not None or not (
            (parts.scheme == "https" and parts.hostname)
            or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
        ):
            raise WitnessError("SOTTO_TIMESTAMP_AUTHORITY: is no https address; give https://HOST/PATH")
        if not path.is_absolute():
            raise WitnessError("SOTTO_TIMESTAMP_FILE: is no absolute path; give the path of a file for the stamps")
        self.name = address
        self._file = FileWitness(path)

    def write(self, anchor: Anchor) -> None:
        """Have an anchor's head stamped, and append the anchor with the stamp.

        Raises:
            WitnessError: the authority does not answer, or stamps something else.
        """
        statement = stamped_statement(anchor.installation, anchor.head)
        self._file.write(anchor.model_copy(update={"stamp": self._stamp(statement)}))

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the last anchors of the file."""
        return self._file.read_newest(installation)

    def _stamp(self, statement: bytes) -> str:
        builder = self._client.TimestampRequestBuilder().data(statement)
        request = builder.hash_algorithm(self._client.base.HashAlgorithm.SHA256).build()
        content = self._send(request.as_bytes())
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
            with build_opener(_NoRedirections).open(wanted, timeout=_SECONDS) as answer:
                content: bytes = answer.read(_LARGEST_STAMP + 1)
        except HTTPError as error:
            error.close()
            raise WitnessError(f"{self.name}: the authority refused: {error.code}") from None
        except (OSError, HTTPException) as error:
            raise WitnessError(f"{self.name}: the authority was not reached: {type(error).__name__}") from None
        if len(content) > _LARGEST_STAMP:
            raise WitnessError(f"{self.name}: the answer is too large")
        return content


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
            raise WitnessError(
                f"SOTTO_TIMESTAMP_ROOTS: {roots} has no certificates: {type(error).__name__}; give a PEM file"
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
