"""How an extent is divided among workers: nested balanced splits in mixed radix."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tofu_tf.tdl.regions import IntArray


@functools.lru_cache(maxsize=1024)
def digits(factors: tuple[int, ...]) -> IntArray:
    """[workers, cuts]: the group of each cut that every worker is in, first cut most
    significant.
    """
    k = int(np.prod(factors, dtype=np.int64))
    out = np.zeros((k, len(factors)), np.int64)
    rest = np.arange(k)
    for s in range(len(factors) - 1, -1, -1):
        out[:, s] = rest % factors[s]
        rest = rest // factors[s]
    out.setflags(write=False)
    return out


@functools.lru_cache(maxsize=16384)
def mixed_index(cuts: tuple[int, ...], factors: tuple[int, ...]) -> tuple[IntArray, int]:
    """[workers] index of every worker among the parts that the given cuts make, and their
    number.
    """
    digit = digits(factors)
    index, parts = np.zeros(len(digit), np.int64), 1
    for s in cuts:
        index = index * factors[s] + digit[:, s]
        parts *= factors[s]
    index.setflags(write=False)
    return index, parts


def split(extent: int, cuts: Sequence[int], factors: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """[workers] lo and hi of the balanced nested split of `extent` by the given cuts.

    Part i of p is [extent*i//p, extent*(i+1)//p): sizes differ by at most one, and the bounds of a
    coarse split are among those of every finer one.
    """
    index, parts = mixed_index(tuple(cuts), factors)
    return extent * index // parts, extent * (index + 1) // parts
