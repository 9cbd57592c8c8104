"""The parts of one answer: of the tier that began it, and of the one that went on with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.engine.interface import Finished, Leg
from serve_app.transport.resuming import ResumingStream

REFUSED: Final = "refused"
"""How the part of a tier ended that was asked to go on, and of which nothing was taken."""


@dataclass(slots=True)
class AnswerParts:
    """The tier that answers now, the one that is asked to go on, and what the one before did.

    Args:
        items: of the tier that answers now.
        did_since: estimates what an engine did for a stream since its last item, s, from the time since then, s.
    """

    items: ResumingStream
    did_since: Callable[[ResumingStream, float], float]
    asked: ResumingStream | None = field(default=None, init=False)
    """Of the tier that is asked to go on."""
    earlier: list[Leg] = field(default_factory=list, init=False)
    """What the tier did that another one took over from."""
    refused: list[Leg] = field(default_factory=list, init=False)
    """What tiers did that were asked to go on, and of which nothing is in the answer."""
    _prompt_tokens: int | None = field(default=None, init=False)
    """As the first tier read the prompt: the next one reads a prompt that nobody sent."""
    _withdrawn: int = field(default=0, init=False)
    """Its tokens that are not in the answer, as it began anew."""
    _kept: int = field(default=0, init=False)
    """Its tokens that are."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the client's prompt; 0: nobody has read it."""
        return self.items.prompt_tokens if self._prompt_tokens is None else self._prompt_tokens

    @property
    def delivered(self) -> int:
        """Tokens of the answer so far."""
        return self._kept + self.items.delivered

    @property
    def made(self) -> int:
        """Tokens that the client was given, with those that were withdrawn."""
        return self._withdrawn + self.delivered

    @property
    def busy_s(self) -> float:
        """Shares of the engines' busy time so far, s."""
        return sum(leg.busy_s for leg in self.earlier) + self.items.busy_s

    @property
    def legs(self) -> list[Leg]:
        """Which replica of which tier gave which part, as far as the parts have ended."""
        return [*self.earlier, *self.items.legs]

    async def hand_over(self, *, rewrite: bool) -> None:
        """Let the tier that was asked go on, anew if it is to `rewrite`. An answer is handed over once at most."""
        assert self.asked is not None
        old, self.items, self.asked = self.items, self.asked, None
        self._prompt_tokens = old.prompt_tokens
        self._kept, self._withdrawn = (0, old.delivered) if rewrite else (old.delivered, 0)
        self.earlier = await old.hand_over()

    async def drop_asked(self) -> None:
        """Let the tier that answers go on, and not the one that was asked."""
        asked, self.asked = self.asked, None
        if asked is not None:
            self.refused += await self._cut(asked, REFUSED)
            await asked.aclose()

    async def cut(self, ended_by: str) -> list[Leg]:
        """Return which replica gave which part of an answer that is given up; the last one as far as is known.

        Args:
            ended_by: code of why.
        """
        return [*self.earlier, *await self._cut(self.items, ended_by)]

    def whole(self, last: Finished) -> Finished:
        """Return the end of the whole answer from that of its last part."""
        if not self.earlier:
            return last
        tokens = self._kept + last.completion_tokens
        return replace(last, prompt_tokens=self.prompt_tokens, completion_tokens=tokens, queue_ms=0.0)

    async def _cut(self, items: ResumingStream, ended_by: str) -> list[Leg]:
        return await items.cut(ended_by, lambda quiet_s: self.did_since(items, quiet_s))
