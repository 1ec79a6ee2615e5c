"""ClickHouse's HTTP interface over chdb: ``python -m tests.unit.tables.readers.chdb_server PORT FOLDER``.

It runs one statement at a time and knows no users.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import chdb.session


class StatementHandler(BaseHTTPRequestHandler):
    """Answers a statement in the body or in the parameter ``query``."""

    protocol_version = "HTTP/1.1"
    session: Any
    lock = Lock()

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        statement = parse_qs(urlsplit(self.path).query).get("query", [""])[0] + body
        try:
            with self.lock:
                status, answer = 200, self.session.query(statement, "TabSeparated").bytes() if statement else b""
        except Exception as error:  # noqa: BLE001  (as a server answers)
            status, answer = 500, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Write no log."""


if __name__ == "__main__":
    StatementHandler.session = chdb.session.Session(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), StatementHandler).serve_forever()
