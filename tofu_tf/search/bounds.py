"""A lower bound of a factor graph's minimum, and the choices that no better solution can have.

Costs are moved between the tables without changing any total (a reparametrisation), until the sum
of the tables' own minima is as large as it gets: sequential reweighted message passing along an
order of the variables, forwards and backwards. On a tree the bound is the minimum itself; in
general it approaches the linear relaxation's. All amounts are whole multiples of a power of two
whose sums stay below 2^53 of them, so that nothing is lost in float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.factors import FactorGraph
from tofu_tf.tdl.regions import IntArray

Costs = npt.NDArray[np.float64]

# Passes over the whole graph, and by what part of the gap a pass must raise the bound to go on.
MOST_PASSES = 50
LEAST_GAIN = 0.01


@dataclasses.dataclass(frozen=True)
class Bound:
    """`lower`: no solution costs less. `regrets[v]`: for every choice of v by how much more any
    solution costs that has it; infinite where that is not below the given upper bound and the cost
    of `chosen`, everywhere when no solution is. `chosen`: a solution, read off the moved costs
    (what it costs may be forbidden).
    """

    lower: int
    regrets: tuple[Costs, ...]
    chosen: tuple[int, ...]


def bound(
    graph: FactorGraph,
    upper: int | None = None,
    order: Sequence[int] | None = None,
    passes: int = MOST_PASSES,
) -> Bound:
    """A lower bound of the minimum of `graph`.

    Args:
      graph: what is to be minimised.
      upper: the cost of a known solution; choices that cannot lead below it are dropped, and the
        bound is never above it.
      order: the order of the variables; neighbours should be close to each other.
      passes: at most so many forward and backward passes.
    """
    state = _State(graph, _order(graph) if order is None else tuple(order))
    limit = FORBIDDEN if upper is None else upper
    lower, chosen = state.lower(), (0,) * len(graph.sizes)
    for _ in range(passes):
        state.passed(forward=True)
        state.passed(forward=False)
        before, lower = lower, max(lower, state.lower())
        if not state.empty:
            chosen = min(chosen, state.decoded(), key=graph.cost)
            limit = min(limit, graph.cost(chosen))
        if lower >= limit or not state.prune(limit):
            return Bound(limit, tuple(np.full(n, np.inf) for n in graph.sizes), chosen)
        if lower - before < LEAST_GAIN * (limit - lower):
            break
    minima = state.minima()
    lower = min(math.ceil(minima), limit)
    regrets = tuple(state.regrets(v, n, minima, lower) for v, n in enumerate(graph.sizes))
    return Bound(lower, regrets, chosen)


def _order(graph: FactorGraph) -> tuple[int, ...]:
    """The variables by where their tables are in the middle: neighbours are close to each other."""
    at: dict[int, tuple[int, int]] = {}
    for n, scope in enumerate(graph.tables):
        for v in scope:
            at[v] = (at.get(v, (n, n))[0], n)
    return tuple(sorted(range(len(graph.sizes)), key=lambda v: sum(at.get(v, (0, 0)))))


class _Table:
    """A table over several variables while costs are moved; `scope` in the order of the passes."""

    def __init__(self, scope: tuple[int, ...], costs: Costs) -> None:
        self.scope, self.costs = scope, costs

    def minimum(self, v: int) -> Costs:
        """[choices of v] the least entry."""
        axis = self.scope.index(v)
        others = tuple(a for a in range(len(self.scope)) if a != axis)
        return np.asarray(self.costs.min(axis=others, initial=np.inf))

    def add(self, v: int, costs: Costs) -> None:
        shape = [1] * len(self.scope)
        shape[self.scope.index(v)] = -1
        self.costs += costs.reshape(shape)


class _State:
    def __init__(self, graph: FactorGraph, order: tuple[int, ...]) -> None:
        place = {v: n for n, v in enumerate(order)}
        self.order = order
        self.constant = graph.constant
        most = sum(int(t.max(where=t < FORBIDDEN, initial=0)) for t in graph.tables.values())
        self.unit = 2.0 ** -max(0, 50 - most.bit_length())
        self.kept: list[IntArray] = [np.arange(n, dtype=np.int64) for n in graph.sizes]
        self.single: list[Costs] = [np.zeros(n) for n in graph.sizes]
        self.tables: list[_Table] = []
        self.around: list[list[_Table]] = [[] for _ in graph.sizes]
        for scope, table in graph.tables.items():
            costs = np.where(table >= FORBIDDEN, np.inf, table.astype(np.float64))
            if len(scope) == 1:
                self.single[scope[0]] = self.single[scope[0]] + costs
                continue
            axes = sorted(range(len(scope)), key=lambda a: place[scope[a]])
            made = _Table(
                tuple(scope[a] for a in axes), np.ascontiguousarray(costs.transpose(axes))
            )
            self.tables.append(made)
            for v in scope:
                self.around[v].append(made)
        self._without_impossible()

    def _without_impossible(self) -> None:
        """Drops choices that some table forbids whatever the others are."""
        waiting = dict.fromkeys(self.order)
        while waiting:
            v, _ = waiting.popitem()
            fine = np.isfinite(self.single[v])
            for table in self.around[v]:
                fine &= np.isfinite(table.minimum(v))
            if not fine.all():
                self._keep(v, fine)
                waiting |= {u: None for t in self.around[v] for u in t.scope if u != v}

    def _keep(self, v: int, fine: npt.NDArray[np.bool_]) -> None:
        self.kept[v] = self.kept[v][fine]
        self.single[v] = self.single[v][fine]
        for table in self.around[v]:
            table.costs = np.compress(fine, table.costs, axis=table.scope.index(v))

    @property
    def empty(self) -> bool:
        return any(not len(k) for k in self.kept)

    def lower(self) -> int:
        return math.ceil(self.minima())

    def minima(self) -> float:
        """The sum of all minima. Solutions cost whole numbers, so the next one is a bound too."""
        if self.empty:
            return float(FORBIDDEN)
        total = self.constant + sum(float(s.min(initial=np.inf)) for s in self.single)
        total += sum(float(t.costs.min(initial=np.inf)) for t in self.tables)
        return min(total, float(FORBIDDEN))

    def passed(self, forward: bool) -> None:
        """Collects at every variable in turn, and hands on to the tables that reach further."""
        if self.empty:
            return
        first, last = (0, -1) if forward else (-1, 0)
        for v in self.order if forward else reversed(self.order):
            around = self.around[v]
            total = self.single[v]
            for table in around:
                message = table.minimum(v)
                table.add(v, -message)
                total = total + message
            onward = [t for t in around if t.scope[last] != v]
            before = sum(t.scope[first] != v for t in around)
            if onward:
                share = np.floor(total / (max(len(onward), before) * self.unit)) * self.unit
                for table in onward:
                    table.add(v, share)
                total = total - share * len(onward)
            self.single[v] = total

    def decoded(self) -> tuple[int, ...]:
        """A choice for every variable in turn: the least of what is around, given those before."""
        at: dict[int, int] = {}
        for v in self.order:
            total = self.single[v].copy()
            for table in self.around[v]:
                index = tuple(at.get(u, slice(None)) for u in table.scope)
                left = [u for u in table.scope if u not in at]
                others = tuple(a for a, u in enumerate(left) if u != v)
                total += table.costs[index].min(axis=others)
            at[v] = int(np.argmin(total))
        return tuple(int(k[at[v]]) for v, k in enumerate(self.kept))

    def regrets(self, v: int, choices: int, minima: float, lower: int) -> Costs:
        """[choices] how much more than `lower` any solution costs that has the choice; `minima` is
        `lower` before it was rounded.
        """
        found = np.full(choices, np.inf)
        total, own = self._collected(v)
        # rounded as `lower` is, with the rest before it: what is rounded twice may be too much
        least = np.ceil(minima - own + total)
        found[self.kept[v]] = np.maximum(least - lower, 0)
        return found

    def _collected(self, v: int) -> tuple[Costs, float]:
        """[choices of v] a bound of what all around v costs, and the present one without v's."""
        total, own = self.single[v].copy(), float(self.single[v].min())
        for table in self.around[v]:
            total += table.minimum(v)
            own += float(table.costs.min())
        return total, own

    def prune(self, upper: int) -> bool:
        """Drops choices of which every solution costs `upper` or more; False when none is left."""
        if upper >= FORBIDDEN:
            return not self.empty
        lower = float(self.lower())
        for v in self.order:
            total, own = self._collected(v)
            fine = lower - own + total < upper
            if not fine.any():
                return False
            if not fine.all():
                self._keep(v, fine)
                lower += self._collected(v)[1] - own  # the minima of what is left
                if not lower < upper:
                    return False
        self._without_impossible()
        return not self.empty
