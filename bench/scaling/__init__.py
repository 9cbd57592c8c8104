"""Simulate one tier under load with different scaling policies."""
