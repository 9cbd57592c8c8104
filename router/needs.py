"""What a request needs of a tier beside quality, and which tiers cannot give it: context, drafts, a tier that starts.

**Context.** The conversation, its chat template and the answer must fit the `max_model_len` of the tier's active entry,
or of the first while none runs. The prompt's tokens are estimated (`router/tokens.py`). Of the answer's tokens the
user's own `max_tokens` counts in full. The speed dial's gives way: the engine shortens such an answer to what is left,
and a tier needs room for `LEAST_ANSWER_TOKENS` of it. For a larger model must not answer only because a dial allows
2,048 tokens, of which most answers use few; and an answer that ends after a handful is none.

**Best first.** A tier that holds the request even if the estimate is high, and that is not known to have failed, can
serve it. If there is none, the roomiest of those that hold it if the estimate is low may serve it: its engine counts
exactly, and what it refuses is planned again for the tiers with more room. If there is none either, a tier that has
failed but may hold it is chosen: it may come back, and its error says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from router.observation import Observation
from router.registry import TIER_NAMES, Profile, TierName
from router.request import InferenceRequest
from router.tokens import Tokens, tokens_of

LEAST_ANSWER_TOKENS: Final = 256
"""Room for an answer whose length the speed dial sets. Our own choice: half of the dial's middle."""
_TEMPLATE: Final = Tokens(0, 64)
"""Of a chat template as a whole: its first system message, the date, the begin of the answer."""
_A_MESSAGE: Final = Tokens(1, 8)
"""Of a chat template for each message: its role and marks."""


class Refusal(NamedTuple):
    """An engine's refusal of a prompt that is too long."""

    context: int
    """Of the tier, tokens: no other of at most this size is tried."""
    reason: str
    """In the engine's words, with its exact count."""


class Tried(NamedTuple):
    """What the tiers that were called for a request have said."""

    refusal: Refusal | None = None
    """The last engine that refused the prompt as too long. Each that is called has more room than the one before."""
    gone: Mapping[TierName, str] = MappingProxyType({})
    """Tiers that could not start, with the reasons, whatever the observation says."""


NOTHING_TRIED: Final = Tried()


@dataclass(frozen=True, slots=True)
class Needs:
    """What a route's body holds beside an `InferenceRequest`."""

    other_text: str = ""
    """Text that the model reads beside the messages, as JSON: tools, documents, what else a chat template takes."""
    token_ids: int = 0
    """Tokens of a prompt that is given as ids."""
    refused_with_drafts: tuple[str, ...] = ()
    """Fields which an engine with speculative decoding refuses (`router/capabilities.py`)."""
    tried: Tried = NOTHING_TRIED
    """By earlier plans for the same request."""


NOTHING_MORE: Final = Needs()
ObstacleKind = Literal["context", "tight", "drafts", "failed"]


class Obstacle(NamedTuple):
    """Why a tier cannot serve a request, or may not be able to (`tight`)."""

    kind: ObstacleKind
    reason: str
    """In words."""


class NoTierError(Exception):
    """No tier can ever serve the request; the message says why. The client must change it (400)."""

    def __init__(self, code: Literal["prompt_too_long", "invalid_request"], message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Service:
    """Which tiers can serve a request."""

    prompt: Tokens
    """Of the whole prompt."""
    obstacles: Mapping[TierName, Obstacle]
    """A tier without one is missing."""
    able: tuple[TierName, ...]
    """The tiers to choose among in auto mode, in order of power; not empty."""


def prompt_tokens(request: InferenceRequest, needs: Needs) -> Tokens:
    """Return the tokens of the whole prompt: conversation, chat template, tools."""
    chat = request.chat()
    texts = tokens_of("\n".join((*(message.content for message in chat), needs.other_text)))
    template = Tokens(_TEMPLATE.least + len(chat) * _A_MESSAGE.least, _TEMPLATE.most + len(chat) * _A_MESSAGE.most)
    return texts.plus(template).plus(Tokens(needs.token_ids, needs.token_ids))


def service(request: InferenceRequest, needs: Needs, observation: Observation, profile: Profile) -> Service:
    """Return which tiers can serve a request.

    Raises:
        NoTierError: in auto mode, if none can.
    """
    prompt = prompt_tokens(request, needs)
    answer = request.max_tokens or LEAST_ANSWER_TOKENS
    least_answer = request.max_tokens or 1
    refusal = needs.tried.refusal
    obstacles: dict[TierName, Obstacle] = {}
    room: dict[TierName, int] = {}
    for name in TIER_NAMES:
        state = observation.tier(name)
        entry = profile.entry(name, state.active_entry)
        room[name] = entry.max_model_len
        if needs.refused_with_drafts and entry.speculation is not None:
            obstacles[name] = Obstacle("drafts", not_with_drafts(needs.refused_with_drafts, "it uses"))
        elif refusal is not None and entry.max_model_len <= refusal.context:
            obstacles[name] = Obstacle("context", refusal.reason)
        elif prompt.least + least_answer > entry.max_model_len:
            obstacles[name] = Obstacle(
                "context", _too_long(prompt.least, "at least", least_answer, entry.max_model_len)
            )
        elif state.failed or name in needs.tried.gone:
            why = state.reason or needs.tried.gone.get(name) or "its replicas fail to start"
            obstacles[name] = Obstacle("failed", f"it cannot start: {why}")
        elif prompt.most + answer > entry.max_model_len:
            obstacles[name] = Obstacle("tight", _too_long(prompt.most, "perhaps", answer, entry.max_model_len))
    if request.mode == "manual":
        return Service(prompt, obstacles, TIER_NAMES)
    return Service(prompt, obstacles, _able(obstacles, room, needs, prompt.most + answer))


def not_with_drafts(fields: Sequence[str], who_drafts: str) -> str:
    """Return why fields are refused: what drafts follows "which"."""
    return f"{' and '.join(fields)}: not allowed with speculative decoding, which {who_drafts}"


def _able(
    obstacles: Mapping[TierName, Obstacle], room: Mapping[TierName, int], needs: Needs, most: int
) -> tuple[TierName, ...]:
    def having(*kinds: ObstacleKind | None) -> tuple[TierName, ...]:
        return tuple(n for n in TIER_NAMES if (obstacles[n].kind if n in obstacles else None) in kinds)

    if free := having(None):
        return free
    if maybe := having("tight") or having("failed"):
        # The roomiest, where none surely has the room.
        enough = min(most, max(room[name] for name in maybe))
        return tuple(name for name in maybe if room[name] >= enough)
    if too_small := having("context"):
        nearest = max(too_small, key=lambda name: room[name])
        raise NoTierError(
            "prompt_too_long",
            f"{obstacles[nearest].reason} in tier {nearest}, which comes nearest",
        )
    raise NoTierError("invalid_request", not_with_drafts(needs.refused_with_drafts, "every tier uses now"))


def _too_long(prompt: int, how: str, answer: int, room: int) -> str:
    return (
        f"the prompt has {how} {prompt} tokens and the answer needs {answer}; together they may be "
        f"at most max_model_len = {room}"
    )
