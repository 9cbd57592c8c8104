"""What the scheduler needs to know of the chain entry, on its way through vLLM's config into EngineCore."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.registry import Speculation
from serve_app.speculation.settings import EngineFacts, SpeculationSettings


@dataclass(frozen=True)
class ControllerConfig:
    """vLLM's `additional_config`. It is not a dict, because vLLM's compile hash covers a dict's contents."""

    settings: SpeculationSettings
    speculation: Speculation
    facts: EngineFacts = field(default_factory=EngineFacts)
    """Which of the engine's steps run in a graph."""

    def compute_hash(self) -> str:
        """Return our part of vLLM's compile hash: a constant, as no setting of ours changes what is compiled."""
        return "power-lever"
