"""Requests that no client should send, and what every answer to them must be (`bench.fuzz`)."""
