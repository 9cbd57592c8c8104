"""A model hub on loopback: the endpoints that `huggingface_hub` calls, over real HTTP, with the faults that tests need.

    with FakeHub() as hub:
        hub.add("org/model", {"model.safetensors": b"..."})
        hub.cut("model.safetensors", after=1000)          # the next answer ends in the middle
        ...download from hub.url...
        hub.seen("model.safetensors")                     # what was asked for, and how much was sent

Large files (`*.safetensors`, `*.bin`) are answered as the real hub does: a redirect to a storage host (here the same
server under its other name, `localhost`), which honours `Range` and must never see the token.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

VALID_TOKEN = "hf_valid"
TOKEN_WITHOUT_ACCESS = "hf_noaccess"


@dataclass(frozen=True)
class Seen:
    """One request for a file's content, as answered."""

    file: str
    start: int  # first byte that was asked for: 0, or what a Range header says
    sent: int  # body bytes that were written
    authorized: bool  # whether the request carried a token


@dataclass
class _Repo:
    files: dict[str, bytes]
    commit: str
    gated: bool
    private: bool


@dataclass
class _Fault:
    after: int
    times: int
    release: threading.Event | None = None  # stall until it is set, instead of hanging up


@dataclass
class _Failure:
    status: int
    after_requests: int


@dataclass
class _State:
    repos: dict[str, _Repo] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    cuts: dict[str, _Fault] = field(default_factory=dict)
    failures: dict[str, _Failure] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    listings: int = 0
    ignore_range: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of clients that hang up: tests kill some. Other errors are bugs of this file, and shown."""
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
        """What `HF_ENDPOINT` should be."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fault in self._state.cuts.values():
            if fault.release is not None:
                fault.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, repo: str, files: Mapping[str, bytes], *, gated: bool = False, private: bool = False) -> None:
        """Publish a repository, or a new commit of it."""
        commit = hashlib.sha1(b"".join(files[name] for name in sorted(files))).hexdigest()
        self._state.repos[repo] = _Repo(dict(files), commit, gated, private)

    def cut(self, file: str, after: int, times: int = 1) -> None:
        """Hang up after `after` body bytes of the file, for the next `times` answers."""
        self._state.cuts[file] = _Fault(after, times)

    def stall(self, file: str, after: int) -> threading.Event:
        """Fall silent after `after` body bytes of the file's next answer, until the event is set."""
        event = threading.Event()
        self._state.cuts[file] = _Fault(after, 1, event)
        return event

    def fail(self, file: str, status: int, after_requests: int = 0) -> None:
        """Answer requests for the file's content, but for the next `after_requests`, with this status; 0 ends that."""
        self._state.failures[file] = _Failure(status, after_requests)

    def corrupt(self, file: str, on: bool = True) -> None:
        """Send other bytes than were published, of the same length."""
        (self._state.corrupt.add if on else self._state.corrupt.discard)(file)

    def ignore_range(self) -> None:
        """Answer a Range request with the whole file, as some proxies do."""
        self._state.ignore_range = True

    @property
    def listings(self) -> int:
        """How often a repository was listed."""
        return self._state.listings

    def seen(self, file: str | None = None) -> list[Seen]:
        """Requests for content so far, of one file or of all, in the order in which they were answered."""
        with self._state.lock:
            return [entry for entry in self._state.seen if file in (None, entry.file)]


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
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        match parts:
            case ["api", "models", org, name, "revision", revision]:
                self._with_access(f"{org}/{name}", revision, self._list)
            case [org, name, "resolve", revision, *path]:
                self._with_access(
                    f"{org}/{name}",
                    revision,
                    lambda repo: self._resolve(f"{org}/{name}", repo, "/".join(path)),
                    content=True,
                )
            case ["storage", org, name, *path]:
                self._content(self.hub.repos[f"{org}/{name}"], "/".join(path))
            case _:
                self._error(404, "no such route")

    @property
    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _with_access(self, name: str, revision: str, answer: Callable[[_Repo], None], *, content: bool = False) -> None:
        repo, token = self.hub.repos.get(name), self._token
        if token not in (None, VALID_TOKEN, TOKEN_WITHOUT_ACCESS):
            self._error(401, "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and token != VALID_TOKEN):
            # The real hub hides whether a repository exists from those who are not logged in.
            if token is None:
                self._error(401, "Invalid username or password.")
            else:
                self._error(404, "Repository not found", "RepoNotFound")
        elif revision not in ("main", repo.commit):
            self._error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        elif content and repo.gated and token != VALID_TOKEN:
            self._error(401 if token is None else 403, "Access to model is restricted", "GatedRepo")
        else:
            answer(repo)

    def _list(self, repo: _Repo) -> None:
        self.hub.listings += 1
        siblings = []
        for name, content in repo.files.items():
            sibling: dict[str, object] = {"rfilename": name, "size": len(content)}
            if _is_large(name):
                sha256 = hashlib.sha256(content).hexdigest()
                sibling |= {"blobId": "0" * 40, "lfs": {"sha256": sha256, "size": len(content), "pointerSize": 130}}
            else:
                sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            siblings.append(sibling)
        body = json.dumps({"id": "fake", "sha": repo.commit, "siblings": siblings}).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _resolve(self, name: str, repo: _Repo, path: str) -> None:
        if path not in repo.files:
            self._error(404, "Entry not found", "EntryNotFound")
        elif _is_large(path):
            content = repo.files[path]
            self._answer(
                302,
                b"",
                {
                    "Location": f"http://localhost:{self.connection.getsockname()[1]}/storage/{name}/{path}",
                    "X-Repo-Commit": repo.commit,
                    "X-Linked-Size": str(len(content)),
                    "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                },
            )
        else:
            self._content(repo, path)

    def _content(self, repo: _Repo, path: str) -> None:
        if status := self._take_failure(path):
            self._error(status, "fault asked for by a test")
            return
        content = repo.files[path]
        if path in self.hub.corrupt:
            content = bytes(byte ^ 0xFF for byte in content)
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and not self.hub.ignore_range else 0
        body = content[start:]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": repo.commit}
        if asked and not self.hub.ignore_range:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send_response(206 if "Content-Range" in headers else 200)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = self._take_fault(path)
        sent = body if fault is None else body[: fault.after]
        # Recorded first: a client that has the last byte may look before this thread runs again.
        with self.hub.lock:
            self.hub.seen.append(Seen(path, start, len(sent), self._token is not None))
        self.wfile.write(sent)
        if fault is not None:
            self.wfile.flush()
            if fault.release is not None:
                fault.release.wait(30)
            self.close_connection = True

    def _take_failure(self, path: str) -> int:
        with self.hub.lock:
            failure = self.hub.failures.get(path)
            if failure is None or failure.after_requests > 0:
                if failure is not None:
                    failure.after_requests -= 1
                return 0
            return failure.status

    def _take_fault(self, path: str) -> _Fault | None:
        with self.hub.lock:
            fault = self.hub.cuts.get(path)
            if fault is None or fault.times == 0:
                return None
            fault.times -= 1
            return fault

    def _error(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._answer(status, json.dumps({"error": message}).encode(), headers)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".pth"))
