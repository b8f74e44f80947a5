"""What kind of communication a change of layout is: one collective exactly, or point to point."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from tofu_tf.plan.layouts import Layout, layout_regions
from tofu_tf.tdl.regions import IntArray, Region, Regions
from tofu_tf.tdl.splitting import mixed_index

Groups = tuple[tuple[int, ...], ...]


class Kind(enum.StrEnum):
    """What moves between workers: nothing, one of four collectives, or pieces from one to another.

    `FETCH` brings regions of a value to where they are needed, `OTHER` combines partial results;
    both go point to point.
    """

    NONE = "none"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    FETCH = "fetch"
    OTHER = "other"


COLLECTIVES = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.ALL_TO_ALL)


@dataclasses.dataclass(frozen=True)
class Change:
    """The kind of a change and, for a collective, the groups of workers that each do it once."""

    kind: Kind
    groups: Groups = ()


def classify(
    source: Layout,
    partial_cuts: Sequence[int],
    target: Layout,
    shape: tuple[int, ...],
    factors: tuple[int, ...],
) -> Change:
    """How a tensor that lies as `source` comes to lie as `target`.

    `partial_cuts`: cuts whose groups hold different partial results, which are to be combined.
    """
    held = layout_regions(source, shape, factors)
    need = layout_regions(target, shape, factors)
    return classify_regions(held, mixed_index(tuple(partial_cuts), factors)[0], need)


def classify_regions(held: Regions, partial: IntArray, need: Regions) -> Change:
    """How workers that hold the regions `held` come to have the regions `need` of the whole value.

    `partial[w]` says which partial result worker w holds; all equal where each holds the value.
    A collective has groups of one size that all do the same, each with equal shards; anything less
    is `FETCH` or `OTHER`.
    """
    holders = np.flatnonzero(held.present)
    combines = len(np.unique(partial[holders])) > 1
    if not combines and _all_there(held, need):
        return Change(Kind.NONE)
    odd = Change(Kind.OTHER if combines else Kind.FETCH)
    if not (held.present.all() and need.present.all()):
        return odd
    groups = _groups(held, partial, need)
    if groups is None or len({len(g) for g in groups}) != 1:
        return odd
    of_group = _reduction if combines else _movement
    have, want = held.tuple(), need.tuple()
    kinds = {of_group(_of(have, g), _of(want, g), partial[list(g)]) for g in groups}
    kind = kinds.pop()
    return odd if kinds or kind is None else Change(kind, groups)


def _of(regions: Sequence[Region | None], group: Sequence[int]) -> list[Region]:
    return [region for w in group if (region := regions[w]) is not None]


def _all_there(held: Regions, need: Regions) -> bool:
    inside = np.all((held.lo <= need.lo) & (need.hi <= held.hi), axis=1) & held.present
    return bool(np.all(inside | ~need.present))


def _groups(held: Regions, partial: IntArray, need: Regions) -> Groups | None:
    """Workers that depend on each other, copies apart; None where parts differ in their copies.

    Those that hold the same part are told apart by their order: the n-th holder of every part is of
    one group, as the digits of the cuts that copy say.
    """
    found = []
    for members in _components(held, need):
        holders: dict[tuple[Region | None, int], list[int]] = {}
        for w in members:
            holders.setdefault((held[w], int(partial[w])), []).append(w)
        copies = {len(workers) for workers in holders.values()}
        if len(copies) != 1:
            return None
        found += [tuple(sorted(group)) for group in zip(*holders.values(), strict=True)]
    return tuple(sorted(found))


def _components(held: Regions, need: Regions) -> list[list[int]]:
    """Workers joined by needing what another holds."""
    lo = np.maximum(held.lo[:, None], need.lo[None])
    hi = np.minimum(held.hi[:, None], need.hi[None])
    touch = np.all(hi > lo, axis=2)
    label = np.arange(held.workers)
    for source, target in zip(*np.nonzero(touch | touch.T), strict=True):
        a, b = label[source], label[target]
        if a != b:
            label[label == max(a, b)] = min(a, b)
    return [np.flatnonzero(label == one).tolist() for one in np.unique(label)]


def _hull(regions: Sequence[Region]) -> Region:
    return Region(
        tuple(
            (min(lo for lo, _ in d), max(hi for _, hi in d))
            for d in zip(*(r.bounds for r in regions), strict=True)
        )
    )


def _shards(regions: Sequence[Region], whole: Region) -> bool:
    """Whether the regions are of one shape and fill `whole` without overlap."""
    return (
        len(regions) > 1
        and len(set(regions)) == len(regions)
        and len({r.shape for r in regions}) == 1
        and sum(r.size for r in regions) == whole.size
        and _hull(regions) == whole
    )


def _reduction(held: Sequence[Region], need: Sequence[Region], partial: IntArray) -> Kind | None:
    """The collective by which one group combines its partial results."""
    whole = held[0]
    if set(held) != {whole} or len(set(partial.tolist())) != len(held):
        return None
    if set(need) == {whole}:
        return Kind.ALL_REDUCE
    return Kind.REDUCE_SCATTER if _shards(need, whole) else None


def _movement(held: Sequence[Region], need: Sequence[Region], partial: IntArray) -> Kind | None:
    """The collective by which one group exchanges its shards."""
    whole = _hull(held)
    if not _shards(held, whole):
        return None
    if set(need) == {whole}:
        return Kind.ALL_GATHER
    common = [h.intersect(n) for h in held for n in need]
    equal = None not in common and len({c.shape for c in common if c is not None}) == 1
    return Kind.ALL_TO_ALL if _shards(need, whole) and equal else None
