"""Interval arithmetic on affine coordinates, for all workers at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tofu_tf.tdl.descriptions import Dims
from tofu_tf.tdl.expressions import Affine
from tofu_tf.tdl.regions import IntArray, Regions


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes:
    """Per worker the range [lo, hi) of every loop axis; a worker that is not present computes
    nothing.
    """

    lo: Mapping[str, IntArray]
    hi: Mapping[str, IntArray]
    present: npt.NDArray[np.bool_]

    def box(self, worker: int) -> dict[str, tuple[int, int]]:
        return {a: (int(self.lo[a][worker]), int(self.hi[a][worker])) for a in self.lo}


def interval(form: Affine, boxes: Boxes) -> tuple[IntArray, IntArray]:
    """[workers] lo and hi of the whole values that `form` takes over each worker's box, not
    clipped.
    """
    low = np.full(boxes.present.shape, form.offset, np.int64)
    high = low.copy()
    for axis, c in form.terms:
        first, last = boxes.lo[axis], boxes.hi[axis] - 1
        low += c * (first if c > 0 else last)
        high += c * (last if c > 0 else first)
    if form.divisor == 1:
        return low, high + 1
    return -(-low // form.divisor), high // form.divisor + 1


def access_regions(accesses: Sequence[Dims], shape: Sequence[int], boxes: Boxes) -> Regions:
    """The region of a tensor of `shape` that each worker touches: the hull of the accesses,
    clipped.
    """
    k, rank = len(boxes.present), len(shape)
    lo = np.zeros((k, rank), np.int64)
    hi = np.zeros((k, rank), np.int64)
    touched = np.zeros(k, np.bool_)
    for n, dims in enumerate(accesses):
        inside = np.ones(k, np.bool_)
        for guard in dims[rank:]:
            assert guard is not None
            low, high = interval(guard, boxes)
            inside &= (low <= 0) & (high > 0)
        touched |= inside
        for d, form in enumerate(dims[:rank]):
            if form is None:
                a: IntArray | int = 0
                b: IntArray | int = shape[d]
            elif not form.terms and form.divisor == 1:
                a, b = form.offset, form.offset + 1
            else:
                a, b = interval(form, boxes)
                # np.clip is several times slower
                a = np.minimum(np.maximum(a, 0), shape[d])
                b = np.minimum(np.maximum(b, 0), shape[d])
            if n == 0:
                lo[:, d], hi[:, d] = a, b
            else:
                lo[:, d], hi[:, d] = np.minimum(lo[:, d], a), np.maximum(hi[:, d], b)
    if not accesses:
        return Regions(lo, hi, np.zeros(k, np.bool_))
    return Regions.make(lo, hi, boxes.present & touched)
