"""What the planner knows: GPUs and models (YAML), what an engine of them needs in memory, how fast it is. Pure."""
