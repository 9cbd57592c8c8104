"""How the process that serves starts, takes signals, and stops."""
