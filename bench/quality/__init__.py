"""Measure how well auto mode orders prompts by difficulty, and fit the learned part of the classifier."""
