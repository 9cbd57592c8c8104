"""Past runs: what each tier did with each category of prompt."""
