"""The error of this package."""

from __future__ import annotations


class WeightsError(RuntimeError):
    """Weights could not be seeded, read or verified. The message is one line, with the remedy, for the user."""
