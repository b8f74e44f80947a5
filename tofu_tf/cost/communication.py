"""Bytes between workers of one operator: a table over the layouts of the tensors around it.

For a way A to cut the operator and layouts L of its tensors,

    bytes(A, L) = sum over inputs  of fetched(L_i, reads_i(A)) * itemsize_i
                + sum over outputs of routed(writes_o(A), L_o) * itemsize_o  + internal(A),

so the table is the minimum over A of a sum of matrices, one per tensor (partition-n-reduce,
section 4 of the paper, with exact regions of all cuts at once).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tofu_tf.coarsen.groups import HOME, UNUSED, Operator, Place
from tofu_tf.cost import candidates
from tofu_tf.cost.candidates import Axes, Candidates, Stack, Way, Written
from tofu_tf.plan import transfers
from tofu_tf.plan.layouts import Layout, layout_regions
from tofu_tf.tdl.regions import IntArray, Regions

# The cost of what must not be; sums of many stay far inside 64 bits.
FORBIDDEN = 1 << 56

Choices = tuple[Layout, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Matrices:
    """An operator's cost: `base` [ways] plus `parts[n]` [ways, choices] of each group around it.

    `sources`: the candidates that the ways are of, and their rows there.
    """

    ways: tuple[Way, ...]
    home: bool
    base: IntArray
    parts: tuple[IntArray, ...]
    sources: tuple[tuple[Candidates, IntArray], ...]

    def need(self, slot: int) -> Stack:
        """What every way needs of an input."""
        stacks = [made.reads[slot].only(rows) for made, rows in self.sources]
        return Stack(
            np.concatenate([s.lo for s in stacks]),
            np.concatenate([s.hi for s in stacks]),
            np.concatenate([s.present for s in stacks]),
        )

    def entries(self) -> int:
        """Entries of the whole table."""
        n = 1
        for part in self.parts:
            n *= part.shape[1]
        return n

    def table(self) -> IntArray:
        """[choices of group 0, choices of group 1, ...] the cheapest way's bytes."""
        shape = tuple(part.shape[1] for part in self.parts)
        if not shape:
            return np.asarray(np.minimum(self.base.min(), FORBIDDEN))
        # a row of the first group at a time: [ways, entries] of all would not stay in the cache
        rest = self.base[:, None]
        for part in self.parts[1:]:
            rest = (rest[:, :, None] + part[:, None, :]).reshape(len(rest), -1)
        first = self.parts[0]
        made = np.empty((shape[0], rest.shape[1]), np.int64)
        for c in range(shape[0]):
            np.min(rest + first[:, c, None], axis=0, out=made[c])
        return np.minimum(made, FORBIDDEN).reshape(shape)

    def only(self, kept: Sequence[IntArray]) -> Matrices:
        """With these choices of every group alone."""
        parts = tuple(p[:, k] for p, k in zip(self.parts, kept, strict=True))
        return Matrices(self.ways, self.home, self.base, parts, self.sources)

    def of(self, keep: IntArray) -> Matrices:
        """With these ways alone, in this (ascending) order."""
        sources, start = [], 0
        for made, rows in self.sources:
            own = keep[(keep >= start) & (keep < start + len(rows))] - start
            sources.append((made, rows[own]))
            start += len(rows)
        return Matrices(
            tuple(self.ways[i] for i in keep),
            self.home,
            self.base[keep],
            tuple(p[keep] for p in self.parts),
            tuple(sources),
        )

    def reduced(self, apart: IntArray | None = None) -> Matrices:
        """Without the ways that in no entry are better than another one.

        `apart` [ways, ...]: what must be equal for one way to stand for another.
        """
        rows = np.concatenate([self.base[:, None], *self.parts], axis=1)
        if apart is None:
            apart = np.zeros((len(rows), 0), np.int64)
        found: dict[bytes, int] = {}
        for n, row in enumerate(np.concatenate([rows, apart], axis=1)):
            found.setdefault(row.tobytes(), n)
        keep = np.array(list(found.values()), np.int64)
        if len(keep) <= 512:
            r, a = rows[keep], apart[keep]
            below = np.all(r[None, :, :] <= r[:, None, :], axis=2)  # [a, b]: b is nowhere above a
            below &= np.all(a[None, :, :] == a[:, None, :], axis=2)
            np.fill_diagonal(below, False)
            keep = keep[~below.any(axis=1)]
        return self.of(keep)

    def cheapest(self, chosen: Sequence[int]) -> tuple[int, int]:
        """Index of the first cheapest way, and its bytes, for one choice of every group."""
        total = self.base.copy()
        for part, c in zip(self.parts, chosen, strict=True):
            total = total + part[:, c]
        way = int(np.argmin(total))
        return way, int(total[way])


class Pricing:
    """Costs of operators, equal questions answered once."""

    def __init__(self) -> None:
        self._candidates: dict[tuple[object, ...], Candidates] = {}
        self._columns: dict[tuple[object, ...], IntArray] = {}
        self._matrices: dict[tuple[object, ...], Matrices] = {}

    def matrices(
        self,
        operator: Operator,
        factors: tuple[int, ...],
        choices: Mapping[int, Choices],
        prefixes: tuple[Way, ...] | None = None,
        weights: tuple[int, ...] | None = None,
        pattern: Axes | None = None,
    ) -> Matrices:
        """The operator's cost over the `choices` of the groups around it, as `operator.groups`.

        Args:
          prefixes: ways over the earlier cuts that alone are continued, where there are very many
            ways.
          weights: how many tensors are read at each input; outputs and all else then count once for
            each of the operator's nodes. None: one node's cost.
          pattern: an axis for every cut, or candidates.FREE where any is allowed.
        """
        around = operator.groups
        alike = _alike(operator, choices)
        if len(alike) > 1:
            return _merged(
                [
                    (
                        kept,
                        self.matrices(
                            operator,
                            factors,
                            _kept(around, choices, kept),
                            prefixes,
                            weights,
                            pattern,
                        ),
                    )
                    for kept in alike
                ],
                tuple(len(choices[g]) for g in around),
            )
        local = {g: n for n, g in enumerate(around)}
        slots = tuple(local.get(g, g) for g in (*operator.inputs, *operator.outputs))
        ways = self._ways(operator, factors, choices, prefixes, pattern)
        layouts = tuple(choices[g] for g in around)
        times = 1 if weights is None else len(operator.nodes)
        weights = weights or (1,) * len(operator.inputs)
        kind = (operator.versions, operator.internal, weights, times)
        key = (id(ways), slots, layouts, kind, factors)
        if key not in self._matrices:
            self._matrices[key] = self._price(
                operator, ways, factors, layouts, slots, (*weights, *[times] * len(slots))
            )
        return self._matrices[key]

    def can_write(
        self, operator: Operator, output: int, layout: Layout, factors: tuple[int, ...]
    ) -> bool:
        """Whether some way to cut the operator writes the version at `output` where it lies."""
        if operator.described is None or operator.place is Place.HOME:
            return layout.home
        shape = operator.output_shapes[output]
        around = dict.fromkeys(operator.groups, (layout,))
        ways = self._ways(operator, factors, around, None)
        written = in_place(ways.writes[output], held_stack((layout,), shape, factors))
        return bool(written.min() < FORBIDDEN)

    def _ways(
        self,
        operator: Operator,
        factors: tuple[int, ...],
        choices: Mapping[int, Choices],
        prefixes: tuple[Way, ...] | None,
        pattern: Axes | None = None,
    ) -> Candidates:
        described = operator.described
        at_home = operator.place is Place.HOME or any(
            g >= 0 and choices[g][0].home for g in operator.outputs[_own(operator) :]
        )
        outputs = [choices[g] for g in operator.outputs if g >= 0]
        whole_at = tuple(
            all(layout.cuts[s] is None for c in outputs for layout in c)
            for s in range(len(factors))
        )
        many = described is not None and (
            candidates.count_ways(described, len(factors)) > candidates.MOST_WAYS
        )
        kept = prefixes if many else None
        key: tuple[object, ...]
        if described is None:
            key = ("whole", operator.input_shapes, operator.output_shapes, factors)
        elif at_home or operator.place is Place.COPIED:
            key = (described.signature, factors, at_home)
        else:
            key = (described.signature, factors, whole_at, kept, operator.once, pattern)
        if key in self._candidates:
            pass
        elif described is None:
            self._candidates[key] = _whole_at_home(operator, factors)
        elif at_home:
            self._candidates[key] = candidates.whole_at_home(described, factors)
        elif operator.place is Place.COPIED:
            self._candidates[key] = candidates.whole(described, factors)
        else:
            self._candidates[key] = candidates.candidates_of(
                described, factors, whole_at, kept, operator.once, pattern
            )
        return self._candidates[key]

    def _price(
        self,
        operator: Operator,
        ways: Candidates,
        factors: tuple[int, ...],
        layouts: tuple[Choices, ...],
        slots: tuple[int, ...],
        weights: tuple[int, ...],
    ) -> Matrices:
        base = ways.internal * (max(4, operator.input_itemsizes[0]) if ways.internal.any() else 0)
        base = base * weights[-1]
        parts = [np.zeros((len(ways.ways), len(c)), np.int64) for c in layouts]
        n_in, own = len(operator.inputs), _own(operator)
        for slot, at in enumerate(slots):
            i, o = slot, slot - n_in
            if at == UNUSED or (o < 0 and not ways.reads[i].present.any()):
                continue
            choice = layouts[at] if at >= 0 else (Layout((None,) * len(factors), home=at == HOME),)
            if o < 0:
                shape, width = operator.input_shapes[i], operator.input_itemsizes[i]
                kind = "read"
            else:
                shape, width = operator.output_shapes[o], operator.output_itemsizes[o]
                kind = "version" if o >= own else "write"
            key = (id(ways), slot, choice, kind)
            if key not in self._columns:
                held = held_stack(choice, shape, factors)
                if kind == "read":
                    self._columns[key] = fetched(held, ways.reads[i]) * width
                elif kind == "write":
                    self._columns[key] = (
                        routed(ways.writes[o], held, middle_stack(choice, shape, factors)) * width
                    )
                else:
                    self._columns[key] = in_place(ways.writes[o], held)
            column = self._columns[key]
            if kind != "version":
                column = column * weights[slot]
            if at >= 0:
                parts[at] = parts[at] + column
            else:
                base = base + column[:, 0]
        every = np.arange(len(ways.ways))
        return Matrices(ways.ways, ways.home, base, tuple(parts), ((ways, every),))


def _own(operator: Operator) -> int:
    return len(operator.outputs) - operator.versions


Kept = tuple[tuple[int, ...], ...]  # for each group around an operator, some of its choices


def _alike(operator: Operator, choices: Mapping[int, Choices]) -> list[Kept]:
    """The choices of the groups around, in parts in which each output is copied along the same
    cuts: they say along which cuts all the work may be done in every group.
    """
    written = {g for g in operator.outputs if g >= 0} if operator.place is Place.CUT else set()
    sorts: list[list[tuple[int, ...]]] = []
    for g in operator.groups:
        if g not in written:
            sorts.append([tuple(range(len(choices[g])))])
            continue
        by_copies: dict[tuple[bool, ...], list[int]] = {}
        for n, layout in enumerate(choices[g]):
            by_copies.setdefault(tuple(c is None for c in layout.cuts), []).append(n)
        sorts.append([tuple(part) for part in by_copies.values()])
    return list(itertools.product(*sorts))


def _kept(
    around: Sequence[int], choices: Mapping[int, Choices], kept: Kept
) -> Mapping[int, Choices]:
    return {g: tuple(choices[g][n] for n in part) for g, part in zip(around, kept, strict=True)}


def _merged(made: Sequence[tuple[Kept, Matrices]], counts: Sequence[int]) -> Matrices:
    """One table of parts: a way of one part is forbidden in the others."""
    parts: list[list[IntArray]] = [[] for _ in counts]
    for kept, matrices in made:
        for n, count in enumerate(counts):
            whole = np.full((len(matrices.base), count), FORBIDDEN)
            whole[:, kept[n]] = matrices.parts[n]
            parts[n].append(whole)
    return Matrices(
        tuple(way for _, m in made for way in m.ways),
        made[0][1].home,
        np.concatenate([m.base for _, m in made]),
        tuple(np.concatenate(p) for p in parts),
        tuple(source for _, m in made for source in m.sources),
    )


def _whole_at_home(operator: Operator, factors: tuple[int, ...]) -> Candidates:
    """The one way of an operator without description: worker 0 reads and makes everything."""
    k = int(np.prod(factors, dtype=np.int64))
    alone = np.arange(k) == 0

    def stack(shape: tuple[int, ...]) -> Stack:
        return Stack.of(Regions.everywhere(shape, k).only(alone), 1)

    written = [stack(s) for s in operator.output_shapes]
    return Candidates(
        (("", (None,) * len(factors)),),
        True,
        tuple(stack(s) for s in operator.input_shapes),
        tuple(Written(w.lo, w.hi, w.present, np.ones(1, np.int64)) for w in written),
        np.zeros(1, np.int64),
    )


@functools.lru_cache(maxsize=65536)
def held_stack(choice: Choices, shape: tuple[int, ...], factors: tuple[int, ...]) -> Stack:
    """The regions owned under each layout of `choice`."""
    return _stacked([layout_regions(layout, shape, factors) for layout in choice])


@functools.lru_cache(maxsize=65536)
def middle_stack(choice: Choices, shape: tuple[int, ...], factors: tuple[int, ...]) -> Stack:
    """Where partial results are combined under each layout of `choice` (see `transfers.route`)."""
    k = int(np.prod(factors, dtype=np.int64))
    written = Regions(np.zeros((k, 0), np.int64), np.zeros((k, 0), np.int64), np.ones(k, np.bool_))
    return _stacked(
        [
            transfers.route(written, np.arange(k), layout_regions(layout, shape, factors)).middle
            for layout in choice
        ]
    )


def _stacked(regions: Sequence[Regions]) -> Stack:
    return Stack(
        np.stack([r.lo for r in regions]),
        np.stack([r.hi for r in regions]),
        np.stack([r.present for r in regions]),
    )


def common(a: Stack, b: Stack) -> IntArray:
    """[ways of a, ways of b] elements that the workers have in both, all workers together."""
    shape = (len(a.lo), len(b.lo), a.lo.shape[1])
    volume = np.ones(shape, np.int64)
    for d in range(a.lo.shape[2]):
        extent = np.minimum(a.hi[:, None, :, d], b.hi[None, :, :, d])
        extent = extent - np.maximum(a.lo[:, None, :, d], b.lo[None, :, :, d])
        volume *= np.maximum(extent, 0)
    volume *= a.present[:, None, :] & b.present[None, :, :]
    return volume.sum(axis=2)


def fetched(held: Stack, need: Stack) -> IntArray:
    """[ways, layouts] `transfers.fetched_elements` of what each way needs under each layout."""
    return need.sizes().sum(axis=1)[:, None] - common(need, held)


def routed(written: Written, held: Stack, middle: Stack) -> IntArray:
    """[ways, layouts] `transfers.route_elements` of what each way writes under each layout."""
    straight = held.sizes().sum(axis=1)[None, :] - common(written, held)
    if not np.any(written.kinds > 1):
        return straight
    spread = middle.sizes().sum(axis=1)
    onward = held.sizes().sum(axis=1) - np.einsum("ll->l", common(middle, held))
    combined = written.kinds[:, None] * spread[None, :] - common(written, middle) + onward[None, :]
    return np.where(written.kinds[:, None] > 1, combined, straight)


def in_place(written: Written, held: Stack) -> IntArray:
    """[ways, layouts] 0 where a way writes just what each worker owns, whole, else FORBIDDEN."""
    same = np.all(written.present[:, None, :] == held.present[None, :, :], axis=2)
    inside = np.all(written.lo[:, None] == held.lo[None], axis=3) & np.all(
        written.hi[:, None] == held.hi[None], axis=3
    )
    same &= np.all(inside | ~held.present[None], axis=2) & (written.kinds <= 1)[:, None]
    return np.where(same, 0, FORBIDDEN).astype(np.int64)
