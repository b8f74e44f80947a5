"""The factor graph in which a region that several operators need of a tensor is paid once.

An operator that reads what others read too has a variable for its way to be cut, next to those of
the tensors' groups. Each class of tensors with the same readers then has a table of what all their
needs together cost: over the ways themselves where there are two readers, and over the sets of
distinct needs where there are more (a variable for the set, which must hold each reader's need).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from tofu_tf.coarsen.folding import Folds, folds_of, unfolded
from tofu_tf.coarsen.groups import Operator
from tofu_tf.coarsen.sharing import Reading, readings_of, weights_of
from tofu_tf.cost.candidates import Axes, Stack, Way
from tofu_tf.cost.communication import FORBIDDEN, Choices, Matrices, fetched, held_stack
from tofu_tf.cost.sharing import Need, distinct, needs_of, shared, union
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.factors import Collecting, FactorGraph
from tofu_tf.search.problem import Problem, refuse_impossible
from tofu_tf.tdl.regions import IntArray

# Entries of an operator's table over its groups; one that has more gets a variable for its way.
MOST_DENSE = 1 << 14

# Entries of a table over the ways of several readers; and needs of which all sets are considered.
# Where there would be more, readers pay apart, and the costs are above what is counted.
MOST_SHARED = 1 << 20
MOST_NEEDS = 8

# Among more workers readers pay apart: pairs of workers are looked at.
MOST_WORKERS = 64

# Groups are compared up to LEVELS - 1 operators away, then ever less far.
LEVELS = 4

Reader = tuple[Matrices, int]


@dataclasses.dataclass(frozen=True)
class Ruling:
    """What a rule leaves of an operator's matrices: these ways, and with each group these entries
    (None: all).
    """

    ways: IntArray
    allowed: tuple[np.ndarray | None, ...]


# Takes an operator's matrices, of one node that shares nothing.
Rule = Callable[[Operator, Matrices], Ruling]
Prefixes = Callable[[Operator], tuple[Way, ...] | None]


@dataclasses.dataclass(frozen=True)
class Settled:
    """Layouts of all groups and ways of all operators over some cuts, and their bytes."""

    layouts: tuple[Layout, ...]
    ways: tuple[tuple[Way, bool], ...]  # ("", ()) for operators inside one group
    bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """A factor graph and what its variables stand for.

    `groups[g]`: the variable of group g. `ways[o]`: that of operator o, if it has one. `exact`:
    whether all that is shared is paid just once; otherwise costs are below the true ones.
    """

    graph: FactorGraph
    choices: tuple[Choices, ...]
    matrices: tuple[Matrices | None, ...]
    groups: tuple[int, ...]
    ways: dict[int, int]
    exact: bool

    def settled(self, chosen: Sequence[int], cost: int) -> Settled:
        """What a choice for every variable stands for."""
        layouts = tuple(c[chosen[v]] for v, c in zip(self.groups, self.choices, strict=True))
        ways: list[tuple[Way, bool]] = []
        for o, matrices in enumerate(self.matrices):
            if matrices is None:
                ways.append((("", ()), False))
                continue
            if o in self.ways:
                best = chosen[self.ways[o]]
            else:
                best, _ = matrices.cheapest([chosen[self.groups[g]] for g in self._around[o]])
            ways.append((matrices.ways[best], matrices.home))
        return Settled(layouts, tuple(ways), cost)

    _around: tuple[tuple[int, ...], ...] = ()


class Sharing:
    """Who shares what in a problem; equal tables are made once.

    `rule`: what else operators must keep to. `prefixes`: for an operator with very many ways those
    over the earlier cuts that alone count.
    """

    def __init__(
        self, problem: Problem, rule: Rule | None = None, prefixes: Prefixes | None = None
    ) -> None:
        self.problem, self._rule, self._prefixes = problem, rule, prefixes
        readings = readings_of(problem.coarse)
        self.several = tuple(r for r in readings if len(r.readers) > 1)
        self.weights = weights_of(problem.coarse, readings)
        self.slots: dict[int, tuple[int, ...]] = {}  # operator -> inputs that it shares
        for reading in self.several:
            for o, i in reading.readers:
                self.slots[o] = tuple(dict.fromkeys((*self.slots.get(o, ()), i)))
        self.level = 0  # of `folds`: what is known to be too entangled below it
        self._folds: dict[int, Folds] = {}
        self._alive: dict[int, object] = {}
        self._needs: dict[tuple[int, int], Need] = {}
        self._dense: dict[int, IntArray] = {}
        self._reduced: dict[int, Matrices] = {}
        self._tables: dict[tuple[object, ...], IntArray] = {}
        self._sets: dict[tuple[object, ...], tuple[IntArray, list[IntArray]] | None] = {}

    def folds(self, level: int) -> Folds:
        """Nothing alike at level 0, then more and more up to `LEVELS`."""
        if level not in self._folds:
            coarse = self.problem.coarse
            self._folds[level] = (
                folds_of(coarse, self.weights, LEVELS - level) if level else unfolded(coarse)
            )
        return self._folds[level]

    def tables(
        self,
        choices: Sequence[Choices],
        patterns: Sequence[Axes | None],
        cuts: int,
        folds: Folds,
        lower: bool = False,
    ) -> Tables:
        """The costs of all `choices` and of the ways that follow the `patterns`, over the first
        `cuts`.

        What too many share is paid by parts of the readers apart; with `lower` by their mean, so
        that no cost is too high.

        Raises:
          PlanError: operators that cannot run under any of the choices.
        """
        coarse = self.problem.coarse
        collecting = Collecting([len(c) for c in choices])
        around = dict(enumerate(choices))
        made: list[Matrices | None] = []
        ways: dict[int, int] = {}
        known: dict[tuple[int, int], int] = {}
        impossible: list[int] = []
        for o, operator in enumerate(coarse.operators):
            if operator.internal:
                made.append(None)
                continue
            matrices = self._matrices(o, cuts, around, patterns[o])
            made.append(matrices)
            scope = [folds.groups[g] for g in operator.groups]
            if o not in self.slots and matrices.entries() <= MOST_DENSE:
                table = self._table(matrices)
                collecting.add(*_once(scope, table))
                if table.min() >= FORBIDDEN:
                    impossible.append(o)
                continue
            key = (folds.operators[o], id(matrices))
            if key not in known:
                known[key] = collecting.variable(len(matrices.base))
            ways[o] = known[key]
            collecting.add((ways[o],), matrices.base)
            for g, part in zip(scope, matrices.parts, strict=True):
                collecting.add((ways[o], g), part)
            if (matrices.base + sum(p.min(axis=1) for p in matrices.parts)).min() >= FORBIDDEN:
                impossible.append(o)
        refuse_impossible(self.problem, impossible)
        sets: dict[tuple[int, ...], int] = {}
        exact = True
        for reading in self.several:
            exact &= self._share(collecting, reading, choices, cuts, folds, made, ways, sets, lower)
        return Tables(
            collecting.graph(),
            tuple(choices),
            tuple(made),
            folds.groups,
            ways,
            exact,
            tuple(operator.groups for operator in coarse.operators),
        )

    def _share(
        self,
        collecting: Collecting,
        reading: Reading,
        choices: Sequence[Choices],
        cuts: int,
        folds: Folds,
        made: Sequence[Matrices | None],
        ways: dict[int, int],
        sets: dict[tuple[int, ...], int],
        lower: bool,
    ) -> bool:
        """Adds what the readers of a class of tensors pay together; False when it is not exact."""
        held, at = choices[reading.at], folds.groups[reading.at]
        readers = [(m, i) for o, i in reading.readers if (m := made[o]) is not None]
        variables = [ways[o] for o, _ in reading.readers]
        if len(readers) > 2 and (found := self._of_sets(reading, held, cuts, readers)):
            costs, fits = found
            key = (at, id(costs), *variables)
            if key not in sets:
                sets[key] = collecting.variable(costs.shape[1])
                for variable, fit in zip(variables, fits, strict=True):
                    collecting.add((sets[key], variable), fit)
            collecting.add((at, sets[key]), costs, reading.count)
            return True
        together = math.prod(self.problem.factors[:cuts]) <= MOST_WORKERS
        blocks = _blocks([len(m.base) for m, _ in readers], len(held), together)
        for block in blocks:
            table = self._of_ways(reading, held, cuts, [readers[n] for n in block])
            if lower:
                table = table // len(blocks)
            scope = [at, *(variables[n] for n in block)]
            collecting.add(*_once(scope, table), reading.count)
        return len(blocks) == 1

    def _matrices(
        self, o: int, cuts: int, around: dict[int, Choices], pattern: Axes | None
    ) -> Matrices:
        pricing, factors = self.problem.pricing, self.problem.factors[:cuts]
        operator = self.problem.coarse.operators[o]
        before = self._prefixes(operator) if self._prefixes else None
        made = pricing.matrices(operator, factors, around, before, self.weights[o], pattern)
        if self._rule is not None:
            alone = pricing.matrices(operator, factors, around, before, None, pattern)
            made = self._ruled(made, self._rule(operator, alone))
        slots = self.slots.get(o)
        if slots is None and made.entries() <= MOST_DENSE:
            return made
        if id(made) not in self._reduced:
            apart = [self._need(made, i).index for i in slots or ()]
            self._reduced[id(made)] = made.reduced(np.stack(apart, axis=1) if apart else None)
        return self._reduced[id(made)]

    def _ruled(self, matrices: Matrices, ruling: Ruling) -> Matrices:
        parts = tuple(
            part if allowed is None else np.where(allowed, part, FORBIDDEN)
            for part, allowed in zip(matrices.parts, ruling.allowed, strict=True)
        )
        made = dataclasses.replace(matrices, parts=parts).of(ruling.ways)
        self._alive[id(made)] = made
        return made

    def _table(self, matrices: Matrices) -> IntArray:
        if id(matrices) not in self._dense:
            self._dense[id(matrices)] = matrices.table()
        return self._dense[id(matrices)]

    def _need(self, matrices: Matrices, slot: int) -> Need:
        key = (id(matrices), slot)
        if key not in self._needs:
            self._needs[key] = needs_of(matrices.need(slot))
        return self._needs[key]

    def _held(self, reading: Reading, held: Choices, cuts: int) -> tuple[Stack, int]:
        o, i = reading.readers[0]
        operator = self.problem.coarse.operators[o]
        stack = held_stack(held, operator.input_shapes[i], self.problem.factors[:cuts])
        self._alive[id(stack)] = stack  # keys are identities: keep their objects
        return stack, operator.input_itemsizes[i]

    def _of_ways(
        self, reading: Reading, held: Choices, cuts: int, readers: Sequence[Reader]
    ) -> IntArray:
        """[layouts, ways of each reader] bytes of one tensor."""
        needs = [self._need(m, i) for m, i in readers]
        stack, width = self._held(reading, held, cuts)
        key = (id(stack), width, *(id(n) for n in needs))
        if key not in self._tables:
            if len(needs) == 1:
                costs = fetched(stack, needs[0].stack).T
            else:
                costs = shared(stack, [n.stack for n in needs])
            self._tables[key] = costs * width
        table = self._tables[key]
        for n, need in enumerate(needs):
            table = table.take(need.index, axis=n + 1)
        return table

    def _of_sets(
        self, reading: Reading, held: Choices, cuts: int, readers: Sequence[Reader]
    ) -> tuple[IntArray, list[IntArray]] | None:
        """[layouts, sets of needs] bytes of one tensor, and for each reader [sets, ways] 0 where
        the set holds what the way needs; None where there are too many sets.
        """
        needs = [self._need(m, i) for m, i in readers]
        stack, width = self._held(reading, held, cuts)
        key = (id(stack), width, *(id(n) for n in needs))
        if key not in self._sets:
            self._sets[key] = _sets(stack, needs, width)
        return self._sets[key]


def _sets(held: Stack, needs: Sequence[Need], width: int) -> tuple[IntArray, list[IntArray]] | None:
    if held.lo.shape[1] > MOST_WORKERS:
        return None
    every, numbers = distinct([n.stack for n in needs])
    paid = np.flatnonzero(fetched(held, every).any(axis=1))  # the others cost nothing anywhere
    if len(paid) > MOST_NEEDS:
        return None
    bit = np.full(len(every.lo), -1)
    bit[paid] = np.arange(len(paid))
    costs = union(held, every.only(paid)) * width
    sets = np.arange(costs.shape[1])[:, None]
    fits = []
    for need, number in zip(needs, numbers, strict=True):
        asked = bit[number[need.index]][None]
        holds = (asked < 0) | (sets >> np.maximum(asked, 0) & 1 > 0)
        fits.append(np.where(holds, 0, FORBIDDEN))
    return costs, fits


def _once(scope: Sequence[int], table: IntArray) -> tuple[list[int], IntArray]:
    """The table with one axis for a variable that occurs several times."""
    left: list[int] = []
    for v in scope:
        if v in left:
            first = left.index(v)
            table = np.moveaxis(np.diagonal(table, axis1=first, axis2=len(left)), -1, first)
        else:
            left.append(v)
    return left, table


def _blocks(ways: Sequence[int], layouts: int, together: bool) -> list[list[int]]:
    """The positions of readers, in parts whose table is not too large."""
    blocks: list[list[int]] = []
    entries = 0
    for n, count in enumerate(ways):
        if blocks and together and entries * count <= MOST_SHARED:
            blocks[-1].append(n)
            entries *= count
        else:
            blocks.append([n])
            entries = layouts * count
    return blocks
