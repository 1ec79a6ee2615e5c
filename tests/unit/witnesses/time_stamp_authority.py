"""Replaces a time-stamp authority (RFC 3161) with a server on 127.0.0.1; OpenSSL signs its stamps."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

_CONFIGURATION = """
[tsa]
default_tsa = ts
[ts]
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/authority.pem
certs = {folder}/authority.pem
signer_key = {folder}/authority.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
"""


class TimeStampAuthority:
    """Stamps requests; ``alter`` replaces its answers, and ``is_down`` refuses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.stamps = 0
        self.is_down = False
        self.replay: bytes | None = None
        """An earlier reply that the authority sends again; None to make a new one."""
        self.latest = b""
        folder.mkdir()
        key = rsa.generate_private_key(65537, 2048)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        now = datetime.now(UTC)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(usage, critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.roots = folder / "authority.pem"
        self.roots.write_bytes(certificate.public_bytes(Encoding.PEM))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "authority.key").write_bytes(private)
        (folder / "serial").write_text("01\n")
        (folder / "authority.cnf").write_text(_CONFIGURATION.format(folder=folder))

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request."""
        query, reply = self.folder / "request", self.folder / "reply"
        query.write_bytes(request)
        command = ["openssl", "ts", "-reply", "-config", str(self.folder / "authority.cnf")]
        subprocess.run([*command, "-queryfile", str(query), "-out", str(reply)], check=True, capture_output=True)
        self.stamps += 1
        self.latest = reply.read_bytes()
        return self.latest


@contextmanager
def time_stamp_authority(folder: Path) -> Iterator[TimeStampAuthority]:
    """Serve an authority whose files are in a new folder."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which signs the stamps, is not installed")
    authority = TimeStampAuthority(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/timestamp-query"
            if authority.is_down:
                self.send_error(503)
                return
            answer = authority.replay or authority.answer(content)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        authority.address = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield authority
        finally:
            server.shutdown()
            thread.join()
