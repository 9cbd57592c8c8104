"""The ingress deployment: HTTP routes around the router. It holds no state that a client could notice.

Reading order: `InferenceApi.inference` is the way of a prompt; `openai` the way of an OpenAI client.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.pool.messages import POOL_AWAY
from cluster.supervised import troubles
from router.agent.bounds import Case
from router.plan import plan
from router.registry import TIER_NAMES, TierName
from router.request import InferenceRequest
from serve_app.admission.door import Bounded, request_id
from serve_app.admission.drain_gate import DrainGate
from serve_app.admission.tier_slots import Admission
from serve_app.api.advisor import AgentPart, make_advisor
from serve_app.api.body import DraftsWish, parse_inference, read_json, validated
from serve_app.api.errors import ApiError, error_response
from serve_app.api.inference import InferenceStream, generation_request
from serve_app.api.openai import MODELS, OpenAIExchange, choose, engine_call, model_not_found
from serve_app.api.openai_body import parse_openai
from serve_app.api.sse import SSE_HEADERS
from serve_app.api.streaming import ClosingStream
from serve_app.api.views import draft_floor, tiers_view
from serve_app.config import AppConfig
from serve_app.engine.deployment import StreamItem, stream_items
from serve_app.engine.interface import GenerationRequest
from serve_app.engine.stub import StubEngine
from serve_app.engine.vllm.compat import installed_version
from serve_app.pool.run_reports import RunReporter
from serve_app.pool.view import PoolView
from serve_app.transport.channel import TokenChannel
from serve_app.transport.client import TierClient
from serve_app.transport.inbox import Inbox, ReadAhead
from sustainability.factors import load_factors

Handler = Callable[[Request, str], Awaitable[Response]]


class Ingress:
    """One ingress replica.

    Args:
        config: the whole config.
        pool: handle of the GPU pool view.
        tiers: handle of each tier's engine deployment.
    """

    def __init__(self, config: AppConfig, pool: DeploymentHandle, tiers: Mapping[TierName, DeploymentHandle]) -> None:
        self._config = config
        self._pool = PoolView(pool)
        self._runs = RunReporter(pool, config.runs.report_every_s)
        self._channel = TokenChannel()
        admission = Admission(config.tiers, self._pool, config.limits.retry_after_s)
        self._tiers = TierClient(tiers, self._channel, self._pool, admission)
        self._factors = load_factors()
        self._vllm = installed_version()
        self._advisor = make_advisor(config, os.environ)
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._gate = DrainGate(pool, replica_id, config.limits.retry_after_s)
        self._beside = (self._pool.work, self._runs.work, self._channel.work, self._gate.work)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Serve calls this after the constructor; the application lives as long as the replica."""
        routes: list[tuple[str, Handler, list[str]]] = [
            ("/api/inference", self.inference, ["POST"]),
            ("/v1/chat/completions", self.chat_completions, ["POST"]),
            ("/v1/completions", self.completions, ["POST"]),
            ("/v1/models", self.models, ["GET"]),
            ("/v1/models/{model:path}", self.model, ["GET"]),
            ("/api/tiers", self.tiers, ["GET"]),
            ("/api/tiers/{tier}/drafts", self.drafts, ["POST"]),
            ("/healthz", self.healthz, ["GET"]),
            ("/readyz", self.readyz, ["GET"]),
            # As vLLM's server has them: tools that were made for it ask before they begin.
            ("/health", self.health, ["GET"]),
            ("/ping", self.health, ["GET", "POST"]),
            ("/version", self.version, ["GET"]),
        ]
        retry_after_s = self._config.limits.retry_after_s
        return Starlette(
            routes=[
                Route(path, answering(handler, retry_after_s), methods=methods) for path, handler, methods in routes
            ],
            middleware=[
                *cors(self._config.ingress.cors_origins),
                Middleware(self._gate.guard),
                Middleware(Bounded, most=self._config.ingress.max_ongoing_requests, retry_after_s=retry_after_s),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _unexpected},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self._channel.start(ray.util.get_node_ip_address())
        # Without a view every tier looks cold, which is no reason not to serve.
        with contextlib.suppress(*POOL_AWAY):
            await self._pool.refresh()
        for work in self._beside:
            work.start()
        yield
        for work in self._beside:
            work.stop()
        self._channel.stop()
        if self._advisor is not None:
            await self._advisor.aclose()

    async def inference(self, request: Request, request_id: str) -> Response:
        """`POST /api/inference`: validate, plan, open the tier's stream, answer with events."""
        arrived_s = time.monotonic()
        wish = parse_inference(await read_json(request, self._config.limits), self._config)
        agent = await self._plan(wish)
        decision = agent.plan
        asked = generation_request(request_id, wish, decision)
        inbox = self._mock(decision.tier, asked) if wish.mock else self._tiers.generate(decision.tier, asked)
        stream = InferenceStream(
            request_id,
            wish,
            decision,
            inbox,
            self._config,
            self._pool,
            self._factors,
            arrived_s,
            self._runs.add,
            agent,
        )
        await stream.admit()
        headers = SSE_HEADERS | {"content-type": "text/event-stream; charset=utf-8", "x-request-id": request_id}
        return ClosingStream(stream.events(), 200, headers, stream.aclose)

    async def chat_completions(self, request: Request, request_id: str) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._openai(request, request_id, chat=True)

    async def completions(self, request: Request, request_id: str) -> Response:
        """`POST /v1/completions`."""
        return await self._openai(request, request_id, chat=False)

    async def _openai(self, request: Request, request_id: str, *, chat: bool) -> Response:
        """Check the body, pick the tier, pass the request to its engine's own OpenAI layer."""
        arrived_s = time.monotonic()
        limits = self._config.limits
        body = parse_openai(await read_json(request, limits), chat=chat, limits=limits)
        observation = self._pool.observation
        choice = choose(body.fields, self._config, observation)
        entry = self._config.entry(choice.tier, observation.tier(choice.tier).active_entry)
        body.check_length(entry.max_model_len, limits)
        call = engine_call(request, body.fields, choice, request_id)
        inbox = self._tiers.openai(choice.tier, call, body.sequences)
        return await OpenAIExchange(
            choice.tier, request_id, body.streaming, inbox, self._config, self._pool, arrived_s
        ).respond()

    async def models(self, request: Request, request_id: str) -> Response:
        """`GET /v1/models`: `auto` and the tiers."""
        return JSONResponse({"object": "list", "data": [_model(name) for name in MODELS]})

    async def model(self, request: Request, request_id: str) -> Response:
        """`GET /v1/models/{id}`: one of them."""
        name = request.path_params["model"]
        if name not in MODELS:
            raise model_not_found(name)
        return JSONResponse(_model(name))

    async def tiers(self, request: Request, request_id: str) -> Response:
        """`GET /api/tiers`: the registry and what each tier is doing."""
        return JSONResponse(tiers_view(self._config, self._pool.observation))

    async def drafts(self, request: Request, request_id: str) -> Response:
        """`POST /api/tiers/{tier}/drafts`: have the tier use its own drafts again, or n-gram drafts."""
        name = next((tier for tier in TIER_NAMES if tier == request.path_params["tier"]), None)
        if name is None:
            message = f"no tier {request.path_params['tier']!r}, there are {', '.join(TIER_NAMES)}"
            raise ApiError("not_found", message, status=404)
        wish = validated(DraftsWish, await read_json(request, self._config.limits))
        if draft_floor(self._config.tiers[name], self._pool.observation.tier(name)) is None:
            message = f"the entry of tier {name} has no draft with a `floor`: its drafts cannot be changed"
            raise ApiError("no_floor", message, status=409)
        await self._pool.order_drafts(name, wish.drafts)
        return JSONResponse({"tier": name, "drafts": wish.drafts}, 202)

    async def healthz(self, request: Request, request_id: str) -> Response:
        """`GET /healthz`: this process serves; and what fails beside the requests, here, in the pool, in a replica."""
        failing = {**self._pool.observation.failing, **troubles(self._beside)}
        return JSONResponse({"status": "degraded", "failing": failing} if failing else {"status": "ok"})

    async def readyz(self, request: Request, request_id: str) -> Response:
        """`GET /readyz`: 200 when some tier can answer at once, 503 otherwise."""
        warm = [name for name in TIER_NAMES if self._pool.observation.tier(name).warm]
        status, headers = (200, {}) if warm else (503, self._retry_later)
        return JSONResponse({"status": "ready" if warm else "no warm tier", "warm": warm}, status, headers)

    async def health(self, request: Request, request_id: str) -> Response:
        """`GET /health`, `/ping`: 200 unless no tier can answer; an empty body, as vLLM's."""
        failed = all(self._pool.observation.tier(name).failed for name in TIER_NAMES)
        return Response(status_code=503 if failed else 200, headers=self._retry_later if failed else {})

    async def version(self, request: Request, request_id: str) -> Response:
        """`GET /version`: that of the vLLM that answers, as vLLM's."""
        return JSONResponse({"version": self._vllm})

    @property
    def _retry_later(self) -> dict[str, str]:
        return {"retry-after": str(self._config.limits.retry_after_s)}

    async def check_health(self) -> None:
        """Serve asks; raises when the work beside the requests has failed for so long that only a new replica helps."""
        for work in self._beside:
            work.raise_if_hopeless()

    async def _plan(self, wish: InferenceRequest) -> AgentPart:
        """The plan, with the agent's part in it; without one nothing is waited for."""
        observation = self._pool.observation
        made = plan(wish, observation, self._config)
        if self._advisor is None or wish.mock:
            return AgentPart(made)
        return await self._advisor.part(Case(wish, made, self._config, observation))

    def _mock(self, tier: TierName, request: GenerationRequest) -> Inbox[StreamItem]:
        """The stub engine in this process: front-end development wakes no GPU. A prompt cannot steer it."""
        engine = StubEngine(self._config.entry(tier, None), self._config.stub.tokens_per_s)
        return ReadAhead(stream_items(engine, request))


def cors(origins: Sequence[str]) -> list[Middleware]:
    """What answers the questions of browsers for pages of these origins; without any there is nothing to answer."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["retry-after", "x-power-lever-tier", "x-request-id"],
        )
    ]


def answering(handler: Handler, retry_after_s: int) -> Callable[[Request], Awaitable[Response]]:
    """Give the handler a request id, and turn the `ApiError` it raises into a response."""

    async def endpoint(request: Request) -> Response:
        name = request_id(request.scope["headers"])
        try:
            return await handler(request, name)
        except ApiError as error:
            return error_response(error, name, retry_after_s)
        except ClientDisconnect:
            # In the middle of its body. Nobody reads this; 499 is what proxies write into their logs then.
            return Response(status_code=499)

    return endpoint


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "power-lever"}


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors (no such route, wrong method) in the form of all the others."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = error_response(ApiError(code, message, status=error.status_code), request_id(request.scope["headers"]))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours; Starlette raises it on, into the log."""
    failed = ApiError("internal_error", "the ingress failed", status=500, retryable=True)
    return error_response(failed, request_id(request.scope["headers"]))
