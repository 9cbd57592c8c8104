"""Refuse numbers that no measurement can give."""

import math


def require_non_negative(**arguments: float) -> None:
    """Raise `ValueError` naming the first argument that is negative, NaN or infinite."""
    for name, value in arguments.items():
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def require_positive(**arguments: float) -> None:
    """Raise `ValueError` naming the first argument that is zero, negative, NaN or infinite."""
    for name, value in arguments.items():
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
