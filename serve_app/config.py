"""The application's config: one frozen tree, made of a profile, `serve_config.yaml`'s args and the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from cluster.autoscaling import ScalingSettings
from cluster.profiles import merge, read_profile, validate_profile
from cluster.weights import models_dir
from router.agent.settings import AgentSettings
from router.errors import ConfigError
from router.registry import Frozen, Profile
from router.runs.record import RunSettings
from serve_app.speculation.settings import SpeculationSettings

InferenceMode = Literal["real", "mock"]


class Limits(Frozen):
    """What a request may ask for, and how long it may take."""

    max_body_bytes: int = Field(default=1_000_000, ge=1024, description="Largest request body, bytes; more is a 413.")
    max_prompt_chars: int = Field(
        default=200_000,
        ge=1,
        description="Longest prompt, characters: all messages, tool definitions and prompts of a request together, a "
        "token id as one; more is a 400.",
    )
    max_sequences: int = Field(
        default=64, ge=1, description="Most answers of one request to the OpenAI routes: `n` for each of its prompts."
    )
    max_answer_tokens: int = Field(
        default=1_000_000,
        ge=1,
        description="Most completion tokens that several answers of one request may have together: `n` x prompts x "
        "`max_tokens`, or the tier's context where none is named.",
    )
    request_timeout_s: float = Field(default=900.0, gt=0, description="Longest time from arrival to last token, s.")
    admission_wait_s: float = Field(
        default=0.5,
        gt=0,
        description="How long a warm tier may take to accept a request before the response begins without it, s.",
    )
    retry_after_s: int = Field(default=5, ge=1, description="`Retry-After` of a 503, s.")


class Relay(Frozen):
    """How tokens travel from the engine replica to the client."""

    status_every_s: float = Field(default=2.0, gt=0, le=5, description="Interval of `status` events before a token, s.")
    ping_every_s: float = Field(
        default=0.4,
        gt=0,
        description="Interval of SSE comment pings on a silent stream, s. A proxy notices by a failed write that its "
        "client has left: two pings later the engine is free.",
    )


class StubSettings(Frozen):
    """The stub engine, used when `inference_mode` is mock, or for a request that may say `mock: true`."""

    tokens_per_s: float = Field(default=50.0, ge=0, description="Output speed of one stream, tokens/s; 0: unlimited.")
    load_s: float = Field(default=0.0, ge=0, description="Pretended loading time of a replica, s.")
    failing_entries: tuple[str, ...] = Field(
        default=(), description="Names of chain entries that pretend not to start."
    )


class IngressSettings(Frozen):
    """The ingress deployment."""

    replicas: int = Field(default=1, ge=1, description="Number of ingress replicas; any of them can serve any request.")
    cpus: float = Field(default=0.1, ge=0, description="Ray CPUs per ingress replica.")
    max_ongoing_requests: int = Field(
        default=2048, ge=1, description="Requests that one ingress replica holds open; more get a 503."
    )
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description="Origins whose web pages may use the API (`https://chat.example`, or `*` for all); none: only "
        "pages of the API's own origin.",
    )


class AppConfig(Profile):
    """Everything that the application was told: the profile's registry and the application's own settings."""

    profile: str = Field(description="Name or path of the profile that was loaded.")
    profile_reason: str = Field(description="Why this profile.")
    inference_mode: InferenceMode = Field(default="real", description="`mock`: every tier runs the stub engine.")
    allow_mock: bool = Field(
        default=False,
        description="True: a request may say `mock: true`, and the stub engine answers it; where `inference_mode` is "
        "mock, it always may.",
    )
    demo_mode: bool = Field(default=False, description="True: one warm replica in every tier.")
    models_dir: str = Field(description="Folder that holds the weights, the same path on every node.")
    limits: Limits = Field(default=Limits(), description="Request limits.")
    relay: Relay = Field(default=Relay(), description="Token relay.")
    stub: StubSettings = Field(default=StubSettings(), description="Stub engine.")
    speculation: SpeculationSettings = Field(default=SpeculationSettings(), description="Speculative decoding.")
    scaling: ScalingSettings = Field(default=ScalingSettings(), description="How replicas follow demand.")
    runs: RunSettings = Field(default=RunSettings(), description="How past runs are remembered.")
    agent: AgentSettings = Field(default=AgentSettings(), description="The router agent.")
    ingress: IngressSettings = Field(default=IngressSettings(), description="Ingress deployment.")

    @property
    def mock_allowed(self) -> bool:
        """Whether a request may ask for the stub engine."""
        return self.allow_mock or self.inference_mode == "mock"


def load_config(
    args: Mapping[str, Any], env: Mapping[str, str], choose_profile: Callable[[], tuple[str, str]]
) -> AppConfig:
    """The config from `serve_config.yaml`'s `args`, laid over the profile; the environment wins over both.

    Args:
        args: any field of `AppConfig`; `profile` is `auto`, a shipped profile's name or a path.
        env: read are INFERENCE_MODE, DEMO_MODE and MODELS_DIR.
        choose_profile: called when the profile is `auto`; returns (name, reason).

    Raises:
        ConfigError: naming the key, what it got and what it allows.
    """
    given = dict(args)
    wanted = given.pop("profile", "auto")
    if not isinstance(wanted, str):
        raise ConfigError(f"profile: got {wanted!r}, must be auto, a profile's name or a path")
    name, reason = choose_profile() if wanted == "auto" else (wanted, "named in serve_config.yaml")
    raw = merge(read_profile(name), given)
    raw.update(profile=name, profile_reason=reason, **_from_environment(env))
    raw.setdefault("models_dir", str(models_dir({})))
    return validate_profile(AppConfig, raw, where=f"config (profile {name})")


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if mode := env.get("INFERENCE_MODE"):
        found["inference_mode"] = mode
    if demo := env.get("DEMO_MODE"):
        if demo not in ("0", "1"):
            raise ConfigError(f"DEMO_MODE: got {demo!r}, must be 0 or 1")
        found["demo_mode"] = demo == "1"
    if "MODELS_DIR" in env:
        found["models_dir"] = str(models_dir(env))
    return found
