"""The errors that Ray and Serve raise for a failed call, and their translation into errors for clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from grpc import RpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from serve_app.api.errors import ApiError

RAY_ERRORS: Final = (RayError, RayServeException, RpcError, TimeoutError)
"""A call of a deployment raises these while its replica or node is away, or if its answer is lost."""


@contextlib.contextmanager
def ray_errors_as(api_error: Callable[[Exception], ApiError]) -> Iterator[None]:
    """Raise the `ApiError` that the function makes of an error of Ray's or Serve's."""
    try:
        yield
    except RAY_ERRORS as error:
        raise api_error(error) from error
