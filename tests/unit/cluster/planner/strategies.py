"""Clusters to plan for."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from cluster.catalogue.types import catalogue
from cluster.planner.supply import Cards, of_nodes

FEWER = settings(max_examples=settings().max_examples // 3)
"""A plan for random machines takes 20 ms."""
NODES = st.tuples(st.sampled_from(list(catalogue().gpus)), st.sampled_from([1, 1, 2, 3, 4, 8]))


def clusters() -> st.SearchStrategy[tuple[Cards, ...]]:
    """One to four machines, each with some cards of one type."""
    return st.lists(NODES, min_size=1, max_size=4).map(of_nodes)
