"""What goes to the agent's API, in words and as data: for the log, the page, and `GET /api/tiers`.

`prompt.py` writes what is sent, and the tools of `tools.py` answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from router.agent.settings import ActiveMode, AgentSettings, active_mode

KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"
URL_VARIABLE: Final = "ANTHROPIC_BASE_URL"
"""Read by Anthropic's SDKs where no URL is set."""
_DEFAULT_URL: Final = "https://api.anthropic.com"
_OF_THE_REQUEST: Final = (
    "how many messages there are beside it, the dials and limits that the request sets, the router's plan (the "
    "prompt's category, difficulty and the rules behind them; the tier, its state and its settings)"
)
_LOOKED_UP: Final = "; and what Claude looks up: replicas and queues of the tiers, and recent runs of all keys together"
_REFUSE: Final = "`reasoning: false` in a request, or a key that was made with `--no-external-reasoning`"


@dataclass(frozen=True, slots=True)
class Leaving:
    """What leaves the cluster."""

    to: str
    """Host that it goes to."""
    model: str
    prompt_chars: int
    """Most characters of the prompt."""
    what: str
    """In words."""
    requests: str
    """Of which requests, in words."""
    refuse: str
    """How a request or a key refuses it, in words."""

    @classmethod
    def of(cls, settings: AgentSettings, mode: ActiveMode, env: Mapping[str, str]) -> Leaving:
        """Return what leaves with an agent in that mode.

        Args:
            settings: the agent's.
            mode: what it does.
            env: its SDK reads `ANTHROPIC_BASE_URL` from it.
        """
        url = settings.base_url or env.get(URL_VARIABLE) or _DEFAULT_URL
        most, message = settings.prompt_chars, "the last user message"
        prompt = f"up to {most:,} characters of {message}, its length" if most else f"the length of {message}"
        looked_up = "" if mode == "single_shot" else _LOOKED_UP
        return cls(
            urlsplit(url).hostname or url,
            settings.model,
            settings.prompt_chars,
            f"{prompt}, {_OF_THE_REQUEST}, and the profile's tiers (GPUs, models, prices, watts){looked_up}",
            "those of /api/inference" + ("" if mode == "single_shot" else " in auto mode"),
            _REFUSE,
        )

    def view(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


def leaving(settings: AgentSettings, env: Mapping[str, str], *, mock: bool) -> Leaving | None:
    """Return what leaves the cluster by an ingress in that environment; None: nothing does."""
    has_key = bool(env.get(KEY_VARIABLE))
    mode = active_mode(settings, has_key=has_key, mock=mock)
    return Leaving.of(settings, mode, env) if mode is not None and has_key else None


def leaving_words(view: Mapping[str, Any]) -> str:
    """Return `Leaving.view` as a sentence."""
    return f"to {view['to']} go, with requests ({view['requests']}): {view['what']}. Refused by {view['refuse']}"
