"""Serve the page's files from the folder `static`, with ETag, and with gzip if the browser accepts that.

The files are read once. The headers forbid browsers to load anything else, or to show the page in a frame.
"""

import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
STANDBY: Final = "standby.html"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # the same as frame-ancestors, for old browsers
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the browser revalidates its copy by ETag each time: central may have been upgraded
    "Vary": "Accept-Encoding",
}


class File(NamedTuple):
    content_type: str
    body: bytes
    packed: bytes
    etag: str

    def answer(self, request: web.Request, *, status: int = 200) -> web.Response:
        headers = HEADERS | {"ETag": self.etag}
        if status == 200 and takes(request, self.etag):
            return web.Response(status=304, headers=headers)
        packs = takes_gzip(request)
        headers |= {"Content-Encoding": "gzip"} if packs else {}
        body = self.packed if packs else self.body
        return web.Response(status=status, headers=headers, body=body, content_type=self.content_type, charset="utf-8")


def read_files() -> dict[str, File]:
    return {path.name: _file(path) for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES}


def _file(path: Path) -> File:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return File(_TYPES[path.suffix], body, gzip.compress(body, mtime=0), etag)


def takes(request: web.Request, etag: str) -> bool:
    """Return whether the browser already has the version with this ETag."""
    return etag in [word.strip().removeprefix("W/") for word in request.headers.get("If-None-Match", "").split(",")]


def takes_gzip(request: web.Request) -> bool:
    text = [word.replace(" ", "") for word in request.headers.get("Accept-Encoding", "").lower().split(",")]
    return "gzip" in [word.split(";")[0] for word in text if not word.endswith((";q=0", ";q=0.0"))]
