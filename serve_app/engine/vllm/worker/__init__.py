"""What runs in vLLM's worker process: our workers, and how they draft and measure."""
