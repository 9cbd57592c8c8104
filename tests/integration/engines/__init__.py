"""Real vLLM engines (CPU build) in processes of their own, without Ray."""
