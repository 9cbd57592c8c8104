"""Measured energy of an engine replica: its cards' counters, shared with the other engines on them."""
