"""Every way to cut one described operator over the cuts so far, with all its regions, as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tofu_tf.ops.applicable import Applied, Described
from tofu_tf.plan import transfers
from tofu_tf.tdl import strategies
from tofu_tf.tdl.descriptions import Description, Write
from tofu_tf.tdl.intervals import Boxes, access_regions
from tofu_tf.tdl.regions import IntArray, Regions
from tofu_tf.tdl.splitting import digits

# Above so many ways (axes to the power of cuts) the axes of the earlier cuts stay as they were
# found.
MOST_WAYS = 1024

Axes = tuple[str | None, ...]
FREE = "*"  # in a pattern of axes: any
Way = tuple[str, Axes]  # body, one axis per cut


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Regions of one tensor for several ways (or layouts): `lo`, `hi` [ways, workers, rank]."""

    lo: IntArray
    hi: IntArray
    present: np.ndarray  # [ways, workers]

    @staticmethod
    def of(regions: Regions, ways: int) -> Stack:
        """Regions whose rows run over (way, worker)."""
        shape = (ways, regions.workers // ways, regions.rank)
        return Stack(
            regions.lo.reshape(shape), regions.hi.reshape(shape), regions.present.reshape(shape[:2])
        )

    def sizes(self) -> IntArray:
        """[ways, workers] elements."""
        volume = np.prod(np.maximum(self.hi - self.lo, 0), axis=2, dtype=np.int64)
        return np.where(self.present, volume, 0)

    def only(self, ways: IntArray) -> Stack:
        """Those of some ways."""
        return Stack(self.lo[ways], self.hi[ways], self.present[ways])

    def at(self, way: int) -> Regions:
        return Regions(self.lo[way], self.hi[way], self.present[way])


@dataclasses.dataclass(frozen=True, eq=False)
class Written(Stack):
    """Where an output's elements are made; `kinds` [ways]: how many partial results there are."""

    kinds: IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """All ways to cut an operator. `internal` [ways]: elements that its body's reductions move."""

    ways: tuple[Way, ...]
    home: bool
    reads: tuple[Stack, ...]
    writes: tuple[Written, ...]
    internal: IntArray


def candidates_of(
    described: Described,
    factors: tuple[int, ...],
    whole_at: Sequence[bool],
    prefixes: Sequence[Way] | None = None,
    once: bool = False,
    pattern: Axes | None = None,
) -> Candidates:
    """The ways to cut an operator over `factors`, in order of preference.

    A way has an axis for every cut along which some axis still can be cut in so many parts that
    nobody is left without work; `whole_at[s]` says that no output is divided by cut s, so that
    doing all the work in every group is allowed there too. Bodies come in the order of the entry,
    reductions after other axes.

    Args:
      described: the operator.
      factors: the number of groups of each cut.
      whole_at: per cut, whether an axis may be left out though one could be cut.
      prefixes: ways over ``factors[:-1]`` that alone are continued; None: all.
      once: whether no part of the work may be done twice; then worker 0 does it when it cannot be
        cut.
      pattern: the axis of every cut that is settled, FREE for the others; of any body that has all
        of them.
    """
    found: list[tuple[Applied, tuple[Axes, ...]]] = []
    for applied in described.applied:
        starts = None
        if prefixes is not None:
            starts = tuple(axes for body, axes in prefixes if body == applied.variant.name)
        if pattern is not None and not set(pattern) - {None, FREE} <= set(applied.axes):
            continue
        found.append((applied, _enumerate(applied, factors, whole_at, starts, pattern)))

    def left_out(axes: Axes) -> int:
        return sum(a is None and not w for a, w in zip(axes, whole_at, strict=True))

    least = min(left_out(axes) for _, ways in found for axes in ways)
    found = [(v, tuple(axes for axes in ways if left_out(axes) == least)) for v, ways in found]
    if once:
        found = [(v, tuple(axes for axes in ways if None not in axes)) for v, ways in found]
        if not any(ways for _, ways in found):
            return whole_at_home(described, factors)
    made = [_evaluate(applied, ways, factors) for applied, ways in found if ways]
    made = [m for m in made if m.ways]
    return made[0] if len(made) == 1 else _join(made)


def whole(described: Described, factors: tuple[int, ...]) -> Candidates:
    """The one way in which every worker does everything."""
    return _evaluate(described.applied[0], ((None,) * len(factors),), factors)


def whole_at_home(described: Described, factors: tuple[int, ...]) -> Candidates:
    """The one way in which worker 0 does everything."""
    made = whole(described, factors)
    k = int(np.prod(factors, dtype=np.int64))
    alone = (np.arange(k) == 0).reshape(1, k)
    return dataclasses.replace(
        made,
        home=True,
        reads=tuple(dataclasses.replace(r, present=r.present & alone) for r in made.reads),
        writes=tuple(
            dataclasses.replace(w, present=w.present & alone, kinds=np.minimum(w.kinds, 1))
            for w in made.writes
        ),
        internal=np.zeros(1, np.int64),
    )


def count_ways(described: Described, cuts: int) -> int:
    """An upper bound of the number of ways over so many cuts."""
    return sum((len(a.axes) + 1) ** cuts for a in described.applied)


def _enumerate(
    applied: Applied,
    factors: tuple[int, ...],
    whole_at: Sequence[bool],
    starts: Sequence[Axes] | None,
    pattern: Axes | None = None,
) -> tuple[Axes, ...]:
    extents = applied.description.extents
    reduced = frozenset().union(*(w.over for w in applied.description.writes))
    order = sorted(applied.axes, key=lambda a: a in reduced)

    def parts(axes: Axes, axis: str) -> int:
        n = 1
        for f, a in zip(factors, axes, strict=False):
            n *= f if a == axis else 1
        return n

    first = 0 if starts is None else len(factors) - 1
    ways: list[Axes] = [()] if starts is None else list(starts)
    for s in range(first, len(factors)):
        longer: list[Axes] = []
        for axes in ways:
            if pattern is not None and pattern[s] != FREE:
                longer.append((*axes, pattern[s]))
                continue
            possible = [a for a in order if extents[a] >= parts(axes, a) * factors[s]]
            longer += [(*axes, a) for a in possible]
            if whole_at[s] or not possible:
                longer.append((*axes, None))
        ways = longer
    if pattern is not None:
        ways = [w for w in ways if all(extents[a] >= parts(w, a) for a in w if a is not None)]
    legal = _legal(applied.description, ways, factors)
    kept = tuple(axes for axes, ok in zip(ways, legal, strict=True) if ok)
    # a description whose every cut would have holes is still run whole
    return kept or ((None,) * len(factors),)


def _boxes(description: Description, ways: Sequence[Axes], factors: tuple[int, ...]) -> Boxes:
    """Boxes whose rows run over (way, worker); see `strategies.boxes_of`."""
    digit = digits(factors)
    k, lo, hi = len(digit), {}, {}
    present = np.ones((len(ways), k), np.bool_)
    for axis, extent in description.extents.items():
        uses = np.array([[a == axis for a in axes] for axes in ways], np.bool_).reshape(
            len(ways), len(factors)
        )
        index = np.zeros((len(ways), k), np.int64)
        parts = np.ones((len(ways), 1), np.int64)
        for s, f in enumerate(factors):
            used = uses[:, s : s + 1]
            if used.any():
                index = np.where(used, index * f + digit[:, s], index)
                parts = np.where(used, parts * f, parts)
        lo[axis], hi[axis] = extent * index // parts, extent * (index + 1) // parts
        if extent:
            present &= hi[axis] > lo[axis]
        lo[axis], hi[axis] = lo[axis].ravel(), hi[axis].ravel()
    return Boxes(lo, hi, present.ravel())


def _legal(description: Description, ways: Sequence[Axes], factors: tuple[int, ...]) -> list[bool]:
    """`strategies.is_legal` of every way."""
    forms = [
        form
        for dims in (
            *(w.dims for w in description.writes),
            *(d for r in description.reads for d in r if description.exact),
        )
        for form in dims
        if form is not None and len(form.terms) > 1
    ]
    if not forms or not ways:
        return [True] * len(ways)
    return [strategies.is_legal(description, axes, factors) for axes in ways]


def _evaluate(applied: Applied, ways: Sequence[Axes], factors: tuple[int, ...]) -> Candidates:
    description = applied.description
    boxes = _boxes(description, ways, factors)
    n = len(ways)
    reads = tuple(
        Stack.of(access_regions(a, s, boxes), n)
        for a, s in zip(description.reads, description.shapes, strict=True)
    )
    writes = []
    for w, s in zip(description.writes, description.out_shapes, strict=True):
        stack = Stack.of(access_regions((w.dims,), s, boxes), n)
        writes.append(
            Written(stack.lo, stack.hi, stack.present, _kinds(w.over, ways, stack, factors))
        )
    internal = np.zeros(n, np.int64)
    for write in description.internals:
        internal += _reduced_inside(description, write, ways, factors)
    return Candidates(
        tuple((applied.variant.name, axes) for axes in ways), False, reads, tuple(writes), internal
    )


def _reduced_inside(
    description: Description, write: Write, ways: Sequence[Axes], factors: tuple[int, ...]
) -> IntArray:
    """[ways] elements moved to give a body's own reduction back to all who made a part of it."""
    # all axes that are reduced are alike, so few ways differ
    known: dict[tuple[str | None, ...], int] = {}
    found = np.zeros(len(ways), np.int64)
    for n, axes in enumerate(ways):
        alike = tuple("" if a in write.over else a for a in axes)
        if alike not in known:
            alone = dataclasses.replace(description, reads=(), shapes=(), writes=(), out_shapes=())
            work = strategies.work_of(dataclasses.replace(alone, internals=(write,)), axes, factors)
            region = work.internal_writes[0]
            known[alike] = transfers.route_elements(region, work.internal_partials[0], region)
        found[n] = known[alike]
    return found


def _kinds(
    over: frozenset[str], ways: Sequence[Axes], stack: Stack, factors: tuple[int, ...]
) -> IntArray:
    """[ways] how many distinct partial results the workers that write anything make."""
    digit = digits(factors)
    k = len(digit)
    uses = np.array([[a in over for a in axes] for axes in ways], np.bool_).reshape(len(ways), -1)
    partial = np.zeros((len(ways), k), np.int64)
    for s, f in enumerate(factors):
        partial = np.where(uses[:, s : s + 1], partial * f + digit[:, s], partial)
    seen = np.zeros((len(ways), k), np.bool_)
    rows = np.broadcast_to(np.arange(len(ways))[:, None], partial.shape)
    seen[rows[stack.present], partial[stack.present]] = True
    return seen.sum(axis=1).astype(np.int64)


def _join(made: Sequence[Candidates]) -> Candidates:
    def join(stacks: Sequence[Stack]) -> tuple[IntArray, IntArray, np.ndarray]:
        return (
            np.concatenate([s.lo for s in stacks]),
            np.concatenate([s.hi for s in stacks]),
            np.concatenate([s.present for s in stacks]),
        )

    return Candidates(
        tuple(way for m in made for way in m.ways),
        False,
        tuple(Stack(*join(s)) for s in zip(*(m.reads for m in made), strict=True)),
        tuple(
            Written(*join(s), np.concatenate([w.kinds for w in s]))
            for s in zip(*(m.writes for m in made), strict=True)
        ),
        np.concatenate([m.internal for m in made]),
    )
