"""How a request's `SpecParams` and category travel to the scheduler: as flat extra sampling arguments.

vLLM's OpenAI layer takes no nested ones (`vllm_xargs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.spec_params import SpecParams

_PREFIX: Final = "speculation_"
_CATEGORY: Final = "category"
DEFAULT_CATEGORY: Final = "general_reasoning"


def to_arguments(params: SpecParams, category: str) -> dict[str, int | float | str]:
    """Return the arguments for resolved parameters. `enabled` is left out, as 0 draft tokens say the same."""
    given = params.model_dump(exclude={"enabled"}, exclude_none=True) | {_CATEGORY: category}
    return {_PREFIX + key: value for key, value in given.items()}


def from_arguments(arguments: Mapping[str, Any]) -> tuple[SpecParams, str]:
    """Return the parameters and the category. What is missing stays open; arguments of others are ignored.

    Raises:
        ValueError: names the key and what it allows.
    """
    given = {key.removeprefix(_PREFIX): value for key, value in arguments.items() if key.startswith(_PREFIX)}
    category = given.pop(_CATEGORY, DEFAULT_CATEGORY)
    return SpecParams.model_validate(given), str(category)
