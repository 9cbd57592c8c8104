"""Engines and the deployment that holds one: vLLM for real, a stub for page work and relay tests."""
