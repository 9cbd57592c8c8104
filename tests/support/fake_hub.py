"""A model hub on loopback: the endpoints that `huggingface_hub` calls, over real HTTP, with the faults that tests need.

with FakeHub() as hub:
    hub.add("org/model", {"model.safetensors": b"..."})
    hub.cut("model.safetensors", after=1000)          # hang up in the middle of the next answer
    ...download from hub.url...
    hub.downloads                                     # names of the files that were sent
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

VALID_TOKEN = "hf_valid"
TOKEN_WITHOUT_ACCESS = "hf_noaccess"


@dataclass
class _Repo:
    files: dict[str, bytes]
    commit: str
    gated: bool
    private: bool


@dataclass
class _State:
    repos: dict[str, _Repo] = field(default_factory=dict)
    commits: dict[tuple[str, str], _Repo] = field(default_factory=dict)
    """By repository and commit; `repos` has the newest of each."""
    listings: int = 0
    downloads: list[str] = field(default_factory=list)
    cuts: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, threading.Event] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up, as tests kill some. Show other errors: they are bugs of this file."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FakeHub:
    """The server; use it as a context manager. Every setting may change while it runs."""

    def __init__(self) -> None:
        self._state = _State()
        state = self._state

        class Handler(_Handler):
            hub = state

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Value for `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stalled in self._state.stalls.values():
            stalled.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, repo: str, files: Mapping[str, bytes], *, gated: bool = False, private: bool = False) -> None:
        """Publish a repository, or a new commit of it."""
        commit = hashlib.sha1(b"".join(files[name] for name in sorted(files))).hexdigest()
        self._state.repos[repo] = self._state.commits[repo, commit] = _Repo(dict(files), commit, gated, private)

    def cut(self, file: str, after: int) -> None:
        """Hang up after `after` bytes of the file's next answer."""
        self._state.cuts[file] = after

    def stall(self, file: str) -> threading.Event:
        """Answer no request for the file's content until the event is set."""
        return self._state.stalls.setdefault(file, threading.Event())

    def fail(self, file: str, status: int | None) -> None:
        """Answer requests for the file's content with this status; None ends that."""
        if status is None:
            del self._state.failures[file]
        else:
            self._state.failures[file] = status

    def corrupt(self, file: str, on: bool = True) -> None:
        """Send other bytes than the published ones, of the same length."""
        (self._state.corrupt.add if on else self._state.corrupt.discard)(file)

    @property
    def requests(self) -> int:
        """Number of requests so far."""
        return self._state.listings + len(self._state.downloads)

    @property
    def downloads(self) -> list[str]:
        """Names of the files whose content was requested, with repetitions, in order."""
        return list(self._state.downloads)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: _State

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _route(self) -> None:
        match unquote(urlsplit(self.path).path).strip("/").split("/"):
            case ["api", "models", org, name, "revision" | "tree" as kind, revision]:
                if repo := self._accessible(f"{org}/{name}", revision):
                    self.hub.listings += 1
                    self._json(_info(repo) if kind == "revision" else _tree(repo))
            case [org, name, "resolve", revision, *path]:
                if repo := self._accessible(f"{org}/{name}", revision, content=True):
                    self._content(repo, "/".join(path))
            case _:
                self._error(404, "no such route")

    def _accessible(self, name: str, revision: str, *, content: bool = False) -> _Repo | None:
        """Return the repository if the request may read it; else answer as the real hub does."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        repo = self.hub.commits.get((name, revision), self.hub.repos.get(name))
        if token not in (None, VALID_TOKEN, TOKEN_WITHOUT_ACCESS):
            self._error(401, "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and token != VALID_TOKEN):
            # The real hub hides from anonymous clients whether a repository exists.
            if token is None:
                self._error(401, "Invalid username or password.")
            else:
                self._error(404, "Repository not found", "RepoNotFound")
        elif revision not in ("main", repo.commit):
            self._error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        elif content and repo.gated and token != VALID_TOKEN:
            self._error(401 if token is None else 403, "Access to model is restricted", "GatedRepo")
        else:
            return repo
        return None

    def _content(self, repo: _Repo, path: str) -> None:
        content = repo.files[path]
        headers = {"ETag": f'"{_checksum(path, content)}"', "X-Repo-Commit": repo.commit}
        if self.command == "HEAD":
            self._answer(200, content, headers)
            return
        self.hub.downloads.append(path)
        if path in self.hub.stalls:
            self.hub.stalls[path].wait(30)
        if status := self.hub.failures.get(path):
            self._error(status, "a fault of the test")
            return
        if path in self.hub.corrupt:
            content = bytes(byte ^ 0xFF for byte in content)
        if (cut := self.hub.cuts.pop(path, None)) is not None:
            self.close_connection = True
        self._answer(200, content, headers, cut)

    def _json(self, body: object) -> None:
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._answer(status, json.dumps({"error": message}).encode(), headers)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])


def _info(repo: _Repo) -> dict[str, Any]:
    files = []
    for name, content in repo.files.items():
        file: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": _git_sha1(content)}
        if _is_large(name):
            file["lfs"] = {"sha256": _checksum(name, content), "size": len(content), "pointerSize": 130}
        files.append(file)
    return {"id": "fake", "sha": repo.commit, "siblings": files}


def _tree(repo: _Repo) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": name, "size": len(content), "oid": _git_sha1(content)}
        for name, content in repo.files.items()
    ]


def _checksum(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if _is_large(name) else _git_sha1(content)


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".pth"))
