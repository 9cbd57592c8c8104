"""Energy, water, CO2 and cost of an answer, and its savings against a baseline. Pure functions."""

from sustainability.factors import Factor, Factors, load_factors
from sustainability.footprint import Footprint, baseline_seconds, footprint
from sustainability.savings import Savings, savings

__all__ = [
    "Factor",
    "Factors",
    "Footprint",
    "Savings",
    "baseline_seconds",
    "footprint",
    "load_factors",
    "savings",
]
