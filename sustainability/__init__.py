"""Energy, water, CO2 and cost of an answer, and its savings against a baseline. Pure functions."""
