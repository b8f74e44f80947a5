"""The layouts among which a search over several cuts chooses, and its factor graph."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

import numpy as np

from tofu_tf import errors
from tofu_tf.coarsen.groups import Group, Operator
from tofu_tf.cost import candidates
from tofu_tf.cost.candidates import Axes, Way
from tofu_tf.cost.communication import FORBIDDEN, Choices, Matrices
from tofu_tf.plan.layouts import Layout
from tofu_tf.search.elimination import Solution
from tofu_tf.search.factors import Collecting, FactorGraph
from tofu_tf.search.problem import Outcome, Problem, extended, uncut_reasons, way_inside
from tofu_tf.tdl.regions import IntArray


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an exact search may take.

    `choices`: layouts of one tensor. `dense`: entries of an operator's table; a larger one becomes
    a variable of its own. `largest` and `total`: entries of the tables that elimination makes.
    `work`: entries times ways of the operators' tables, all together; `quick`: the same, where
    dropping choices first is worth while.
    """

    choices: int = 256
    dense: int = 1 << 18
    largest: int = 1 << 23
    total: int = 1 << 26
    work: int = 1 << 31
    quick: int = 1 << 27


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Choices of every group, and the matrices of every operator over them (None: no cost)."""

    problem: Problem
    choices: tuple[Choices, ...]
    matrices: tuple[Matrices | None, ...]

    @functools.cached_property
    def cuts(self) -> tuple[IntArray, ...]:
        """For every group [choices, cuts] the dimension that is divided, -1 where none is."""
        return tuple(
            np.array([[-1 if d is None else d for d in layout.cuts] for layout in c])
            for c in self.choices
        )


Kept = Sequence[IntArray] | None  # of every group's choices those that are left, None: all


def space_of(
    problem: Problem, start: Outcome, free: Collection[int], limits: Limits
) -> Space | None:
    """The layouts that differ from those of `start` along the cuts `free` only.

    None when some tensor has too many, or some operator too many ways. Where an operator has very
    many ways over all cuts, those alone count that differ from its way of `start` along `free` (and
    the last cut).
    """
    choices = []
    for group, layout in zip(problem.coarse.groups, start.layouts, strict=True):
        found = _continued(problem, group, layout, free, limits.choices)
        if found is None:
            return None
        choices.append(found)
    around = dict(enumerate(choices))
    matrices: list[Matrices | None] = []
    for operator, (way, home) in zip(problem.coarse.operators, start.ways, strict=True):
        if operator.internal:
            matrices.append(None)
            continue
        prefixes = None if home else _prefixes(problem, operator, way, free)
        if prefixes is not None and len(prefixes) > candidates.MOST_WAYS:
            return None
        matrices.append(problem.pricing.matrices(operator, problem.factors, around, prefixes))
    return Space(problem, tuple(choices), tuple(matrices))


def differing(
    space: Space, layouts: Sequence[Layout], free: Collection[int]
) -> tuple[IntArray, ...]:
    """For every group the choices that differ from `layouts` along the cuts `free` only."""
    fixed = [s for s in range(len(space.problem.factors)) if s not in free]
    found = []
    for cuts, layout in zip(space.cuts, layouts, strict=True):
        own = np.array([-1 if d is None else d for d in layout.cuts])
        found.append(np.flatnonzero(np.all(cuts[:, fixed] == own[fixed], axis=1)))
    return tuple(found)


def _continued(
    problem: Problem, group: Group, layout: Layout, free: Collection[int], most: int
) -> Choices | None:
    found: Choices = (Layout((), layout.home),)
    for s in range(len(problem.factors)):
        found = tuple(
            longer
            for prefix in found
            for longer in extended(problem, group, prefix)[0]
            if s in free or longer.cuts[s] == layout.cuts[s]
        )
        if len(found) > most:
            return None
    return found


def _prefixes(
    problem: Problem, operator: Operator, way: Way, free: Collection[int]
) -> tuple[Way, ...] | None:
    described, factors = operator.described, problem.factors
    if described is None or candidates.count_ways(described, len(factors)) <= candidates.MOST_WAYS:
        return None
    body, axes = way
    applied = described.variant(body)
    extents = applied.description.extents
    found: list[Axes] = [()]
    for s in range(len(factors) - 1):
        options = (*applied.axes, None) if s in free else (axes[s],)
        found = [(*before, a) for before in found for a in options]
    return tuple(
        (body, axes)
        for axes in found
        if all(
            extents[a] >= math.prod(f for f, b in zip(factors, axes, strict=False) if b == a)
            for a in set(axes)
            if a is not None
        )
    )


def _parts(space: Space, kept: Kept) -> list[tuple[Operator, Matrices]]:
    """Operators that cost something, over the choices that are left; equal matrices one object."""
    known: dict[tuple[object, ...], Matrices] = {}
    found = []
    for operator, matrices in zip(space.problem.coarse.operators, space.matrices, strict=True):
        if matrices is None:
            continue
        if kept is not None:
            left = [kept[g] for g in operator.groups]
            key = (id(matrices), *(k.tobytes() for k in left))
            if key not in known:
                known[key] = matrices.only(left).reduced()
            matrices = known[key]
        found.append((operator, matrices))
    return found


def demanded(space: Space, kept: Kept, dense: int) -> tuple[list[tuple[int, ...]], list[int], int]:
    """The scopes and sizes of `assemble`'s factor graph, and what making its tables takes."""
    sizes = [len(c) for c in (space.choices if kept is None else kept)]
    scopes: list[tuple[int, ...]] = []
    work: dict[tuple[object, ...], int] = {}
    for operator, matrices in zip(space.problem.coarse.operators, space.matrices, strict=True):
        if matrices is None:
            continue
        groups = tuple(g for g in operator.groups if sizes[g] > 1)
        entries = math.prod(sizes[g] for g in operator.groups)
        if entries <= dense:
            scopes.append(groups)
            left = () if kept is None else tuple(kept[g].tobytes() for g in operator.groups)
            work[(id(matrices), *left)] = entries * len(matrices.base)
        else:
            sizes.append(len(matrices.base))
            scopes += [(len(sizes) - 1, g) for g in groups]
    return scopes, sizes, sum(work.values())


def assemble(space: Space, kept: Kept, dense: int) -> FactorGraph:
    """The factor graph of the choices that are left; variable g is group g, then ways of operators.

    Raises:
      PlanError: operators that cannot run under any of the choices.
    """
    collecting = Collecting([len(c) for c in (space.choices if kept is None else kept)])
    tables: dict[int, IntArray] = {}
    impossible: list[str] = []
    for operator, matrices in _parts(space, kept):
        times = len(operator.nodes)
        if matrices.entries() <= dense:
            if id(matrices) not in tables:
                tables[id(matrices)] = matrices.table()
            table = tables[id(matrices)]
            collecting.add(operator.groups, table, times)
            if table.min() >= FORBIDDEN:
                impossible.append(operator.nodes[0])
            continue
        way = collecting.variable(len(matrices.base))
        collecting.add((way,), matrices.base, times)
        for g, part in zip(operator.groups, matrices.parts, strict=True):
            collecting.add((way, g), part, times)
    if impossible:
        raise errors.PlanError(
            ", ".join(impossible),
            "cannot write its variable as that is cut, in any way",
            "an operator that can be cut along some dimension of the variable that it updates",
        )
    return collecting.graph()


def outcome_of(space: Space, kept: Kept, solution: Solution) -> Outcome:
    """The layouts that a solution of `assemble` stands for, and the first cheapest ways."""
    problem = space.problem
    picked = solution.chosen[: len(space.choices)]
    at = picked if kept is None else [int(k[n]) for k, n in zip(kept, picked, strict=True)]
    layouts = tuple(c[n] for c, n in zip(space.choices, at, strict=True))
    ways: list[tuple[Way, bool]] = []
    for operator, matrices in zip(problem.coarse.operators, space.matrices, strict=True):
        if matrices is None:
            ways.append(way_inside(problem, operator, layouts))
        else:
            best, _ = matrices.cheapest([at[g] for g in operator.groups])
            ways.append((matrices.ways[best], matrices.home))
    reasons = uncut_reasons(problem, layouts)
    return Outcome(layouts, tuple(ways), solution.cost, reasons)
