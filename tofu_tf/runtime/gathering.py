"""A region of a tensor, put together from the pieces that hold it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tofu_tf.tdl.regions import Region

Read = Callable[[int, Region], Any]


def slice_region(tensor: Any, region: Region) -> Any:
    """The part of `tensor` that lies in `region`; the tensor itself when that is all of it."""
    if region == Region.whole(tensor.shape):
        return tensor
    return tensor[tuple(slice(lo, hi) for lo, hi in region.bounds)]


def gather(region: Region, pieces: Sequence[Region], read: Read) -> Any:
    """The tensor of `region`.

    Args:
      pieces: the region that each piece holds; together they cover `region`.
      read: yields, for a piece's number and a region inside it, that region's tensor.
    """
    return _gather(region, list(enumerate(pieces)), read)


def _gather(region: Region, pieces: Sequence[tuple[int, Region]], read: Read) -> Any:
    for i, piece in pieces:
        if piece.contains(region):
            return read(i, region)
    touching = [(i, piece) for i, piece in pieces if piece.intersect(region) is not None]
    for d, (lo, hi) in enumerate(region.bounds):
        points = {point for _, p in touching for point in p.bounds[d] if lo < point < hi}
        if points:
            parts = [
                Region((*region.bounds[:d], (a, b), *region.bounds[d + 1 :]))
                for a, b in itertools.pairwise([lo, *sorted(points), hi])
            ]
            return tf.concat([_gather(part, touching, read) for part in parts], d)
    raise ValueError(f"{region} is not covered by {', '.join(str(p) for _, p in pieces)}")
