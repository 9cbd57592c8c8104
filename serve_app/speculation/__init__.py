"""How deep to speculate, per request and step: the pure core that the engine's scheduler asks.

Runs inside vLLM's EngineCore process, so it imports the standard library and pydantic only, does no I/O and reads no
clock: times are told to it.
"""
