"""The minimum of a factor graph as an integer linear program, by SciPy's HiGHS: the oracle.

A variable per choice and per entry of each table (the marginals of the table's variables), so that
its relaxation is the one that `bounds` approaches.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize, sparse

from tofu_tf import errors
from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.search.factors import FactorGraph


@dataclasses.dataclass(frozen=True)
class Program:
    """What HiGHS yields: `bound` is `cost` when that is proven; no `chosen` for relaxations."""

    chosen: tuple[int, ...]
    cost: int
    bound: int
    columns: int


def columns_of(graph: FactorGraph) -> int:
    """Columns of the program."""
    return sum(graph.sizes) + sum(t.size for s, t in graph.tables.items() if len(s) > 1)


def integer_program(graph: FactorGraph, seconds: float | None = None) -> Program:
    """The minimum of `graph`, or what was found and proven after so many seconds.

    Raises:
      PlanError: nothing was found.
    """
    return _solved(graph, True, seconds)


def relaxation(graph: FactorGraph, seconds: float | None = None) -> Program:
    """The linear relaxation: `bound` is below every solution, `cost` is the same."""
    return _solved(graph, False, seconds)


def _solved(graph: FactorGraph, whole: bool, seconds: float | None) -> Program:
    first = np.concatenate([[0], np.cumsum(graph.sizes)]).astype(np.int64)
    costs = [np.zeros(n) for n in graph.sizes]
    entries: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    signs: list[np.ndarray] = []
    n_rows, n_columns = len(graph.sizes), int(first[-1])
    for v, size in enumerate(graph.sizes):  # one choice of every variable
        rows.append(np.full(size, v))
        columns.append(first[v] + np.arange(size))
        signs.append(np.ones(size))
    for scope, table in graph.tables.items():
        if len(scope) == 1:
            costs[scope[0]] = costs[scope[0]] + table
            continue
        own = n_columns + np.arange(table.size).reshape(table.shape)
        entries.append(table.ravel().astype(np.float64))
        n_columns += table.size
        for axis, v in enumerate(scope):  # the entries with a choice sum up to it
            size = graph.sizes[v]
            rows += [
                n_rows + np.repeat(np.arange(size), table.size // size),
                n_rows + np.arange(size),
            ]
            columns += [np.moveaxis(own, axis, 0).ravel(), first[v] + np.arange(size)]
            signs += [np.ones(table.size), -np.ones(size)]
            n_rows += size
    cost = np.concatenate([*costs, *entries]) if graph.sizes else np.zeros(0)
    possible = cost < FORBIDDEN
    # amounts near one another are what a solver of floating point likes
    unit = max(1.0, float(np.max(cost, where=possible, initial=0)) / 1e6)
    matrix = sparse.csr_array(
        (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns))),
        (n_rows, n_columns),
    )
    right = np.concatenate([np.ones(len(graph.sizes)), np.zeros(n_rows - len(graph.sizes))])
    integral = np.zeros(n_columns)
    if whole:
        integral[: first[-1]] = 1
    options: dict[str, float] = {"mip_rel_gap": 0.0}
    if seconds is not None:
        options["time_limit"] = seconds
    found = optimize.milp(
        np.where(possible, cost, 0) / unit,
        integrality=integral,
        bounds=optimize.Bounds(0, possible.astype(np.float64)),
        constraints=optimize.LinearConstraint(matrix, right, right),
        options=options,
    )
    if found.x is None or graph.constant >= FORBIDDEN:
        raise errors.PlanError("integer program", str(found.message), "a solution")
    if not whole:
        # a floating-point solver's value, rounded so that it stays a bound
        least = graph.constant + math.floor(found.fun * unit * (1 - 1e-9))
        return Program((), least, least, n_columns)
    chosen = tuple(
        int(np.argmax(found.x[first[v] : first[v + 1]])) for v in range(len(graph.sizes))
    )
    reached = graph.cost(chosen)
    proven = graph.constant + math.floor(found.mip_dual_bound * unit * (1 - 1e-9))
    return Program(chosen, reached, reached if found.status == 0 else proven, n_columns)
