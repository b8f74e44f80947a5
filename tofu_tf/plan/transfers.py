"""Who fetches which region of a tensor from whom: the one place where "which bytes move" is
derived.

Costs count these transfers and the rewriter prints them as nodes.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tofu_tf import errors
from tofu_tf.tdl.regions import IntArray, Region, Regions
from tofu_tf.tdl.splitting import digits

# Below this many elements a reduction for many workers is made by one of them and sent on: as many
# bytes as making a part of it on each, and far fewer nodes.
ROOT_ELEMENTS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A region (in the whole tensor's coordinates) that is taken from worker `source`."""

    source: int
    region: Region


Parts = tuple[tuple[Part, ...], ...]  # per worker, () where it needs nothing


def overlap(a: Regions, b: Regions) -> IntArray:
    """[workers] number of elements that each worker has in both."""
    extent = np.minimum(a.hi, b.hi) - np.maximum(a.lo, b.lo)
    volume = np.prod(np.maximum(extent, 0), axis=1, dtype=np.int64)
    return np.where(a.present & b.present, volume, 0)


def fetched_elements(held: Regions, need: Regions) -> int:
    """Elements that cross between workers so that each has its `need` of a tensor that lies as
    `held`.
    """
    return int(np.sum(need.sizes() - overlap(held, need)))


def fetch_parts(held: Regions, need: Regions, factors: tuple[int, ...]) -> Parts:
    """For each worker disjoint parts that make up its `need`, its own first choice for every part.

    A part held by several others comes from the one in the same groups of the outermost cuts.
    """
    return _fetch_parts(_Key(held), _Key(need), factors)


class _Key:
    """Regions hashed by value, so that equal questions are answered once."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.key = regions.key
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key


@functools.lru_cache(maxsize=65536)
def _fetch_parts(held_key: _Key, need_key: _Key, factors: tuple[int, ...]) -> Parts:
    held, need = held_key.regions.tuple(), need_key.regions.tuple()
    holders: dict[Region, list[int]] = {}
    for w, region in enumerate(held):
        if region is not None:
            holders.setdefault(region, []).append(w)
    digit = digits(factors)
    cells = sorted(holders)
    held_by = [holders[cell] for cell in cells]
    # [workers, cells, rank]: what every worker wants of every cell
    bounds = np.array([cell.bounds for cell in cells], np.int64)
    bounds = bounds.reshape(len(cells), need_key.regions.rank, 2)
    lo = np.maximum(need_key.regions.lo[:, None], bounds[None, :, :, 0])
    hi = np.minimum(need_key.regions.hi[:, None], bounds[None, :, :, 1])
    wants = np.all(lo < hi, axis=2)
    out: list[tuple[Part, ...]] = []
    for w, wanted in enumerate(need):
        own = held[w]
        if wanted is None:
            out.append(())
        elif own is not None and own.contains(wanted):
            out.append((Part(w, wanted),))
        else:
            parts = []
            for c in np.flatnonzero(wants[w]).tolist():
                if own == cells[c]:
                    source = w
                elif len(held_by[c]) == 1:
                    source = held_by[c][0]
                else:
                    source = max(held_by[c], key=lambda h: (tuple(digit[h] == digit[w]), -h))
                common = zip(lo[w, c].tolist(), hi[w, c].tolist(), strict=True)
                parts.append(Part(source, Region(tuple(common))))
            covered = sum(p.region.size for p in parts)
            if covered != wanted.size:
                raise errors.RewriteError(
                    "transfer",
                    f"{wanted} is made of {covered} elements of "
                    f"{', '.join(map(str, sorted(holders)))}",
                    f"{wanted.size} elements, each held once",
                )
            out.append(tuple(parts))
    return tuple(out)


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """How an op's outputs become the tensor as it is owned.

    `partials`: for each distinct partial result, where its regions are; one when nothing is
    reduced.
    `middle`: where the partials are combined. The result then goes from `middle` to `owned`.
    """

    partials: tuple[Regions, ...]
    middle: Regions
    owned: Regions

    def elements(self) -> int:
        """Elements that cross between workers."""
        return sum(fetched_elements(p, self.middle) for p in self.partials) + (
            0 if self.middle is self.owned else fetched_elements(self.middle, self.owned)
        )


def route(written: Regions, partial: IntArray, owned: Regions) -> Route:
    """The route of an output: `partial[w]` says which partial result worker w wrote.

    Partial results are reduced where they are owned; owned copies are first made in distinct parts
    (reduce-scatter, then gather) unless there are two only, or they are small.
    """
    kinds = np.unique(partial[written.present])
    if len(kinds) <= 1:
        return Route((written,), owned, owned)
    partials = tuple(written.only(partial == p) for p in kinds)
    return Route(partials, _middle(owned), owned)


def _middle(owned: Regions) -> Regions:
    """Regions that cover what is owned with each copy's group sharing the work."""
    groups: dict[Region, list[int]] = {}
    for w, region in enumerate(owned.tuple()):
        if region is not None:
            groups.setdefault(region, []).append(w)
    if all(len(members) <= 2 for members in groups.values()):
        return owned
    made: list[Region | None] = [None] * owned.workers
    for region, members in groups.items():
        g = len(members)
        sizes = region.shape
        axis = max(range(len(sizes)), key=lambda d: (sizes[d] % g == 0, sizes[d]), default=-1)
        if region.size < ROOT_ELEMENTS or axis < 0 or sizes[axis] < g:
            made[members[0]] = region
            continue
        lo, n = region.bounds[axis][0], sizes[axis]
        for i, w in enumerate(members):
            bounds = list(region.bounds)
            bounds[axis] = (lo + n * i // g, lo + n * (i + 1) // g)
            made[w] = Region(tuple(bounds))
    return Regions.of(made, owned.rank)


def route_elements(written: Regions, partial: IntArray, owned: Regions) -> int:
    """Elements that cross between workers on the route of an output (see `route`)."""
    return route(written, partial, owned).elements()
