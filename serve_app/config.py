"""The application's config: one frozen tree from a profile, the args of `serve_config.yaml`, and the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from cluster.autoscaling import ScalingSettings
from cluster.profiles.reading import merge, read_profile, validate_profile
from cluster.weights import models_dir
from router.agent.settings import AgentSettings
from router.errors import ConfigError
from router.registry import Frozen, Profile
from serve_app.auth.settings import AuthSettings
from serve_app.speculation.settings import SpeculationSettings

InferenceMode = Literal["real", "mock"]


class Limits(Frozen):
    """Limits of one request."""

    max_body_bytes: int = Field(default=1_000_000, ge=1024, description="Largest request body, bytes; more is a 413.")
    max_prompt_chars: int = Field(
        default=200_000,
        ge=1,
        description="Longest prompt, characters: all messages, tool definitions and prompts of a request together; a "
        "token id counts as one. More is a 400.",
    )
    max_sequences: int = Field(
        default=64, ge=1, description="Most answers of one request to the OpenAI routes: `n` for each of its prompts."
    )
    request_timeout_s: float = Field(default=900.0, gt=0, description="Longest time from arrival to last token, s.")


class StubSettings(Frozen):
    """The stub engine: it answers if `inference_mode` is mock, or a request with `mock: true` where that is allowed."""

    tokens_per_s: float = Field(default=50.0, ge=0, description="Output speed of one stream, tokens/s; 0: unlimited.")
    failing_entries: tuple[str, ...] = Field(default=(), description="Names of chain entries that fail to start.")


class IngressSettings(Frozen):
    """The ingress deployment."""

    replicas: int = Field(default=1, ge=1, description="Number of ingress replicas; any of them can serve any request.")
    max_ongoing_requests: int = Field(
        default=2048, ge=1, description="Most open requests of one ingress replica; more get a 503."
    )
    log_prompts: bool = Field(
        default=False, description="True: the request log has the prompts, in clear. It never has answers or keys."
    )


class AppConfig(Profile):
    """The whole config: the profile's registry and the application's own settings."""

    profile: str = Field(description="Name or path of the profile that was loaded.")
    profile_reason: str = Field(description="Why this profile.")
    inference_mode: InferenceMode = Field(default="real", description="`mock`: every tier runs the stub engine.")
    allow_mock: bool = Field(
        default=False,
        description="True: the stub engine answers requests with `mock: true`. It always does if `inference_mode` is "
        "`mock`.",
    )
    demo_mode: bool = Field(default=False, description="True: one warm replica in every tier.")
    models_dir: str = Field(description="Folder that holds the weights, the same path on every node.")
    limits: Limits = Field(default=Limits(), description="Request limits.")
    stub: StubSettings = Field(default=StubSettings(), description="Stub engine.")
    speculation: SpeculationSettings = Field(default=SpeculationSettings(), description="Speculative decoding.")
    scaling: ScalingSettings = Field(default=ScalingSettings(), description="How replicas follow demand.")
    agent: AgentSettings = Field(default=AgentSettings(), description="The router agent.")
    ingress: IngressSettings = Field(default=IngressSettings(), description="Ingress deployment.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Who may do what.")

    @property
    def mock_allowed(self) -> bool:
        """Whether a request may set `mock`."""
        return self.allow_mock or self.inference_mode == "mock"


def load_config(
    args: Mapping[str, Any],
    env: Mapping[str, str],
    choose_profile: Callable[[], tuple[str, str]],
    where: str = "config",
) -> AppConfig:
    """Return the config: the profile, the `args` of `serve_config.yaml` over it, and the environment over both.

    Args:
        args: any field of `AppConfig`; `profile` is `auto`, the name of a shipped profile, or a path.
        env: INFERENCE_MODE, DEMO_MODE and MODELS_DIR are read.
        choose_profile: called if the profile is `auto`; returns (name, reason).
        where: the args are, for errors.

    Raises:
        ConfigError: naming the key, what it got and what it allows.
    """
    given = dict(args)
    profile = given.pop("profile", "auto")
    if not isinstance(profile, str):
        raise ConfigError(f"{where}: profile: got {profile!r}, must be auto, a profile's name or a path")
    name, reason = choose_profile() if profile == "auto" else (profile, "named in serve_config.yaml")
    raw = merge(read_profile(name), given)
    raw.update(profile=name, profile_reason=reason, **_from_environment(env))
    raw.setdefault("models_dir", str(models_dir({})))
    return validate_profile(AppConfig, raw, where=f"{where} (profile {name})")


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
