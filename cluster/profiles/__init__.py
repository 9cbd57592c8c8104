"""Profiles: tier registries in YAML, for a GPU cluster and for one machine without a GPU."""
