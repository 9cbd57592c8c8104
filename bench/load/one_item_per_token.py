"""The usual way to stream with Serve, for comparison: each token is an item of a stream between two deployments.

It has the application's stub engine and token events, but not its relay.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import StreamingResponse

from cluster.profiles.reading import load_profile
from router.request import InferenceRequest
from serve_app.api.sse import event, token_events
from serve_app.engine.interface import GenerationRequest, TokenStep, plain_request
from serve_app.engine.stub import StubEngine

_MANY = 2048


class Engine:
    """A replica that yields the stub engine's tokens one by one."""

    def __init__(self) -> None:
        self._engine = StubEngine(load_profile("local").entry("eco", None), tokens_per_s=0.0)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[bytes, None]:
        """Yield token events, then the terminal event."""
        async for item in self._engine.generate(request):
            if isinstance(item, TokenStep):
                for token in item.tokens:
                    yield token_events([token])
        yield event("done", {})


class Front:
    """The ingress: writes each item as it arrives."""

    def __init__(self, engine: DeploymentHandle) -> None:
        self._engine = engine.options(stream=True)

    async def __call__(self, http: Request) -> StreamingResponse:
        """Answer a `POST` with a prompt and max_tokens, as `/api/inference` takes them."""
        request = InferenceRequest.model_validate_json(await http.body())
        generation = plain_request(uuid.uuid4().hex, request.chat(), request.max_tokens or 64)
        return StreamingResponse(self._engine.generate.remote(generation), media_type="text/event-stream")


def build(args: dict[str, Any]) -> Application:
    """Build the application."""
    options: dict[str, Any] = {"max_ongoing_requests": _MANY, "ray_actor_options": {"num_cpus": 0.1}}
    engine = serve.deployment(Engine).options(name="item-engine", **options)
    return serve.deployment(Front).options(name="item-front", **options).bind(engine.bind())
