"""The depth controller as the scheduler sees it: no fault of it can end the engine.

An error in vLLM's scheduler ends the engine and all its streams. Drafts only save time, so a fault costs only drafts:
impossible counts are clamped, an unknown request gets no drafts, and after an error in the controller a new one learns
afresh. All of this is logged, each kind at most once a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cluster.rate_limited_log import RateLimitedLog
from router.observation import NOTHING_LEARNED, Learned
from router.spec_params import SpecParams
from serve_app.speculation.batch import Decision, Reason
from serve_app.speculation.controller import DepthController, StepResult, possible_counts
from serve_app.speculation.settings import EngineFacts, SpeculationSettings
from sustainability.shares import StepParts

_NONE: Final = Decision(0, Reason.AUTO_OFF)


class DepthGuard:
    """A `DepthController` that does not raise.

    Args:
        k_max: most draft tokens of a step.
        settings: the controller's.
        log: takes the faults.
        facts: the controller's, of the engine.
    """

    def __init__(
        self, k_max: int, settings: SpeculationSettings, log: RateLimitedLog, facts: EngineFacts | None = None
    ) -> None:
        self._k_max = k_max
        self._facts = facts
        self._settings = settings
        self._log = log
        self._requests: dict[str, tuple[SpecParams, str, bool]] = {}
        self._controller = DepthController(k_max, settings, facts)

    def add(self, request_id: str, spec: SpecParams, category: str, *, seeded: bool) -> None:
        """See `DepthController.add`."""
        self._requests[request_id] = spec, category, seeded
        try:
            self._controller.add(request_id, spec, category, seeded=seeded)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)

    def remove(self, request_id: str) -> None:
        """See `DepthController.remove`."""
        self._requests.pop(request_id, None)
        try:
            self._controller.remove(request_id)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)

    def decide(self, decoding: Sequence[str], prefill_tokens: int) -> dict[str, Decision]:
        """See `DepthController.decide`; every request has a decision."""
        try:
            decided = self._controller.decide(decoding, prefill_tokens)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return dict.fromkeys(decoding, _NONE)
        if len(decided) < len(decoding):
            unknown = [key for key in decoding if key not in decided]
            if unknown:
                words = "requests that the speculation controller does not know get no drafts: %s"
                self._log.warning("unknown", words, ", ".join(unknown))
            decided.update(dict.fromkeys(unknown, _NONE))
        # vLLM would write drafts beyond its buffers.
        for key in [key for key, decision in decided.items() if not 0 <= decision.k <= self._k_max]:
            words = "request %s: %d drafts are impossible, at most %d are possible"
            self._log.warning("depth", words, key, decided[key].k, self._k_max)
            decided[key] = replace(decided[key], k=min(max(decided[key].k, 0), self._k_max))
        return decided

    def observe(self, result: StepResult) -> None:
        """See `DepthController.observe`."""
        try:
            self._controller.observe(result)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)

    def parts_of(self, result: StepResult) -> StepParts:
        """See `DepthController.parts_of`."""
        try:
            return self._controller.parts_of(result)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return StepParts(result.step_s or 0.0)

    def step_s(self, tokens: int) -> float:
        """See `DepthController.step_s`."""
        try:
            return self._controller.step_s(tokens)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return 0.0

    def tau(self, request_id: str) -> float | None:
        """See `DepthController.tau`."""
        try:
            return self._controller.tau(request_id)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return None

    def learned(self) -> Learned:
        """See `DepthController.learned`."""
        try:
            return self._controller.learned()
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return NOTHING_LEARNED

    def possible(self, counts: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Return the counts by request; impossible ones as the nearest possible ones."""
        clean = {key: possible_counts(*pair, self._k_max) for key, pair in counts.items()}
        odd = next((key for key, pair in counts.items() if clean[key] != pair), None)
        if odd is not None:
            drafted, accepted = counts[odd]
            words = "request %s: %d of %d draft tokens accepted, %d at most, is impossible: taken as %d of %d"
            self._log.warning("counts", words, odd, accepted, drafted, self._k_max, *reversed(clean[odd]))
        return clean

    def start_afresh(self) -> None:
        """Forget what was learned, but not the requests."""
        self._controller = DepthController(self._k_max, self._settings, self._facts)
        for request_id, (spec, category, seeded) in self._requests.items():
            try:
                self._controller.add(request_id, spec, category, seeded=seeded)
            except Exception as error:  # noqa: BLE001 - see the module
                self._log.warning("fault", "request %s gets no drafts: %s", request_id, error, error=error)

    def _failed(self, error: Exception) -> None:
        words = "the speculation controller failed and starts afresh: %s: %s"
        self._log.warning("fault", words, type(error).__name__, error, error=error)
        self.start_afresh()
