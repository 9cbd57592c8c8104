"""Downloads a model's files from the model hub: resumable to the byte, each file checked against the hub's checksum.

`huggingface_hub.snapshot_download` is not used: since 2.x a download that dies takes its unfinished file with it (every
process writes to a file name of its own and removes it on the way out), so a 5 GB shard starts over; and its `http_get`
hands on 10 MB at a time, so a line that is cut more often never gets on. This keeps the library's requests, headers,
rate-limit waits and errors, and every byte that arrived. Files come over HTTP, not Xet, which cannot go on from half a
file.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO, Literal

from cluster.weights.errors import WeightsError
from cluster.weights.hub_errors import explain
from cluster.weights.manifest import FileEntry, Manifest, read_manifest, sha256_of, write_manifest
from cluster.weights.selection import servable
from cluster.weights.space import FreeSpace, format_size, require_space
from router.registry import ModelSource

DEFAULT_ENDPOINT = "https://huggingface.co"
# One stream from the hub's CDN does not fill a data centre's line; four do without tripping its rate limit.
PARALLEL_FILES = 4
LISTING_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Which hub, and as whom."""

    endpoint: str = DEFAULT_ENDPOINT
    token: str | Literal[False] | None = None  # None: what `hf auth login` has stored, if anything; False: anonymous
    retries: int = 5  # tries in a row that bring no byte of a file, before giving up
    retry_wait_s: float = 2.0

    @classmethod
    def of(cls, env: Mapping[str, str]) -> HubAccess:
        """From `HF_ENDPOINT` and `HF_TOKEN`."""
        return cls(env.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT, env.get("HF_TOKEN", "").strip() or None)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub lists it."""

    name: str
    size: int  # bytes
    blob_id: str  # git's SHA-1 of the content, or of the LFS pointer
    sha256: str | None  # of the content; None for small files that live in git itself

    def incomplete(self, folder: Path) -> Path:
        """Where its first bytes are kept. Named after the content: a branch that moved on starts a new file."""
        return folder / f"{self.name}.{(self.sha256 or self.blob_id)[:16]}.incomplete"

    def checked(self, path: Path) -> FileEntry | None:
        """Its manifest entry if the content of `path` is what the hub says, else None. Reads the whole file."""
        size = path.stat().st_size
        if size != self.size:
            return None
        sha256 = sha256_of(path)
        good = sha256 == self.sha256 if self.sha256 is not None else _git_blob_sha1(path) == self.blob_id
        return FileEntry(size=size, sha256=sha256) if good else None

    def still_there(self, folder: Path, known: FileEntry | None) -> FileEntry | None:
        """Its entry if an earlier run has downloaded and checked it; large files are not read again."""
        path = folder / self.name
        if known is None or not path.is_file() or path.stat().st_size != self.size:
            return None
        return self.checked(path) if self.sha256 is None else known if known.sha256 == self.sha256 else None


def fetch(
    key: str, source: ModelSource, partial: Path, access: HubAccess, say: Callable[[str], None], free: FreeSpace
) -> Manifest:
    """Complete `partial` with the model's files and return their manifest, which is also written there.

    Files that an earlier run finished are kept, unfinished ones continued at their last byte.

    Raises:
        WeightsError: the hub refused, could not be reached, or sent something else than it promised; no space.
        OSError: `partial` cannot be written.
    """
    # A second of imports: only here, so that listing and a finished seed stay quick.
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError, HTTPError

    if access.token is None:
        access = replace(access, token=get_token() or False)
    try:
        commit, files = _listing(source, access)
        manifest, todo = _resume(source, commit, files, partial)
        started = {file.name: _size(file.incomplete(partial)) for file in todo}
        needed = sum(file.size - started[file.name] for file in todo)
        require_space(partial.parent, needed, key, free)
        say(
            f"{key}: downloading {source.repo} at {commit[:12]}: {format_size(needed)} in {len(todo)} files"
            + (
                f", {format_size(manifest.size + sum(started.values()))} are here already"
                if needed < _total(files)
                else ""
            )
        )
        return _Download(key, source, commit, partial, access, manifest).run(todo, sum(started.values()))
    except (HTTPError, HFValidationError, JSONDecodeError, OSError) as error:
        message = explain(error, source, access.endpoint, has_token=bool(access.token))
        if message is None:  # about this machine's disk, not about the hub
            raise
        raise WeightsError(f"{key}: {message}") from error


def _listing(source: ModelSource, access: HubAccess) -> tuple[str, list[RemoteFile]]:
    from huggingface_hub import HfApi

    info = HfApi(endpoint=access.endpoint, token=access.token).model_info(
        source.repo, revision=source.revision, files_metadata=True, timeout=LISTING_TIMEOUT_S
    )
    listed = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    names = servable(listed)
    if not names:
        raise WeightsError(f"{source.repo} at {source.revision} holds no weights that vLLM can load (*.safetensors)")
    files = []
    for sibling in (listed[name] for name in names):
        if sibling.size is None or sibling.blob_id is None:
            raise WeightsError(
                f"{access.endpoint} tells no checksum of {sibling.rfilename}: not a hub that can be trusted"
            )
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        files.append(RemoteFile(sibling.rfilename, sibling.size, sibling.blob_id, sha256))
    return str(info.sha), files


def _resume(
    source: ModelSource, commit: str, files: list[RemoteFile], partial: Path
) -> tuple[Manifest, list[RemoteFile]]:
    """What of `files` is in `partial` already, and what is still to do; anything else in `partial` is removed."""
    partial.mkdir(exist_ok=True)
    earlier = read_manifest(partial)
    known = earlier.files if earlier else {}
    entries = {file.name: file.still_there(partial, known.get(file.name)) for file in files}
    done = {name: entry for name, entry in entries.items() if entry is not None}
    todo = [file for file in files if file.name not in done]
    keep = set(done) | {file.incomplete(partial).name for file in todo}
    for path in partial.iterdir():
        if path.name not in keep and path.is_file():
            path.unlink()
    manifest = Manifest(source=source.source, repo=source.repo, revision=source.revision, commit=commit, files=done)
    write_manifest(partial, manifest)
    return manifest, todo


class _Download:
    """Downloads files side by side into one folder, under one progress bar; its manifest grows as they are checked."""

    def __init__(
        self, key: str, source: ModelSource, commit: str, partial: Path, access: HubAccess, done: Manifest
    ) -> None:
        from huggingface_hub.utils import build_hf_headers

        self._key, self._source, self._commit, self._partial, self._access = key, source, commit, partial, access
        # Uncompressed, so that a byte offset means the same in every answer.
        self._headers = build_hf_headers(token=access.token) | {"Accept-Encoding": "identity"}
        self._manifest = done
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, files: list[RemoteFile], started: int) -> Manifest:
        """Download all; the first failure stops the others where they are."""
        from tqdm import tqdm

        total = self._manifest.size + _total(files)
        with (
            tqdm(  # disable=None: no bar where the output is not a terminal
                total=total,
                initial=self._manifest.size + started,
                unit="B",
                unit_scale=True,
                desc=self._key,
                disable=None,
            ) as bar,
            ThreadPoolExecutor(PARALLEL_FILES) as pool,
        ):
            jobs = [pool.submit(self._download, file, bar) for file in files]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:  # also on Ctrl-C
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
            # The cause, not the stops that it caused.
            failures = [error for job in jobs if not job.cancelled() and (error := job.exception()) is not None]
            for error in sorted(failures, key=lambda error: isinstance(error, _Stopped)):
                raise error
        return self._manifest

    def _download(self, file: RemoteFile, bar: Any) -> None:
        unfinished = file.incomplete(self._partial)
        if _size(unfinished) > file.size:
            unfinished.unlink()
        with unfinished.open("ab") as out:
            self._transfer(file, out, bar)
        entry = file.checked(unfinished)
        if entry is None:
            unfinished.unlink()  # nothing of it can be trusted: continuing it would never come right
            raise WeightsError(
                f"{self._key}: {file.name} arrived with a wrong checksum and was thrown away; seed again; if that "
                f"repeats, a proxy or {self._access.endpoint} changes or damages the file"
            )
        with self._lock:
            unfinished.rename(self._partial / file.name)
            files = {**self._manifest.files, file.name: entry}
            self._manifest = self._manifest.model_copy(update={"files": files})
            write_manifest(self._partial, self._manifest)

    def _transfer(self, file: RemoteFile, out: BinaryIO, bar: Any) -> None:
        """Append the rest of the file to `out`; goes on after every cut, until several tries in a row bring nothing."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError

        fruitless = 0
        while (have := out.tell()) < file.size:
            error: Exception | None = None
            try:
                self._read_once(file, out, bar)
            except HTTPError as caught:
                if isinstance(caught, HfHubHTTPError) and caught.response.status_code < 500:
                    raise  # refused: asking again would not help
                error = caught
            fruitless = 0 if out.tell() > have else fruitless + 1
            if fruitless > self._access.retries:
                raise error or WeightsError(f"{self._key}: {file.name} does not arrive whole: seed again, it continues")
            if out.tell() < file.size:
                bar.set_postfix_str(f"trying again ({type(error).__name__ if error else 'cut short'})")
                if self._stop.wait(self._access.retry_wait_s):
                    raise _Stopped

    def _read_once(self, file: RemoteFile, out: BinaryIO, bar: Any) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT
        from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

        have = out.tell()
        # Asked of the hub each time: the storage address it redirects to is signed, and expires.
        url = hf_hub_url(self._source.repo, file.name, revision=self._commit, endpoint=self._access.endpoint)
        headers = self._headers | ({"Range": f"bytes={have}-"} if have else {})
        with http_stream_backoff(
            "GET",
            url,
            headers=headers,
            timeout=HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),
            retry_on_status_codes=(429,),  # waits as long as the hub says
        ) as response:
            hf_raise_for_status(response)
            if have and response.status_code != 206:  # it sends the whole file, whatever was asked for
                out.seek(0)
                out.truncate()
                self._advance(bar, -have)
            for chunk in response.iter_bytes():
                out.write(chunk)
                self._advance(bar, len(chunk))

    def _advance(self, bar: Any, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            bar.update(count)


class _Stopped(Exception):
    """Another file failed, or the user pressed Ctrl-C: give up where we are."""


def _total(files: Iterable[RemoteFile]) -> int:
    return sum(file.size for file in files)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _git_blob_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
