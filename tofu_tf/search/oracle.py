"""The minimum of a small factor graph by trying everything: what elimination is tested against."""

from __future__ import annotations

import itertools

from tofu_tf.search.elimination import Solution
from tofu_tf.search.factors import FactorGraph


def brute_force(graph: FactorGraph) -> Solution:
    """The first of the cheapest of all combinations of choices."""
    best = min(
        itertools.product(*(range(n) for n in graph.sizes)), key=lambda chosen: graph.cost(chosen)
    )
    return Solution(tuple(best), graph.cost(best), 0)
