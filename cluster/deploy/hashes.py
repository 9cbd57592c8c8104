"""Write the hashes of all packages into a list of requirements, so that pip installs these files and no others.

    python -m cluster.deploy.hashes requirements/cpu.txt ...     # `make hashes` does it for all lists

It adds the hashes of the files that pip takes on Linux x86_64 for the Python that runs it. So, after a change of
versions, delete the old hashes of their lines, and run it with Python 3.11 and with 3.12. pip reads the hashes in the
package index and downloads little.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PIN: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pins(text: str) -> dict[str, list[str]]:
    """Return the hashes of each `NAME==VERSION` of a list, in its order; none where a package has none yet."""
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if match := _PIN.match(line):
            found[match.group(0)] = _HASH.findall(line)
    return found


def with_hashes(text: str, found: Mapping[str, Sequence[str]]) -> str:
    """Return the list with these hashes beside those that it has. Comments stay in their places."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        match = _PIN.match(line)
        if match is None:
            lines.append(line)
            continue
        pin = match.group(0)
        hashes = sorted({*_HASH.findall(line), *found.get(pin, ())})
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{each}" for each in hashes)]))
    return "\n".join(lines) + "\n"


def hashes_in(report: Mapping[str, object], wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return the hashes of each pin in a report of `pip install --report`, by the pin as the list writes it."""
    by_name = {_normal(pin.partition("==")[0]): pin for pin in wanted}
    found: dict[str, list[str]] = {}
    installs = report["install"]
    assert isinstance(installs, list)
    for item in installs:
        pin = by_name[_normal(item["metadata"]["name"])]
        found[pin] = [item["download_info"]["archive_info"]["hashes"]["sha256"]]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _report(path: Path) -> Mapping[str, object]:
    """Return pip's report of what it would install.

    Raises:
        subprocess.CalledProcessError: pip found no file for a pin; it has said for which.
    """
    bare = "\n".join(pins(path.read_text(encoding="utf-8")))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*command, "--report", "-", "-r", "/dev/stdin"], input=bare, stdout=subprocess.PIPE, text=True, check=True
    )
    report: Mapping[str, object] = json.loads(done.stdout)
    return report


def main(paths: Sequence[str]) -> int:
    """Add the hashes to each of the lists."""
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        path.write_text(with_hashes(text, hashes_in(_report(path), list(pins(text)))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
