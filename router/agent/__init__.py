"""The router agent: Claude explains the choice of a tier, or makes it within bounds."""
