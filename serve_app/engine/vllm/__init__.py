"""vLLM in the engine replica; the only package that imports vLLM."""
