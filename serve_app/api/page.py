"""The page at `/`: the files of `serve_app/web`, with the headers that keep it to itself.

The browser runs only what comes from here, and talks only to here: no outside request, no inline script, no frame. A
model's text can be no script, because the page never makes HTML of it; the policy is the second line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.errors import ApiError

WEB: Final = Path(__file__).parents[1] / "web"
INDEX: Final = "index.html"
CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
"""What is served, by suffix. The system's table of types differs between machines. Types (`.d.ts`) stay here."""
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time whether its copy is still the right one, so that a new version is seen at once.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    body: bytes
    content_type: str
    etag: str
    """Strong: of the content."""


def read_files(folder: Path = WEB) -> Mapping[str, PageFile]:
    """Return the files that are served, by their path in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content_type = CONTENT_TYPES.get(path.suffix)
        if content_type is not None and path.is_file():
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = PageFile(body, content_type, etag)
    return found


class Page:
    """The files of the page, in memory."""

    def __init__(self) -> None:
        self._files = read_files()

    async def index(self, request: Request, request_id: str) -> Response:
        """`GET /`: the page."""
        return self._respond(request, INDEX)

    async def file(self, request: Request, request_id: str) -> Response:
        """`GET /web/{file}`: a file of the page.

        Raises:
            ApiError: 404.
        """
        return self._respond(request, request.path_params["file"])

    def _respond(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ApiError("not_found", f"the page has no file {name!r}", status=404)
        headers = HEADERS | {"etag": file.etag}
        if file.etag in _known(request):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers | {"content-type": file.content_type})


def _known(request: Request) -> set[str]:
    """Return the etags of which the browser has a copy. A proxy that compresses makes them weak (`W/`)."""
    given = request.headers.get("if-none-match", "")
    return {each.strip().removeprefix("W/") for each in given.split(",")}
