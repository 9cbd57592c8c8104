"""The parameters of speculative decoding: one frozen type from a request's body to the engine's scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field, StrictBool

from router.registry import DraftsChoice, DraftTokens, Frozen, Speculation, Tau

DEFAULT_CATEGORY: Final = "general_reasoning"
"""Category of a request that names none."""
_PREFIX: Final = "speculation_"
_CATEGORY: Final = "speculation_category"


class WhoDrafts(NamedTuple):
    """Who will draft for a request."""

    requested: DraftsChoice | None
    """What the client chose; None: nothing."""
    used: DraftsChoice | None
    """None: nothing is drafted."""
    reason: str | None
    """Why `used` is not what was requested or, without a choice, not what the chain entry says; None: it is."""


class SpecParams(Frozen):
    """Speculative decoding of one request. `resolve` fills in what the client left open."""

    enabled: StrictBool = Field(default=True, description="False: no drafts for this request.")
    k: DraftTokens | None = Field(
        default=None,
        description="Draft tokens per step, capped by the chain entry's `k_max`; `auto`: the controller decides; null: "
        "as the chain entry says.",
    )
    tau: Tau | None = Field(
        default=None,
        description="Stop drafting below this acceptance rate (0-1); `auto`: below which drafts do not pay on this "
        "engine at this load; null: as the chain entry says.",
    )
    drafts: DraftsChoice | None = Field(
        default=None,
        description="Who drafts: `own`, the chain entry's draft model or EAGLE head; `ngram`, n-gram lookup; `auto`, "
        "the controller decides; null: as the tier does now. An entry that drafts in one way keeps to that.",
    )

    @property
    def k_mode(self) -> Literal["auto", "fixed"]:
        """Who decides the number of draft tokens: the controller, or this value."""
        return "auto" if self.k == "auto" else "fixed"

    def resolve(
        self, speculation: Speculation | None, *, seeded: bool = False, wasteful: bool = False
    ) -> tuple[SpecParams, str | None]:
        """Return these parameters with `k` and `tau` set, and why drafting is off (None: it is on).

        `drafts` stays open where the client left it open and the entry drafts in both ways: the tier may switch between
        them meanwhile.

        Args:
            speculation: of the chain entry that serves the request.
            seeded: whether the answer is sampled with a seed. It must be the same each time, and drafts would change
                it. The engine's scheduler enforces this for every route; here it is only predicted.
            wasteful: whether past runs show that hardly any draft would be accepted.
        """
        if speculation is None:
            return NO_DRAFTS, "the tier's entry makes no drafts"
        k = speculation.k if self.k is None else self.k
        if not self.enabled or k == 0:
            return NO_DRAFTS, "no drafts are requested"
        if seeded:
            return NO_DRAFTS, "a sampled answer with a seed must be the same each time, so nothing is drafted for it"
        if wasteful:
            return NO_DRAFTS, "hardly any of the recent drafts for such prompts were accepted on this tier"
        return SpecParams(
            k=k if k == "auto" else min(k, speculation.k_max),
            tau=speculation.tau if self.tau is None else self.tau,
            drafts=self.drafts if speculation.drafts_both_ways else speculation.default_drafts,
        ), None

    def who_drafts(
        self, speculation: Speculation | None, resolved: SpecParams, now: DraftsChoice | None, why: str | None
    ) -> WhoDrafts:
        """Return who will draft for a request with these parameters, and why not as requested.

        Args:
            speculation: of the chain entry that serves it.
            resolved: these parameters, resolved on that entry.
            now: who drafts in the tier for requests that do not choose; None: not known yet.
            why: this is not what the entry says.
        """
        if speculation is None or not resolved.enabled:
            return WhoDrafts(self.drafts, None, None)
        if resolved.drafts is None:
            return WhoDrafts(None, now or speculation.default_drafts, why)
        reason = None
        if self.drafts not in (None, "auto", resolved.drafts):
            reason = f"the tier's entry has only {resolved.drafts} drafts"
        return WhoDrafts(self.drafts, resolved.drafts, reason)

    def most_drafts(self, speculation: Speculation | None) -> int:
        """Return the most draft tokens per step that these (resolved) parameters allow on that chain entry."""
        if self.k == "auto":
            return speculation.k_max if speculation else 0
        return self.k or 0

    def to_arguments(self, category: str) -> dict[str, int | float | str]:
        """Return these (resolved) parameters and the prompt's category as extra sampling arguments (`vllm_xargs`).

        They are flat, as vLLM's OpenAI layer takes no nested ones. `enabled` is left out: 0 draft tokens say the same.
        """
        given = self.model_dump(exclude={"enabled"}, exclude_none=True)
        return {_PREFIX + key: value for key, value in given.items()} | {_CATEGORY: category}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> tuple[SpecParams, str]:
        """Return the parameters and the category among sampling arguments. What is missing stays open.

        Raises:
            ValueError: names the key and what it allows.
        """
        given = {key.removeprefix(_PREFIX): value for key, value in arguments.items() if key.startswith(_PREFIX)}
        category = given.pop("category", DEFAULT_CATEGORY)
        return cls.model_validate(given), str(category)


NO_DRAFTS: Final = SpecParams(enabled=False, k=0, tau=0.0)
NOBODY_DRAFTS: Final = WhoDrafts(None, None, None)
