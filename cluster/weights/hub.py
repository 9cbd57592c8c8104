"""Download a model's files with `huggingface_hub`, and check each of them against the hub's checksum.

A download that is interrupted keeps its finished files. The library downloads an unfinished file anew (a shard has 5 GB
at most), unless only the connection broke. On Ctrl-C it finishes the files under way; a second one stops it at once.
"""

from __future__ import annotations

import glob
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Final

from cluster.weights.errors import WeightsError
from cluster.weights.folder import format_size, require_space
from cluster.weights.manifest import FileEntry, Manifest, describe_file
from router.registry import ModelSource

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
PARALLEL_FILES: Final = 4
"""One connection does not fill a data centre's line; four do, within the hub's rate limit."""
LISTING_TIMEOUT_S: Final = 30.0
_NOTE: Final = "power-lever-commit"
_BESIDES_WEIGHTS: Final = ("*.json", "tokenizer.model*", "*.tiktoken", "*.jinja", "vocab.txt", "merges.txt")


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Which hub, and as whom."""

    endpoint: str = DEFAULT_ENDPOINT
    token: str | bool | None = None
    """None: the token that `hf auth login` has stored, if any. False: anonymous."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> HubAccess:
        """Read `HF_ENDPOINT` and `HF_TOKEN`."""
        return cls(env.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT, env.get("HF_TOKEN", "").strip() or None)


def download(
    key: str,
    source: ModelSource,
    folder: Path,
    access: HubAccess,
    report: Callable[[str], None],
    commit: str | None = None,
) -> Manifest:
    """Download the model's files into `folder`, keeping those that an earlier run finished, and return their manifest.

    The first run resolves the profile's revision to a commit and notes it in the folder; the next ones go on with it,
    even if the branch has moved.

    Args:
        key: the model's name.
        source: what the profile asks for.
        folder: takes the files.
        access: the hub.
        report: takes lines about the progress.
        commit: of the model that is replaced, if it was of the same source; None: the folder's note, or the revision.

    Raises:
        WeightsError: the hub refused, could not be reached, or sent damaged files; there is no space.
        OSError: `folder` cannot be written.
    """
    # These imports take a second. Do them only here, so that `list` and a finished `seed` stay quick.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()  # they only fill a log file
    try:
        folder.mkdir(exist_ok=True)
        commit, files = _listing(source, access, commit or _noted_commit(folder, source) or source.revision)
        missing = _prepare(folder, files)
        _note_commit(folder, source, commit)
        needed = sum(file.size for file in missing)
        require_space(folder.parent, needed, key)
        kept = f", {len(files) - len(missing)} files are here already" if len(missing) < len(files) else ""
        report(
            f"{key}: downloading {source.repo} at {commit[:12]}: {format_size(needed)} in {len(missing)} files{kept}"
        )
        snapshot_download(
            source.repo,
            revision=commit,
            local_dir=folder,
            allow_patterns=[glob.escape(file.rfilename) for file in files],
            endpoint=access.endpoint,
            token=access.token,
            max_workers=PARALLEL_FILES,
        )
    except (HTTPError, HFValidationError, JSONDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of this machine's disk, not of the hub
            raise
        raise WeightsError(f"{key}: {_explain(error, source, access.endpoint)}") from error
    entries = {file.rfilename: _checked(key, file, folder, access.endpoint) for file in files}
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return Manifest(source=source.source, repo=source.repo, revision=source.revision, commit=commit, files=entries)


def newest_commit(key: str, source: ModelSource, access: HubAccess) -> str:
    """Return the commit that the profile's revision stands for now.

    Raises:
        WeightsError: the hub refused or could not be reached.
    """
    from huggingface_hub.errors import HFValidationError, HTTPError

    try:
        return _listing(source, access, source.revision)[0]
    except (HTTPError, HFValidationError, JSONDecodeError, OSError) as error:
        raise WeightsError(f"{key}: {_explain(error, source, access.endpoint)}") from error


def files_to_download(names: Iterable[str]) -> list[str]:
    """Return the files that an engine needs, sorted: one form of the weights, configuration, tokenizer.

    The list is empty if the repository has no weights that vLLM loads. Folders are left out, as they hold other forms
    of the same weights (`original/`, `onnx/`). So are pickles (`*.bin`, `*.pth`) if there are safetensors; some draft
    heads are published only as `*.bin`.
    """
    root = [name for name in names if "/" not in name and not name.startswith(".")]
    weights = [name for name in root if name.endswith(".safetensors")]
    # Mistral publishes the same weights twice, as `model*` and as `consolidated*`.
    weights = [name for name in weights if not name.startswith("consolidated")] or weights
    weights = weights or [name for name in root if fnmatch(name, "pytorch_model*.bin")]
    if not weights:
        return []
    return sorted({*weights, *(name for name in root if any(fnmatch(name, pattern) for pattern in _BESIDES_WEIGHTS))})


def _note_commit(folder: Path, source: ModelSource, commit: str) -> None:
    """Keep the commit that the files in an unfinished folder are of. It goes with the library's own notes."""
    (folder / ".cache").mkdir(exist_ok=True)
    (folder / ".cache" / _NOTE).write_text(f"{source.repo} {source.revision} {commit}\n", encoding="utf-8")


def _noted_commit(folder: Path, source: ModelSource) -> str | None:
    try:
        repo, revision, commit = (folder / ".cache" / _NOTE).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return commit if (repo, revision) == (source.repo, source.revision) else None


def _listing(source: ModelSource, access: HubAccess, revision: str) -> tuple[str, list[Any]]:
    """Return the commit that the revision stands for, and the files to download (`RepoSibling`)."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=access.endpoint, token=access.token).model_info(
        source.repo, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT_S
    )
    listed = {file.rfilename: file for file in info.siblings or ()}
    files = [listed[name] for name in files_to_download(listed)]
    if not files:
        raise WeightsError(f"{source.repo} at {revision} holds no weights that vLLM can load (*.safetensors)")
    for file in files:
        if file.size is None or file.blob_id is None:
            raise WeightsError(f"{access.endpoint} lists no checksum of {file.rfilename}: do not trust it, use another")
    return str(info.sha), files


def _prepare(folder: Path, files: list[Any]) -> list[Any]:
    """Remove from `folder` what is not a finished file of this listing; return the files that are missing."""
    names = {file.rfilename for file in files}
    for path in folder.iterdir():
        if path.is_file() and path.name not in names:
            path.unlink()
    for unfinished in folder.glob(".cache/**/*.incomplete"):  # a killed download leaves them, and nothing resumes them
        unfinished.unlink()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    return [file for file in files if sizes.get(file.rfilename) != file.size]


def _checked(key: str, file: Any, folder: Path, endpoint: str) -> FileEntry:
    """Return the manifest entry of a downloaded file.

    Raises:
        WeightsError: the content is not what the hub lists. The file is removed.
    """
    from huggingface_hub.utils.sha import git_hash

    path = folder / file.rfilename
    if not path.is_file():  # the library only warns if the hub stops answering
        raise WeightsError(f"{key}: {file.rfilename} did not arrive: seed again, finished files are kept")
    entry = describe_file(path)
    # Small files are in git itself, and have git's own checksum.
    intact = entry.sha256 == file.lfs.sha256 if file.lfs else git_hash(path.read_bytes()) == file.blob_id
    if not intact:
        path.unlink()
        raise WeightsError(
            f"{key}: {file.rfilename} arrived with a wrong checksum and was removed: seed again; if that repeats, a "
            f"proxy or {endpoint} damages the file"
        )
    return entry


def _explain(error: BaseException, source: ModelSource, endpoint: str) -> str:
    """Return what an error of `huggingface_hub` or the network means for the user, in one line."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    page = f"{endpoint}/{source.repo}"
    match error:
        case GatedRepoError():
            return f"{source.repo} is gated: accept its licence at {page}, set HF_TOKEN of that account, and seed again"
        case RevisionNotFoundError():
            return f"{source.repo} has no revision {source.revision!r}: correct `revision` in the profile (see {page})"
        case HFValidationError():
            return f"{source.repo!r} is no repository name (`org/name`): correct `repo` in the profile"
        case HfHubHTTPError() if error.response.status_code in (401, 403, 404):
            return (
                f"{endpoint} has no {source.repo} that this HF_TOKEN may read ({error.response.status_code}): check "
                f"`repo` in the profile, and the token at {endpoint}/settings/tokens"
            )
        case HfHubHTTPError():
            return f"{endpoint} answered {error.response.status_code}: seed again later, finished files are kept"
    reason = str(error).partition("\n")[0]
    return (
        f"{endpoint} cannot be used ({type(error).__name__}: {reason}): check the network, the proxy and HF_ENDPOINT, "
        "and seed again, finished files are kept"
    )
