"""What the agent uses for one request: tokens, money, and the budget that bounds both."""

from __future__ import annotations

from dataclasses import dataclass

from router.agent.settings import AgentPrices

BYTES_PER_TOKEN = 2
"""For the worst case of a call's input. Text has 3 to 4 bytes a token with Claude's tokenizers."""
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the Messages API counts them: `input_tokens` does not include those of the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def cost_usd(self, prices: AgentPrices) -> float:
        """Return what these tokens cost."""
        return (
            self.input_tokens * prices.input
            + self.output_tokens * prices.output
            + self.cache_read_tokens * prices.cache_read
            + self.cache_write_tokens * prices.cache_write
        ) / _MILLION


class Meter:
    """Counts one request's use as it happens, so that a call that is cut short is counted too.

    Args:
        prices: of the model.
        budget_usd: most that the request's calls may cost together.
    """

    def __init__(self, prices: AgentPrices, budget_usd: float) -> None:
        self._prices = prices
        self._budget_usd = budget_usd
        self._ended = Usage()
        self._current = Usage()
        self._charged_usd: float | None = None
        self.calls = 0

    @property
    def usage(self) -> Usage:
        """All calls so far, with what is known of the current one."""
        return self._ended + self._current

    @property
    def cost_usd(self) -> float:
        """What they cost: by the prices, or as the Agent SDK's program reported."""
        return self.usage.cost_usd(self._prices) if self._charged_usd is None else self._charged_usd

    def begin(self) -> None:
        """Begin to count a call."""
        self._ended, self._current = self.usage, Usage()
        self.calls += 1

    def note(self, usage: Usage) -> None:
        """Set what the current call has used in total by now."""
        self._current = usage

    def charge(self, usage: Usage, cost_usd: float | None, calls: int) -> None:
        """Set the totals of a program that counts by itself; without a cost, the prices count."""
        self._ended, self._current, self._charged_usd, self.calls = usage, Usage(), cost_usd, calls

    def affordable_output(self, input_bytes: int, most: int) -> int:
        """Return how many output tokens the next call may have, up to `most`; 0 or less: it must not be made.

        Args:
            input_bytes: size of everything that is sent to the model; all of it may have to be written to the cache.
            most: output tokens without a budget.
        """
        input_price = max(self._prices.input, self._prices.cache_write)
        left = (self._budget_usd - self.cost_usd) * _MILLION - input_bytes / BYTES_PER_TOKEN * input_price
        if self._prices.output == 0:
            return most if left >= 0 else 0
        return min(most, int(left / self._prices.output))
