"""Layouts: which region of a tensor each worker owns, given one decision per cut."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tofu_tf.tdl.regions import Regions
from tofu_tf.tdl.splitting import split


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Per cut the dimension that it divides, or None for a copy in every group.

    `home`: the whole tensor on worker 0 only (bookkeeping that must happen once); its cuts are all
    None.
    """

    cuts: tuple[int | None, ...]
    home: bool = False

    @property
    def replicated(self) -> bool:
        """Whether every worker owns a whole copy."""
        return not self.home and all(c is None for c in self.cuts)

    def by_dimension(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """For each dimension the cuts that divide it."""
        return tuple(tuple(s for s, c in enumerate(self.cuts) if c == d) for d in range(rank))

    def __str__(self) -> str:
        if self.home:
            return "home"
        return ",".join("R" if c is None else str(c) for c in self.cuts)


@functools.lru_cache(maxsize=65536)
def layout_regions(layout: Layout, shape: tuple[int, ...], factors: tuple[int, ...]) -> Regions:
    """The region that every worker owns of a tensor of this shape."""
    k = int(np.prod(factors, dtype=np.int64))
    whole = Regions.everywhere(shape, k)
    if layout.home:
        return whole.only(np.arange(k) == 0)
    lo, hi = whole.lo.copy(), whole.hi.copy()
    for d, cuts in enumerate(layout.by_dimension(len(shape))):
        if cuts:
            lo[:, d], hi[:, d] = split(shape[d], cuts, factors)
    return Regions.make(lo, hi)


def layout_text(layout: Layout, shape: Sequence[int], dtype: str) -> str:
    """``f32[512@d0, 512@d1]``: each dimension's size and the cuts that divide it."""
    if layout.home:
        return f"{short_dtype(dtype)}[{', '.join(map(str, shape))}] on worker 0"
    dims = [
        f"{n}@{''.join(f'd{s}' for s in cuts)}" if cuts else str(n)
        for n, cuts in zip(shape, layout.by_dimension(len(shape)), strict=True)
    ]
    return f"{short_dtype(dtype)}[{', '.join(dims)}]"


def short_dtype(dtype: str) -> str:
    """``f32`` for ``float32``, ``bf16``, ``i64``, ``u8``, ``c64``, ``bool``."""
    for long, short in (
        ("bfloat", "bf"),
        ("float", "f"),
        ("uint", "u"),
        ("int", "i"),
        ("complex", "c"),
    ):
        if dtype.startswith(long):
            return short + dtype[len(long) :]
    return dtype
