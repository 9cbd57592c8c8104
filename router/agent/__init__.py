"""The router agent: Claude explains or makes the choice of a tier, within bounds."""
