"""Real vLLM engines in processes of their own, and their prompts."""
