"""The speculation controller: how many draft tokens for which request at which step. Pure.

It runs inside vLLM's EngineCore process, so it imports only the standard library, pydantic and pure parts of the
router, does no I/O and reads no clock: times are arguments.
"""
