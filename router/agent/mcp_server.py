"""The router's tools for any MCP client, over stdio.

It uses the low-level server of the `mcp` package: the tools are defined once for three interfaces, with their own JSON
schemas, and the Agent SDK takes only a low-level server.

power-lever mcp --url http://localhost:8000              the live state of a running application
power-lever mcp --profile cluster/profiles/gpu.yaml      a tier registry without a live state
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import click
import httpx2
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from router.agent.application_state import ApplicationStateError, read_tiers
from router.agent.sources import profile_context
from router.agent.tools import TOOLS, ToolContext, ToolError, json_schema
from router.application_key import key_headers
from router.trace_steps import TraceStep, TraceValue

SERVER_NAME = "power-lever-router"
_READ_TIMEOUT_S = 10.0
ReadContext = Callable[[], Awaitable[ToolContext]]
"""Returns the context of the tools, new for each call.

Raises:
    ApplicationStateError: it cannot be read now.
"""


def tool_server(read_context: ReadContext, record: Callable[[TraceStep], None] | None = None) -> Server[Any]:
    """Return an MCP server with the router's tools.

    Args:
        read_context: reads what the tools work on.
        record: takes the trace step of every call of a tool.
    """

    def note(name: str, result: Mapping[str, TraceValue], began: float) -> None:
        if record is not None:
            record(TraceStep(name, result, (time.perf_counter() - began) * 1000))

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=mcp_tools())

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name not in TOOLS:
            return _failed(f"no tool {params.name!r}, there are {', '.join(TOOLS)}")
        began = time.perf_counter()
        try:
            answer = TOOLS[params.name].call(params.arguments or {}, await read_context())
        except (ToolError, ApplicationStateError) as error:
            note(params.name, {"error": str(error)}, began)
            return _failed(str(error))
        note(params.name, answer.model_dump(), began)
        return CallToolResult(
            content=[TextContent(text=answer.model_dump_json())], structured_content=answer.model_dump(mode="json")
        )

    return Server(SERVER_NAME, on_list_tools=list_tools, on_call_tool=call_tool)


def mcp_tools() -> list[Tool]:
    """Return the router's tools as MCP describes them."""
    return [
        Tool(
            name=tool.name,
            description=tool.description,
            input_schema=json_schema(tool.input_type),
            output_schema=json_schema(tool.output_type, "serialization"),
            annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        )
        for tool in TOOLS.values()
    ]


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)


def application_reader(client: httpx2.AsyncClient, url: str) -> ReadContext:
    """Return a reader of the live state of the application at that URL, from its `/api/tiers`."""

    async def read_context() -> ToolContext:
        try:
            response = await client.get(f"{url}/api/tiers")
            response.raise_for_status()
            body = response.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, json.JSONDecodeError) as error:
            raise ApplicationStateError(f"{url}/api/tiers cannot be read: {error}") from error
        return read_tiers(body)

    return read_context


def profile_reader(path: Path) -> ReadContext:
    """Return a reader of the registry in a profile's YAML, with no tier running.

    Raises:
        ConfigError: it cannot be read, or is no profile.
    """
    context = profile_context(path)

    async def read_context() -> ToolContext:
        return context

    return read_context


async def serve(read_context: ReadContext) -> None:
    """Answer on stdin and stdout until stdin ends."""
    server = tool_server(read_context)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _serve_application(url: str) -> None:
    async with httpx2.AsyncClient(timeout=_READ_TIMEOUT_S, headers=key_headers(os.environ)) as client:
        await serve(application_reader(client, url.rstrip("/")))


@click.command()
@click.option("--url", help="a running application")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="a profile's YAML")
def command(url: str | None, profile: Path | None) -> None:
    """Offer the router's tools to an MCP client over stdio, until stdin ends.

    \f
    Raises:
        ConfigError: the profile is wrong, or the key in the environment can be none.
    """
    if (url is None) == (profile is None):
        raise click.UsageError("name one source: --url or --profile")
    if url is not None:
        asyncio.run(_serve_application(url))
    elif profile is not None:
        asyncio.run(serve(profile_reader(profile)))
