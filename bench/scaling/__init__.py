"""A simulation of one tier under load, and the scaling policies that it compares."""
