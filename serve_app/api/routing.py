"""The HTTP around the ingress's handlers: request ids, errors in one form, and cross-origin requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from router.plan import Plan
from serve_app.admission.key_limits import RATE_LIMIT_HEADERS
from serve_app.api.errors import ApiError, error_form, error_response, internal_error
from serve_app.api.request_record import CLIENT_LEFT, record_of, request_id_of
from serve_app.api.spec_view import planned_spec
from serve_app.auth.identity import raise_unless
from serve_app.auth.keys import KeyScope

TIER_HEADER: Final = "x-power-lever-tier"
ENTRY_HEADER: Final = "x-power-lever-entry"
DECISION_HEADER: Final = "x-power-lever-decision"
SPEC_HEADER: Final = "x-power-lever-spec"
"""Response headers of the routes that answer prompts: who answers, the chain entry, the id of the decision record, and
what is planned about speculation, in JSON."""
_ANTHROPIC_HEADERS: Final = (
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "x-api-key",
)
"""Request headers of Anthropic's SDK in a web page."""
Handler = Callable[[Request, str], Awaitable[Response]]
"""Takes a request and its id."""


def answer_headers(plan: Plan, request_id: str, decision_id: str | None) -> dict[str, str]:
    """Return the headers that say who answers.

    Args:
        plan: who, and what is planned about speculation.
        request_id: of the request.
        decision_id: under which the decision record can be read; None: it has none.
    """
    planned = planned_spec(plan.entry, plan.spec, plan.drafts, plan.no_drafts_reason)
    headers = {
        TIER_HEADER: plan.tier,
        ENTRY_HEADER: plan.entry.name,
        SPEC_HEADER: json.dumps(planned),  # ASCII, as headers must be
        "x-request-id": request_id,
    }
    return headers if decision_id is None else headers | {DECISION_HEADER: decision_id}


def route(path: str, handler: Handler, *methods: str, needs: KeyScope | None) -> Route:
    """Return a route whose `ApiError`s become responses, in the form of its API.

    Args:
        path: of the route.
        handler: answers.
        methods: allowed ones.
        needs: scope of the key that it needs; None: everybody may use it, without a key.
    """

    async def endpoint(request: Request) -> Response:
        name, record = request_id_of(request.scope), record_of(request.scope)
        try:
            raise_unless(request, needs)
            return await handler(request, name)
        except ApiError as error:
            record.code = error.code
            return error_response(error, name, error_form(request.scope["path"]))
        except ClientDisconnect:
            # In the middle of its body. Nobody reads this response; 499 is what proxies log.
            record.code = CLIENT_LEFT
            return Response(status_code=499)

    return Route(path, endpoint, methods=methods)


def cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that lets web pages of these origins use the API; without origins, none."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", *_ANTHROPIC_HEADERS],
            expose_headers=[
                "retry-after",
                *RATE_LIMIT_HEADERS,
                "www-authenticate",
                TIER_HEADER,
                ENTRY_HEADER,
                DECISION_HEADER,
                SPEC_HEADER,
                "x-request-id",
            ],
        )
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """Give Starlette's own errors (no such route, wrong method) the form of all others."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    message = f"{request.method} {request.url.path}: {error.detail}"
    problem = ApiError(code, message, status=error.status_code)
    response = error_response(problem, request_id_of(request.scope), error_form(request.scope["path"]))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    """Answer for a fault in the ingress. Starlette raises it again, into the log."""
    record_of(request.scope).code = internal_error().code
    return error_response(internal_error(), request_id_of(request.scope), error_form(request.scope["path"]))


EXCEPTION_HANDLERS = {HTTPException: _http_error, Exception: _unexpected}
