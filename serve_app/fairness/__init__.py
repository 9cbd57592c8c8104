"""Fairness between keys: who may take which place, and who goes first where some must wait. Pure."""
