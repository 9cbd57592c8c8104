"""The models of the OpenAI routes: `auto`, and each tier by its name."""

from __future__ import annotations

from typing import Final

from router.registry import TIER_NAMES
from serve_app.api.errors import ApiError, bad_request

AUTO: Final = "auto"
"""Has the router pick the tier."""
MODELS: Final = (AUTO, *TIER_NAMES)


def model_view(name: str) -> dict[str, object]:
    """Return a model as `GET /v1/models/{id}` shows it.

    Raises:
        ApiError: 404, there is no such model.
    """
    if name not in MODELS:
        raise model_not_found(name)
    return {"id": name, "object": "model", "created": 0, "owned_by": "power-lever"}


def model_not_found(name: str) -> ApiError:
    """Return the error of an unknown model."""
    return bad_request(f"model: got {name!r}, allowed are {', '.join(MODELS)}", code="model_not_found", status=404)
