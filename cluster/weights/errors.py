"""The one error of this package: what went wrong with weights, in a line that says what to do."""

from __future__ import annotations


class WeightsError(RuntimeError):
    """Weights could not be seeded, read or verified; the message is one line, for a person, with the remedy."""
