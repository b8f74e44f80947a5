"""Hyper-rectangles of a tensor: one (`Region`) and one per worker (`Regions`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Region:
    """The half-open box ``[lo, hi)`` per dimension; a scalar's region has no bounds and size 1."""

    bounds: tuple[tuple[int, int], ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Region:
        return Region(tuple((0, int(n)) for n in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.bounds)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(lo for lo, _ in self.bounds)

    @property
    def size(self) -> int:
        """Number of elements; 0 when any dimension is empty."""
        n = 1
        for lo, hi in self.bounds:
            n *= max(hi - lo, 0)
        return n

    def intersect(self, other: Region) -> Region | None:
        """The common part, or None when there is none."""
        bounds = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.bounds, other.bounds, strict=True)
        )
        return None if any(lo >= hi for lo, hi in bounds) else Region(bounds)

    def contains(self, other: Region) -> bool:
        return all(
            a <= c and d <= b for (a, b), (c, d) in zip(self.bounds, other.bounds, strict=True)
        )

    def within(self, outer: Region) -> Region:
        """The same elements in coordinates relative to `outer`'s first element."""
        return Region(
            tuple(
                (lo - o, hi - o) for (lo, hi), (o, _) in zip(self.bounds, outer.bounds, strict=True)
            )
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{lo}:{hi}" for lo, hi in self.bounds) + "]"


@dataclasses.dataclass(frozen=True, eq=False)
class Regions:
    """One region per worker: `lo`, `hi` of shape [workers, rank], `present` of shape [workers].

    A worker that is not present holds nothing (also possible for a scalar, whose region has no
    bounds).
    """

    lo: IntArray
    hi: IntArray
    present: npt.NDArray[np.bool_]

    @staticmethod
    def make(lo: IntArray, hi: IntArray, present: npt.NDArray[np.bool_] | None = None) -> Regions:
        """Regions whose empty boxes are marked as not present."""
        filled = np.all(hi > lo, axis=1)
        return Regions(lo, hi, filled if present is None else filled & present)

    @staticmethod
    def everywhere(shape: Sequence[int], workers: int) -> Regions:
        lo = np.zeros((workers, len(shape)), np.int64)
        hi = np.broadcast_to(np.asarray(shape, np.int64).reshape(1, -1), lo.shape)
        return Regions.make(lo, hi)

    @staticmethod
    def of(regions: Sequence[Region | None], rank: int) -> Regions:
        k = len(regions)
        lo, hi = np.zeros((k, rank), np.int64), np.zeros((k, rank), np.int64)
        present = np.zeros(k, np.bool_)
        for w, region in enumerate(regions):
            if region is not None:
                present[w] = True
                for d, (a, b) in enumerate(region.bounds):
                    lo[w, d], hi[w, d] = a, b
        return Regions(lo, hi, present)

    @property
    def workers(self) -> int:
        return int(self.lo.shape[0])

    @property
    def rank(self) -> int:
        return int(self.lo.shape[1])

    def sizes(self) -> IntArray:
        """Elements per worker, 0 where absent."""
        volume = np.prod(np.maximum(self.hi - self.lo, 0), axis=1, dtype=np.int64)
        return np.where(self.present, volume, 0)

    @functools.cached_property
    def each(self) -> tuple[Region | None, ...]:
        """Every worker's region, None where it has none."""
        bounds = np.stack([self.lo, self.hi], axis=-1).tolist()
        return tuple(
            Region(tuple(map(tuple, rows))) if there else None
            for rows, there in zip(bounds, self.present.tolist(), strict=True)
        )

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for equal regions."""
        return (self.lo.tobytes(), self.hi.tobytes(), self.present.tobytes(), self.lo.shape)

    def __getitem__(self, worker: int) -> Region | None:
        return self.each[worker]

    def box(self, worker: int) -> Region:
        """A worker's bounds, which hold no element where it has no region."""
        return self.each[worker] or Region(
            tuple(
                (int(lo), max(int(lo), int(hi)))
                for lo, hi in zip(self.lo[worker], self.hi[worker], strict=True)
            )
        )

    def tuple(self) -> tuple[Region | None, ...]:
        return self.each

    def only(self, keep: npt.NDArray[np.bool_]) -> Regions:
        return Regions(self.lo, self.hi, self.present & keep)
