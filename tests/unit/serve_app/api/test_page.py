"""The page's files: whole, of the right type, kept to themselves, and in an installed copy too."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from serve_app.api.page import WEB, read_files
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress

VENDORED: Final = {
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.esm.d.ts": "af44374f6e808be4f7f3fa5888b9c7574dca9f8a15a66d54b6763535802c8080",
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""sha256 of each file of npm's package uplot 1.6.32, in `dist/` there (`uPlot.d.ts`), and its `LICENSE`."""


async def get(monkeypatch: pytest.MonkeyPatch, path: str, **headers: str) -> httpx.Response:
    async with LocalIngress(app_config(), monkeypatch).http() as http:
        return await http.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_the_page_is_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    response = await get(monkeypatch, "/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == (WEB / "index.html").read_text(encoding="utf-8")


async def test_below_a_route_prefix_the_pages_own_paths_lead_to_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(), monkeypatch)
    transport = httpx.ASGITransport(ingress.app, root_path="/tight")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        moved = await http.get("/tight")  # paths of a page at /tight would begin at /
        assert (moved.status_code, moved.headers["location"]) == (307, "http://localhost/tight/")
        page = await http.get("/tight/")
        [script] = re.findall(r'script type="module" src="([^"]+)"', page.text)
        assert (await http.get(page.url.join(script))).status_code == 200


async def test_head_asks_for_the_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LocalIngress(app_config(), monkeypatch).http() as http:
        response = await http.head("/")
    assert response.status_code == 200
    assert response.headers["content-length"] == str((WEB / "index.html").stat().st_size)


@pytest.mark.parametrize(
    ("file", "content_type"),
    [
        ("main.js", "text/javascript; charset=utf-8"),
        ("vendor/uPlot.esm.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/uPlot.LICENSE", "text/plain; charset=utf-8"),
    ],
)
async def test_each_file_has_its_own_type(monkeypatch: pytest.MonkeyPatch, file: str, content_type: str) -> None:
    response = await get(monkeypatch, f"/web/{file}")
    assert response.headers["content-type"] == content_type
    assert response.content == (WEB / file).read_bytes()


@pytest.mark.parametrize("path", ["/", "/web/main.js", "/web/style.css"])
async def test_the_browser_may_run_and_ask_only_what_comes_from_here(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    headers = (await get(monkeypatch, path)).headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_a_browser_that_has_the_file_gets_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    first = await get(monkeypatch, "/web/style.css")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = await get(monkeypatch, "/web/style.css", if_none_match=known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    other = await get(monkeypatch, "/web/style.css", if_none_match='"other"')
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "path",
    ["/web/", "/web/nothing.js", "/web/types.d.ts", "/web/jsconfig.json", "/web/..%2Fapp.py", "/web/%2e%2e/app.py"],
)
async def test_nothing_else_is_served(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    response = await get(monkeypatch, path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_the_page_names_only_files_that_are_served() -> None:
    files = read_files()
    html = files["index.html"].body.decode()
    named = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(named) >= 4
    assert [each for each in named if each.removeprefix("web/") not in files] == []
    for name, file in files.items():
        if name.endswith(".js") and not name.startswith("vendor/"):
            imported = re.findall(r'^import .* from "\./([^"]+)";$', file.body.decode(), re.MULTILINE)
            assert [each for each in imported if each not in files] == []


def test_no_script_makes_html_of_a_text() -> None:
    makers = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function")
    ours = {path.name: path.read_text(encoding="utf-8") for path in WEB.glob("*.js")}
    assert len(ours) > 10
    assert [(name, maker) for name, text in ours.items() for maker in makers if maker in text] == []


def test_what_is_vendored_is_what_was_published() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (WEB / "vendor").iterdir()}
    assert found == VENDORED


def test_an_installed_copy_has_every_file(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_py", "--build-lib", str(tmp_path)],
        cwd=WEB.parents[1],
        check=True,
        capture_output=True,
    )
    assert read_files(tmp_path / "serve_app/web") == read_files()
