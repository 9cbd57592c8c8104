"""The tools over MCP: in this process, and over stdio as any MCP client starts them."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from router.agent.application_state import ApplicationStateError
from router.agent.mcp_server import command, profile_reader, tool_server
from router.agent.tools import TOOLS, ToolContext, json_schema
from router.errors import ConfigError
from router.observation import Observation, TierState
from router.trace_steps import TraceStep
from serve_app.api.views import tiers_view
from tests.support.app_config import app_config
from tests.support.commands import run_command
from tests.unit.router.profiles import small_profile

main = partial(run_command, command)

ROOT = Path(__file__).parents[4]
CONTEXT = ToolContext(small_profile(), Observation({"eco": TierState(running=1)}))


async def read_context() -> ToolContext:
    return CONTEXT


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_the_tools_are_those_of_the_definitions() -> None:
    async with Client(tool_server(read_context)) as client:
        tools = (await client.list_tools()).tools
    assert [(tool.name, tool.description, tool.input_schema, tool.output_schema) for tool in tools] == [
        (tool.name, tool.description, json_schema(tool.input_type), json_schema(tool.output_type, "serialization"))
        for tool in TOOLS.values()
    ]


async def test_an_answer_is_both_text_and_structured_content() -> None:
    async with Client(tool_server(read_context)) as client:
        result = await client.call_tool("check_gpu_pool", {"tier": "eco"})
    assert result.is_error is False
    assert result.structured_content["warm"] is True
    assert json.loads(text(result)) == result.structured_content


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("check_gpu_pool", {"tier": "huge"}, "tier"),
        ("classify_prompt", {}, "there is no current request"),
        ("submit_plan", {"tier": "eco"}, "no tool 'submit_plan', there are classify_prompt"),
    ],
)
async def test_a_call_that_cannot_be_answered_is_an_error_with_the_reason(
    name: str, arguments: dict[str, Any], said: str
) -> None:
    async with Client(tool_server(read_context)) as client:
        result = await client.call_tool(name, arguments)
    assert result.is_error is True
    assert said in text(result)


async def test_every_call_is_recorded() -> None:
    steps: list[TraceStep] = []
    async with Client(tool_server(read_context, steps.append)) as client:
        await client.call_tool("check_gpu_pool", {"tier": "eco"})
        await client.call_tool("check_gpu_pool", {"tier": "huge"})
    assert [step.step for step in steps] == ["check_gpu_pool", "check_gpu_pool"]
    assert steps[0].result["warm"] is True
    assert list(steps[1].result) == ["error"]


async def test_an_application_that_does_not_answer_is_an_error_of_the_call() -> None:
    async def unreachable() -> ToolContext:
        raise ApplicationStateError("http://nowhere/api/tiers cannot be read")

    async with Client(tool_server(unreachable)) as client:
        result = await client.call_tool("check_gpu_pool", {"tier": "eco"})
    assert result.is_error is True
    assert "nowhere" in text(result)


# --- over stdio ---


def program(*arguments: str, **variables: str) -> StdioServerParameters:
    command = ["-m", "serve_app", "mcp", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, cwd=ROOT, env=variables)


@pytest.fixture
def sent() -> list[str | None]:
    """What the application got as `Authorization`."""
    return []


@pytest.fixture
def application(sent: list[str | None]) -> Iterator[str]:
    """Something that answers `/api/tiers` as the application does."""
    body = json.dumps(tiers_view(app_config(), Observation({"ultra": TierState(running=3)}))).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["authorization"])
            self.send_response(200 if self.path == "/prefix/api/tiers" else 404)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        log_message: Callable[..., None] = lambda *_: None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/prefix"
    server.shutdown()
    server.server_close()


async def test_a_client_sees_the_live_state_of_a_running_application(application: str, sent: list[str | None]) -> None:
    async with Client(program("--url", application, POWER_LEVER_KEY=" pl_mcp ")) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        pool = await client.call_tool("check_gpu_pool", {"tier": "ultra"})
        config = await client.call_tool("build_config", {"tier": "eco", "k": 3})
    assert tools == list(TOOLS)
    assert set(sent) == {"Bearer pl_mcp"}
    assert pool.structured_content["running"] == 3
    assert config.structured_content["spec_k"] == 3


async def test_a_client_sees_a_profile_without_an_application() -> None:
    async with Client(tool_server(profile_reader(ROOT / "cluster" / "profiles" / "local.yaml"))) as client:
        pool = await client.call_tool("check_gpu_pool", {"tier": "eco"})
        rated = await client.call_tool("classify_prompt", {"prompt": "Hi"})
    assert pool.structured_content["warm"] is False
    assert rated.structured_content["difficulty"] == 1


def test_a_profile_is_served_until_stdin_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO()))
    assert main(["--profile", str(ROOT / "cluster" / "profiles" / "local.yaml")]) == 0


@pytest.mark.parametrize("content", ["tiers: 7", "{", None])
def test_a_file_that_is_no_profile_is_an_error_before_anything_is_served(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        main(["--profile", str(path)])


def test_one_source_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "--url" in capsys.readouterr().err
