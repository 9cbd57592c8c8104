"""Real vLLM engines in processes of their own, and what they are asked."""
