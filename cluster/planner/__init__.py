"""`power-lever profile`: a profile for the GPUs that are there. Pure but for the command, which may ask Ray."""
