"""Fit the gain model to outcomes: the shipped one, and an operator's own."""
