"""How well AUTO orders prompts by difficulty: outcomes, the score, and the fit of the learned part."""
