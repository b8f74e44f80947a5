"""A factor graph: variables with a few choices each, and tables of costs over some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tofu_tf.cost.communication import FORBIDDEN
from tofu_tf.tdl.regions import IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class FactorGraph:
    """Minimise ``constant + sum of tables[scope][choices of scope]``.

    `sizes[v]`: number of choices of variable v. `tables`: one per distinct scope (ascending
    variables).
    """

    sizes: tuple[int, ...]
    tables: Mapping[tuple[int, ...], IntArray]
    constant: int = 0

    def cost(self, chosen: Sequence[int]) -> int:
        """The cost of one choice for every variable."""
        return self.constant + sum(
            int(table[tuple(chosen[v] for v in scope)]) for scope, table in self.tables.items()
        )

    def given(self, variable: int, choice: int) -> FactorGraph:
        """The same with one variable settled (it stays, with a single choice)."""
        tables: dict[tuple[int, ...], IntArray] = {}
        for scope, table in self.tables.items():
            if variable in scope:
                table = table.take([choice], axis=scope.index(variable))
            tables[scope] = table
        sizes = tuple(1 if v == variable else n for v, n in enumerate(self.sizes))
        return FactorGraph(sizes, tables, self.constant)

    def only(self, kept: Sequence[IntArray]) -> FactorGraph:
        """The same with some choices of every variable, by their numbers."""
        tables: dict[tuple[int, ...], IntArray] = {}
        for scope, table in self.tables.items():
            for axis, v in enumerate(scope):
                if len(kept[v]) < self.sizes[v]:
                    table = table.take(kept[v], axis=axis)
            tables[scope] = table
        return FactorGraph(tuple(len(k) for k in kept), tables, self.constant)

    def components(self) -> Iterator[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
        """(variables, scopes) of the connected parts."""
        parent = list(range(len(self.sizes)))

        def find(v: int) -> int:
            while parent[v] != v:
                parent[v] = parent[parent[v]]
                v = parent[v]
            return v

        for scope in self.tables:
            for v in scope[1:]:
                parent[find(v)] = find(scope[0])
        variables: dict[int, list[int]] = {}
        for v in range(len(self.sizes)):
            variables.setdefault(find(v), []).append(v)
        scopes: dict[int, list[tuple[int, ...]]] = {r: [] for r in variables}
        for scope in self.tables:
            scopes[find(scope[0])].append(scope)
        for root, members in variables.items():
            yield tuple(members), tuple(scopes[root])


class Collecting:
    """Tables added up scope by scope; variables with a single choice are dropped from scopes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.tables: dict[tuple[int, ...], IntArray] = {}
        self.constant = 0

    def variable(self, size: int) -> int:
        """A further variable."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def add(self, scope: Sequence[int], table: IntArray, times: int = 1) -> None:
        """Adds `times` the table over `scope`."""
        real = [n for n, v in enumerate(scope) if self.sizes[v] > 1]
        table = table.reshape([table.shape[n] for n in real])
        order = sorted(range(len(real)), key=lambda n: scope[real[n]])
        key = tuple(scope[real[n]] for n in order)
        table = scaled(table.transpose(order), times)
        if not key:
            self.constant = min(self.constant + int(table), FORBIDDEN)
        elif key in self.tables:
            self.tables[key] = added(self.tables[key], table)
        elif table.any():
            self.tables[key] = table

    def graph(self) -> FactorGraph:
        return FactorGraph(tuple(self.sizes), self.tables, self.constant)


def added(a: IntArray, b: IntArray) -> IntArray:
    """The sum; what is forbidden stays so."""
    return np.minimum(a + b, FORBIDDEN)


def scaled(a: IntArray, times: int) -> IntArray:
    return a if times == 1 else np.where(a >= FORBIDDEN, FORBIDDEN, a * times)
