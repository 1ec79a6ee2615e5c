"""The page: static files that come with the package, and the headers that keep it to them.

The page runs no script but its own and talks to nobody but this server. It is served without a token, for it holds no
figure; everything that it shows it asks of the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from aiohttp import web

FOLDER = Path(__file__).parent / "static"
START = "index.html"
ICON = "icon.svg"

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "form-action 'none'",
    # The browser itself refuses to make markup of text.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
CONTENT_SECURITY_POLICY = "; ".join(_POLICY)

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class _Asset:
    body: bytes
    content_type: str
    tag: str

    def answer(self, request: web.Request) -> web.Response:
        """The file, or nothing but its tag for a browser that has it."""
        headers = {**_HEADERS, "ETag": f'"{self.tag}"'}
        if any(known.value in {self.tag, "*"} for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=self.body, content_type=self.content_type, charset="utf-8", headers=headers)


def load_assets() -> dict[str, _Asset]:
    """Every file of the page by its path below ``static``, read once: what a request names is never a file's path."""
    assets = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            name = str(PurePosixPath(*path.relative_to(FOLDER).parts))
            assets[name] = _Asset(body, _TYPES[path.suffix], sha256(body).hexdigest()[:32])
    return assets


def add_pages(application: web.Application) -> None:
    """Serve the page at ``/`` and its files below ``/static/``; unknown ones are 404."""
    assets = load_assets()

    async def start(request: web.Request) -> web.Response:
        return assets[START].answer(request)

    async def icon(request: web.Request) -> web.Response:
        return assets[ICON].answer(request)

    async def file(request: web.Request) -> web.Response:
        asset = assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        return asset.answer(request)

    application.router.add_get("/", start)
    application.router.add_get("/favicon.ico", icon)
    application.router.add_get("/static/{name:.+}", file)
