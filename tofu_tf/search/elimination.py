"""The exact minimum of a factor graph, by min-sum variable elimination.

Tables are joined in pairs, in the order that opt_einsum finds for the contraction of the same
shape; a variable that occurs in no other table is minimised away at once. Back-substitution then
gives the choices. Where the largest table would pass a limit, the variable that costs most is
tried choice by choice (conditioning), which stays exact.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from opt_einsum import paths

from tofu_tf import errors
from tofu_tf.search.factors import FactorGraph, added
from tofu_tf.tdl.regions import IntArray

# Entries of the largest table that is made (8 bytes each).
MOST_ENTRIES = 1 << 24

# How many eliminations conditioning may cost in one connected part.
MOST_TRIALS = 4096

Scope = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Solution:
    """The choices of all variables, their cost, and the largest table that was made on the way."""

    chosen: tuple[int, ...]
    cost: int
    largest: int


def minimise(graph: FactorGraph, most_entries: int = MOST_ENTRIES) -> Solution:
    """A choice for every variable with the least total cost; among equals always the same one.

    Raises:
      PlanError: a part of the graph that is too entangled for tables of `most_entries`.
    """
    chosen = [0] * len(graph.sizes)
    cost, largest = graph.constant, 0
    for _, scopes in graph.components():
        if not scopes:
            continue
        tables = [(scope, graph.tables[scope]) for scope in scopes]
        part, value, most = _solve(tables, graph.sizes, most_entries, MOST_TRIALS)
        for v, c in part.items():
            chosen[v] = c
        cost += value
        largest = max(largest, most)
    return Solution(tuple(chosen), cost, largest)


def _solve(
    tables: list[tuple[Scope, IntArray]], sizes: Sequence[int], most_entries: int, trials: int
) -> tuple[dict[int, int], int, int]:
    path = contraction_path([scope for scope, _ in tables], sizes)
    steps, joins = _simulate([scope for scope, _ in tables], path, sizes)
    largest = max(n for n, _ in joins)
    if largest <= most_entries:
        found, cost = _eliminate(tables, steps)
        return found, cost, largest
    # the variable whose absence shrinks the too large tables most
    weight: dict[int, float] = {}
    for entries, scope in joins:
        for v in scope if entries > most_entries else ():
            weight[v] = weight.get(v, 0.0) + math.log(sizes[v])
    split = min(weight, key=lambda v: (-weight[v], v))
    if trials < sizes[split]:
        raise errors.PlanError(
            "search",
            f"the largest table would have {largest:,} entries, over {most_entries:,}, after "
            f"{MOST_TRIALS:,} trials",
            "a graph whose decisions hang together less",
            "constrain some of the large tensors, or use fewer cuts",
        )
    best: tuple[dict[int, int], int] | None = None
    most = 0
    for choice in range(sizes[split]):
        fewer = [
            (
                tuple(v for v in scope if v != split),
                np.asarray(table.take(choice, axis=scope.index(split)))
                if split in scope
                else table,
            )
            for scope, table in tables
        ]
        constant = sum(int(t) for scope, t in fewer if not scope)
        fewer = [(scope, t) for scope, t in fewer if scope]
        if fewer:
            found, cost, seen = _solve(fewer, sizes, most_entries, trials // sizes[split])
        else:
            found, cost, seen = {}, 0, 0
        most = max(most, seen)
        if best is None or cost + constant < best[1]:
            best = ({**found, split: choice}, cost + constant)
    assert best is not None
    return best[0], best[1], most


def contraction_path(scopes: Sequence[Scope], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Pairs of positions to join, as `opt_einsum` orders a contraction of these scopes."""
    size_of = {v: sizes[v] for scope in scopes for v in scope}
    return list(_path(tuple(scopes), tuple(size_of.items())))


@functools.lru_cache(maxsize=64)  # asked for what an elimination takes, and then for it
def _path(
    scopes: tuple[Scope, ...], size_of: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, ...], ...]:
    # whole numbers, not names: their hashes, and so the order, are the same in every process
    names = [frozenset(scope) for scope in scopes]
    return tuple(tuple(p) for p in paths.greedy(names, frozenset(), dict(size_of)))


def demand(graph: FactorGraph) -> tuple[int, int]:
    """Entries of the largest table that elimination would make, and of all of them."""
    largest, total = 0, 0
    for _, scopes in graph.components():
        if scopes:
            _, joins = _simulate(scopes, contraction_path(scopes, graph.sizes), graph.sizes)
            largest = max(largest, *(n for n, _ in joins))
            total += sum(n for n, _ in joins)
    return largest, total


@dataclasses.dataclass(frozen=True)
class _Step:
    """Join the tables at `positions` of the list as it then is; minimise `gone`, leave `kept`."""

    positions: tuple[int, ...]
    gone: Scope
    kept: Scope


def _simulate(
    scopes: Sequence[Scope], path: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> tuple[list[_Step], list[tuple[int, Scope]]]:
    """The steps of a path, and the number of entries and scope of every joined table."""
    holders: dict[int, int] = {}
    for scope in scopes:
        for v in scope:
            holders[v] = holders.get(v, 0) + 1
    live = list(scopes)
    steps: list[_Step] = []
    joins: list[tuple[int, Scope]] = []
    for pair in path:
        taken = [live.pop(p) for p in sorted(pair, reverse=True)]
        union: dict[int, int] = {}
        for scope in taken:
            for v in scope:
                union[v] = union.get(v, 0) + 1
        gone = tuple(sorted(v for v, n in union.items() if holders[v] == n))
        kept = tuple(sorted(v for v, n in union.items() if holders[v] > n))
        for v in kept:
            holders[v] -= union[v] - 1
        steps.append(_Step(tuple(sorted(pair, reverse=True)), gone, kept))
        joins.append((math.prod(sizes[v] for v in union), tuple(union)))
        live.append(kept)
    return steps, joins


def _eliminate(
    tables: Sequence[tuple[Scope, IntArray]], steps: Sequence[_Step]
) -> tuple[dict[int, int], int]:
    live: list[tuple[Scope, IntArray]] = list(tables)
    trace: list[tuple[Scope, Scope, tuple[int, ...], IntArray]] = []
    for step in steps:
        scope = (*step.gone, *step.kept)
        total: IntArray | None = None
        for p in step.positions:
            own, table = live.pop(p)
            aligned = _aligned(own, table, scope)
            total = aligned if total is None else added(total, aligned)
        assert total is not None
        if step.gone:
            n = len(step.gone)
            shape = total.shape
            flat = total.reshape(math.prod(shape[:n]), *shape[n:])
            best = flat.argmin(axis=0)
            trace.append((step.gone, step.kept, shape[:n], best))
            total = np.take_along_axis(flat, best[None], axis=0)[0]
        live.append((step.kept, total))
    chosen: dict[int, int] = {}
    for gone, kept, shape, best in reversed(trace):
        flat_choice = int(best[tuple(chosen[v] for v in kept)])
        for v, c in zip(gone, np.unravel_index(flat_choice, shape), strict=True):
            chosen[v] = int(c)
    return chosen, sum(int(table) for _, table in live)


def _aligned(own: Scope, table: IntArray, scope: Scope) -> IntArray:
    """The table with one axis for each variable of `scope`, of length 1 where it has none."""
    order = sorted(range(len(own)), key=lambda n: scope.index(own[n]))
    table = table.transpose(order)
    sizes = iter(table.shape)
    return table.reshape([next(sizes) if v in own else 1 for v in scope])
