"""Strategies of a described operator: which axes can be cut, and what each worker then reads and
writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tofu_tf.tdl.descriptions import Description, Dims, Write
from tofu_tf.tdl.intervals import Boxes, access_regions
from tofu_tf.tdl.regions import IntArray, Regions
from tofu_tf.tdl.splitting import mixed_index, split


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """What every worker computes of one operator under one strategy.

    `reads[i]` and `writes[o]`: regions per worker. `partials[o]`: [workers] which partial result
    each worker makes of output o (all 0 where it is not cut along a reduction). `internal_writes`
    and `internal_partials` likewise for a body's internal reductions. `serves`: see Description.
    """

    boxes: Boxes
    reads: tuple[Regions, ...]
    writes: tuple[Regions, ...]
    partials: tuple[IntArray, ...]
    reducers: tuple[str | None, ...]
    internal_writes: tuple[Regions, ...] = ()
    internal_partials: tuple[IntArray, ...] = ()
    serves: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def cuttable(description: Description) -> tuple[str, ...]:
    """Axes that can be cut: not fixed, of extent 2 or more, an output dimension or a whole
    reduction.
    """
    return tuple(
        axis
        for axis, extent in description.extents.items()
        if extent > 1
        and axis not in description.fixed
        and all(_sound(axis, w) for w in description.writes)
        and any(_named(axis, w.dims) or axis in w.over for w in description.writes)
    )


def _named(axis: str, dims: Dims) -> bool:
    return any(form is not None and any(a == axis for a, _ in form.terms) for form in dims)


def _sound(axis: str, write: Write) -> bool:
    return _named(axis, write.dims) or axis in write.over or axis not in write.depends


def boxes_of(
    description: Description, axes: Sequence[str | None], factors: tuple[int, ...]
) -> Boxes:
    """Every worker's box when cut s divides axis ``axes[s]`` (None: every group does all of it)."""
    k = int(np.prod(factors, dtype=np.int64))
    lo, hi = {}, {}
    present = np.ones(k, np.bool_)
    for axis, extent in description.extents.items():
        cuts = tuple(s for s, a in enumerate(axes) if a == axis)
        if cuts:
            lo[axis], hi[axis] = split(extent, cuts, factors)
            present &= hi[axis] > lo[axis]
        else:
            lo[axis], hi[axis] = np.zeros(k, np.int64), np.full(k, extent, np.int64)
    return Boxes(lo, hi, present)


def work_of(
    description: Description,
    axes: Sequence[str | None],
    factors: tuple[int, ...],
    home: bool = False,
) -> Work:
    """What every worker reads, computes and writes; with `home` worker 0 does everything."""
    boxes = boxes_of(description, axes, factors)
    if home:
        boxes = Boxes(boxes.lo, boxes.hi, np.arange(len(boxes.present)) == 0)
    return Work(
        boxes,
        tuple(
            access_regions(a, s, boxes)
            for a, s in zip(description.reads, description.shapes, strict=True)
        ),
        tuple(
            access_regions((w.dims,), s, boxes)
            for w, s in zip(description.writes, description.out_shapes, strict=True)
        ),
        tuple(_partials(w, axes, factors) for w in description.writes),
        tuple(w.reducer for w in description.writes),
        tuple(
            access_regions(
                (w.dims,), tuple(description.extents[a] for (a,) in _axes(w.dims)), boxes
            )
            for w in description.internals
        ),
        tuple(_partials(w, axes, factors) for w in description.internals),
        description.serves,
    )


def whole_work(
    read: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]], workers: int
) -> Work:
    """The work of an operator without description: worker 0 reads and makes everything.

    `read`, `written`: shapes of inputs and outputs.
    """
    alone = np.arange(workers) == 0
    none: IntArray = np.zeros(workers, np.int64)
    return Work(
        Boxes({}, {}, alone),
        tuple(Regions.everywhere(s, workers).only(alone) for s in read),
        tuple(Regions.everywhere(s, workers).only(alone) for s in written),
        (none,) * len(written),
        (None,) * len(written),
    )


def _axes(dims: Dims) -> list[tuple[str]]:
    return [(form.terms[0][0],) for form in dims if form is not None]


def _partials(write: Write, axes: Sequence[str | None], factors: tuple[int, ...]) -> IntArray:
    return mixed_index(tuple(s for s, a in enumerate(axes) if a in write.over), factors)[0]


def is_legal(
    description: Description, axes: Sequence[str | None], factors: tuple[int, ...]
) -> bool:
    """Whether no worker's outputs (nor the reads of an exact description) have holes.

    A dimension that is ``outer * n + inner`` may be cut along `inner` only where each worker has
    one
    `outer`: otherwise its elements are not a range.
    """
    chosen = {a for a in axes if a is not None}
    if not chosen <= set(cuttable(description)):
        return False
    suspects = [
        form
        for dims in (
            *(w.dims for w in description.writes),
            *(d for r in description.reads for d in r if description.exact),
        )
        for form in dims
        if form is not None and len(form.terms) > 1 and any(a in chosen for a, _ in form.terms)
    ]
    if not suspects:
        return True
    boxes = boxes_of(description, axes, factors)
    for form in suspects:
        span = np.ones(len(boxes.present), np.int64)
        count = np.ones(len(boxes.present), np.int64)
        for a, c in form.terms:
            n = boxes.hi[a] - boxes.lo[a]
            span += abs(c) * (n - 1)
            count *= n
        if np.any((span != count) & boxes.present):
            return False
    return True
