"""The ingress deployment: the HTTP routes around the router. It holds no state that a client could notice.

`inference` answers a prompt, `v1` a client of OpenAI's or Anthropic's API; the handlers after them only read, but for
`drafts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import ray
from ray import serve
from ray.serve._private.logging_utils import get_serve_logs_dir
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.observability import series
from cluster.observability.totals import CONTENT_TYPE
from cluster.supervision import troubles
from router.agent.bounds import Case
from router.agent.leaving import leaving_words
from router.agent.result import AgentResult
from router.difficulty.classify import load_classifier
from router.needs import NOTHING_MORE, NOTHING_TRIED, Needs
from router.plan import Plan
from router.registry import TIER_NAMES, TierName
from router.request import InferenceRequest, Priority
from router.runs.summary import HandedOver, RunReport
from serve_app.admission.drain import Drain
from serve_app.admission.key_limits import KeyLimiter, permit_of
from serve_app.admission.open_requests import OpenRequests
from serve_app.admission.tier_slots import TierSlots
from serve_app.api.agent import NotedPurse, Purse, make_advisor
from serve_app.api.body import DraftsRequest, parse_inference, read_json, validated
from serve_app.api.errors import RETRY_LATER, ApiError
from serve_app.api.escalation import AnswerWatch
from serve_app.api.explanation import Explanation
from serve_app.api.inference import InferenceStream
from serve_app.api.page import Page
from serve_app.api.planning import estimated_tokens, generation_request, planned, tried_also
from serve_app.api.request_log import RequestLog, prompt_of
from serve_app.api.request_metrics import RequestMetrics
from serve_app.api.request_record import RequestRecord, RequestRecords, key_id_of, record_of
from serve_app.api.routing import EXCEPTION_HANDLERS, cors, route
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import V1Api, parse_v1
from serve_app.api.v1.exchange import V1Exchange
from serve_app.api.v1.models import MODELS, model_view
from serve_app.api.v1.openai import CHAT, COMPLETIONS, RESPONSES, STATELESS
from serve_app.api.v1.planning import engine_call, plan_v1
from serve_app.api.views import drafts_both_ways, tiers_view
from serve_app.auth.front_door import FrontDoor
from serve_app.auth.identity import authentication, key_in, may_see_decision
from serve_app.auth.key_file import FollowedKeys
from serve_app.auth.keys import Key
from serve_app.config import AppConfig
from serve_app.engine.interface import GenerationRequest
from serve_app.engine.stream_items import stream_items
from serve_app.engine.stub import StubEngine
from serve_app.engine.vllm.compat import installed_version
from serve_app.fairness.claims import Claim
from serve_app.pool.allowance_desk import AllowanceDesk
from serve_app.pool.decisions import DecisionLog
from serve_app.pool.metrics_reports import ReplicaMetrics
from serve_app.pool.outbox import Outbox
from serve_app.pool.view import PoolView
from serve_app.transport.channel import TokenChannel
from serve_app.transport.client import GenerationStream, TierClient
from serve_app.transport.ray_errors import RAY_ERRORS
from serve_app.transport.resuming import RepeatingStream, ResumingStream
from serve_app.transport.stream import LocalStream

logger = logging.getLogger("ray.serve")

_V1: Final = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
}


class Ingress:
    """One ingress replica.

    Args:
        config: the whole config.
        pool: handle of the GPU pool view.
        tiers: handle of each tier's engine deployment.
    """

    def __init__(self, config: AppConfig, pool: DeploymentHandle, tiers: Mapping[TierName, DeploymentHandle]) -> None:
        load_classifier(config.auto)  # now, so that the first request does not wait for its files
        # What was imported and loaded stays: to look through it again and again takes up to a tenth of a plan's time.
        gc.collect()
        gc.freeze()
        self._config = config
        self._pool = PoolView(pool)
        self._runs = Outbox[RunReport | HandedOver](
            "ingress: reports of runs", lambda runs: pool.report_runs.remote(runs)
        )
        self._decisions = DecisionLog(pool)
        self._channel = TokenChannel()
        self._tiers = TierClient(tiers, self._channel, self._pool, TierSlots(config.tiers, self._pool))
        self._vllm = installed_version()
        self._page = Page()
        self._door = FrontDoor(config.auth)
        self._keys = FollowedKeys(config.auth.keys_path) if config.auth.mode == "keys" else None
        self._advisor = make_advisor(config, os.environ)
        self._leaving = None if self._advisor is None else self._advisor.leaving
        if self._leaving is not None:
            logger.warning("what leaves the cluster: %s", leaving_words(self._leaving.view()))
        self._open = OpenRequests(config.ingress.max_ongoing_requests)
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._desk = AllowanceDesk(
            lambda number, statements: pool.lease.remote(replica_id, number, statements), config.ingress.replicas
        )
        routes, usd_per_day = frozenset(series.ROUTES), config.agent.usd_per_day
        self._limiter = KeyLimiter(self._desk, routes, self._keys, config.auth.default_limits, usd_per_day)
        drain = Drain(pool, replica_id, self._open)
        self._metrics = ReplicaMetrics(
            "ingress", pool, replica_id, lambda meter: meter.set(series.OPEN_REQUESTS, self._open.count)
        )
        self._counted = RequestMetrics(self._metrics.meter)
        self._log = RequestLog(Path(get_serve_logs_dir()), replica_id, config)
        self._background = (
            *(self._pool.work, self._runs.work, self._decisions.work, *self._channel.work, drain.work),
            *(self._metrics.reports.work, self._desk.work),
            *(() if self._keys is None else (self._keys.work,)),
        )

    def __serve_build_asgi_app__(self) -> Starlette:
        """Serve calls this after the constructor. The application lives as long as the replica."""
        return Starlette(
            routes=[
                route("/", self._page.index, "GET", needs=None),
                route("/web/{file:path}", self._page.file, "GET", needs=None),
                route("/api/inference", self.inference, "POST", needs="infer"),
                *(route(path, partial(self.v1, api=api), "POST", needs="infer") for path, api in _V1.items()),
                route("/v1/responses/{stored:path}", self.stored, "GET", "POST", "DELETE", needs="infer"),
                route("/v1/models", self.models, "GET", needs="infer"),
                route("/v1/models/{model:path}", self.model, "GET", needs="infer"),
                route("/api/tiers", self.tiers, "GET", needs="infer"),
                route("/api/decisions/{decision}", self.decision, "GET", needs="infer"),
                route("/api/tiers/{tier}/drafts", self.drafts, "POST", needs="admin"),
                route("/healthz", self.healthz, "GET", needs=None),
                route("/readyz", self.readyz, "GET", needs=None),
                route("/metrics", self.metrics, "GET", needs="infer"),
                # As in vLLM's server: tools made for it call these before they begin.
                route("/health", self.health, "GET", needs=None),
                route("/ping", self.health, "GET", "POST", needs=None),
                route("/version", self.version, "GET", needs="infer"),
            ],
            middleware=[
                *cors(self._config.auth.allowed_origins),
                authentication(self._keys),
                Middleware(RequestRecords(frozenset(series.ROUTES), self._ended).middleware),
                Middleware(self._door.middleware),
                Middleware(self._open.middleware),
                Middleware(self._limiter.middleware),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self._channel.start(ray.util.get_node_ip_address())
        # Without an observation every tier looks cold, and the ingress can serve all the same.
        with contextlib.suppress(*RAY_ERRORS):
            await self._pool.refresh()
        for work in self._background:
            work.start()
        yield
        await asyncio.gather(self._metrics.reports.send_last(), self._desk.say_last())
        for work in self._background:
            work.stop()
        self._channel.stop()
        if self._advisor is not None:
            await self._advisor.aclose()

    def _ended(self, record: RequestRecord) -> None:
        self._counted.ended(record)
        self._log.ended(record)

    async def inference(self, request: Request, request_id: str) -> Response:
        """`POST /api/inference`: validate, plan, call the tier, answer with events."""
        record = record_of(request.scope)
        given = await read_json(request, self._config.limits)
        body = parse_inference(given, self._config)
        if self._config.ingress.log_prompts:
            record.prompt = prompt_of(given)
        record.goal = body.goal
        permit = permit_of(request.scope)
        await permit.hold_tokens(estimated_tokens(body))
        (made, agent), tried = await self._plan(body, NotedPurse(permit, record), record.key), NOTHING_TRIED
        while True:
            record.planned(made)
            try:
                return await self._answer(request_id, body, made, agent, record)
            except ApiError as error:
                more = tried_also(error, made, tried)
                if more is None:
                    raise
                tried = more
                made, agent = self._planned(body, Needs(tried=tried)), None

    async def _answer(
        self,
        request_id: str,
        body: InferenceRequest,
        made: Plan,
        agent: AgentResult | Explanation | None,
        record: RequestRecord,
    ) -> Response:
        """Call the plan's tier and return its response.

        Raises:
            ApiError: the engine or the tier's queue refused the request.
        """

        claim = self._claim(record, body.priority)

        def ask(tier: TierName, call: GenerationRequest) -> ResumingStream:
            return ResumingStream(
                tier,
                lambda resume: self._ask(tier, replace(call, resume=resume, claim=claim), stub=body.mock),
                until_s=record.arrived_s + self._config.limits.request_timeout_s,
                on_lost=partial(record.lose, tier),
            )

        watch = AnswerWatch.of(body, made, self._config, ask, self._tiers.wake)
        call = generation_request(request_id, body, made)
        return await InferenceStream(
            request_id,
            body,
            made,
            ask(made.tier, replace(call, watch=watch is not None)),
            self._config,
            self._pool,
            record.arrived_s,
            self._runs.add,
            agent,
            self._decisions.add(made.decision, key_id_of(record)),
            record,
            watch,
        ).respond()

    def _claim(self, record: RequestRecord, priority: Priority | None) -> Claim:
        """Return in whose name a request asks for room."""
        batch = priority == "batch"
        if record.key is None:
            return Claim(batch=batch)
        return Claim(record.key.name, batch, record.key.id if self._config.auth.separate_caches else None)

    def _planned(self, request: InferenceRequest, needs: Needs = NOTHING_MORE) -> Plan:
        return self._counted.planned(lambda: planned(request, self._pool.observation, self._config, needs))

    async def _plan(
        self, request: InferenceRequest, purse: Purse, key: Key | None
    ) -> tuple[Plan, AgentResult | Explanation | None]:
        """Plan a request, with the agent if there is one.

        Raises:
            ApiError: 400, no tier can ever serve it.
        """
        observation = self._pool.observation
        made = self._planned(request)
        if self._advisor is None:
            return made, None
        return await self._advisor.advise(Case(request, made, self._config, observation), purse, key)

    def _ask(self, tier: TierName, request: GenerationRequest, *, stub: bool) -> GenerationStream:
        """Ask a replica of a tier, or the stub engine in this process, so that front-end development wakes no GPU.
        Prompts cannot steer that one."""
        if not stub:
            return self._tiers.generate(tier, request)
        engine = StubEngine(self._config.entry(tier, None), self._config.stub.tokens_per_s)
        return LocalStream(stream_items(engine, request))

    async def v1(self, request: Request, request_id: str, *, api: V1Api) -> Response:
        """`POST /v1/...`: validate, plan as for `inference`, pass the tier's answer on."""
        record = record_of(request.scope)
        limits = self._config.limits
        betas = "anthropic-beta" in request.headers
        given = await read_json(request, limits)
        body = parse_v1(given, api, limits, betas=betas)
        if self._config.ingress.log_prompts:
            record.prompt = prompt_of(given)
        await permit_of(request.scope).hold_tokens(body.estimated_tokens)
        tried, claim = NOTHING_TRIED, self._claim(record, body.own.get("priority"))
        while True:
            made = self._counted.planned(partial(plan_v1, body, self._pool.observation, self._config, tried))
            record.planned(made)
            body.check_length(made.entry.max_model_len)
            exchange = V1Exchange(
                api.form,
                made,
                request_id,
                body.streaming,
                RepeatingStream(
                    partial(self._tiers.http, made.tier, engine_call(request, body, made, request_id, claim)),
                    until_s=record.arrived_s + limits.request_timeout_s,
                    on_lost=partial(record.lose, made.tier),
                    on_progress=lambda progress: record.tokens.saw(*progress[:2]),
                ),
                self._config,
                self._pool,
                record.arrived_s,
                self._runs.add,
                self._decisions.add(made.decision, key_id_of(record)) if api.max_tokens else None,
                record,
            )
            try:
                return await exchange.respond()
            except ApiError as error:
                more = tried_also(error, made, tried)
                if more is None:
                    raise
                tried = more

    async def stored(self, request: Request, request_id: str) -> Response:
        """`/v1/responses/{id}`: refuse. A response is not stored: another replica could not find it."""
        message = f"{request.path_params['stored']}: {STATELESS}"
        raise ApiError("not_found", message, status=404)

    async def models(self, request: Request, request_id: str) -> Response:
        """`GET /v1/models`: `auto` and the tiers."""
        return JSONResponse({"object": "list", "data": [model_view(name) for name in MODELS]})

    async def model(self, request: Request, request_id: str) -> Response:
        """`GET /v1/models/{id}`: one of them."""
        return JSONResponse(model_view(request.path_params["model"]))

    async def tiers(self, request: Request, request_id: str) -> Response:
        """`GET /api/tiers`: the registry, the state of each tier, and what leaves the cluster for whoever asks."""
        key = key_in(request.scope)
        leaving = self._leaving if key is None or key.external_reasoning else None
        return JSONResponse(tiers_view(self._config, self._pool.observation, leaving))

    async def decision(self, request: Request, request_id: str) -> Response:
        """`GET /api/decisions/{id}`: the tier of a request of the last hour, and what each other would have taken.

        A key with the scope `infer` sees those of its own requests.
        """
        may_see = partial(may_see_decision, request)
        return JSONResponse(await self._decisions.get(request.path_params["decision"], may_see))

    async def drafts(self, request: Request, request_id: str) -> Response:
        """`POST /api/tiers/{tier}/drafts`: set who drafts in a tier for requests that do not choose."""
        name = next((tier for tier in TIER_NAMES if tier == request.path_params["tier"]), None)
        if name is None:
            message = f"tier: got {request.path_params['tier']!r}, allowed are {', '.join(TIER_NAMES)}"
            raise ApiError("not_found", message, status=404)
        body = validated(DraftsRequest, await read_json(request, self._config.limits))
        if not drafts_both_ways(self._config.tiers[name], self._pool.observation.tier(name)):
            message = f"the drafts of tier {name} cannot be switched: its chain entry sets neither `drafts` nor `floor`"
            raise ApiError("no_choice", message, status=409)
        await self._pool.order_drafts(name, body.drafts)
        return JSONResponse({"tier": name, "drafts": body.drafts}, 202)

    async def healthz(self, request: Request, request_id: str) -> Response:
        """`GET /healthz`: this process serves; with the background work that fails here, in the pool, in a replica.

        Why it fails is for those who have a key.
        """
        failing = {**self._pool.observation.failing, **troubles(self._background)}
        if not failing:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "degraded"} | ({"failing": failing} if "infer" in request.auth.scopes else {}))

    async def readyz(self, request: Request, request_id: str) -> Response:
        """`GET /readyz`: 200 if a tier can answer at once, else 503; 503 too before the keys file was ever readable."""
        if self._keys is not None and self._keys.ring is None:
            return JSONResponse({"status": "no keys file", "warm": []}, 503, RETRY_LATER)
        warm = [name for name in TIER_NAMES if self._pool.observation.tier(name).warm]
        status, headers = (200, {}) if warm else (503, RETRY_LATER)
        return JSONResponse({"status": "ready" if warm else "no warm tier", "warm": warm}, status, headers)

    async def metrics(self, request: Request, request_id: str) -> Response:
        """`GET /metrics`: the totals of all replicas, whichever is asked, for Prometheus."""
        return Response(await self._pool.metrics(), headers={"content-type": CONTENT_TYPE})

    async def health(self, request: Request, request_id: str) -> Response:
        """`GET /health`, `/ping`: 200 unless no tier can answer; an empty body, as vLLM's."""
        failed = all(self._pool.observation.tier(name).failed for name in TIER_NAMES)
        return Response(status_code=503, headers=RETRY_LATER) if failed else Response()

    async def version(self, request: Request, request_id: str) -> Response:
        """`GET /version`: the version of the vLLM that answers, as vLLM's server shows it."""
        return JSONResponse({"version": self._vllm})

    async def check_health(self) -> None:
        """Serve calls this.

        Raises:
            RuntimeError: the background work has failed for so long that only a new replica helps.
        """
        for work in self._background:
            work.raise_if_hopeless()
