"""Bytes to bring one tensor to several readers, what they need alike once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tofu_tf.cost.candidates import Stack
from tofu_tf.tdl.regions import IntArray

# Odd numbers that make one number of a region's bounds: equal regions have equal ones.
_MIXING = np.random.default_rng(2019).integers(1 << 40, 1 << 62, 64) | 1


@dataclasses.dataclass(frozen=True, eq=False)
class Need:
    """The distinct needs of an operator's ways: way w has that at ``index[w]`` of `stack`."""

    index: IntArray
    stack: Stack


def needs_of(stack: Stack) -> Need:
    """The distinct ones of the needs of several ways, in order of appearance."""
    n = len(stack.lo)
    bounds = np.concatenate([stack.lo, stack.hi], axis=2) * stack.present[:, :, None]
    rows = np.concatenate([bounds.reshape(n, -1), stack.present.astype(np.int64)], axis=1)
    known: dict[bytes, int] = {}  # by value, in order; np.unique would sort all rows
    index = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)
    first = np.zeros(len(known), np.int64)
    first[index[::-1]] = np.arange(n)[::-1]
    return Need(index, stack.only(first))


def distinct(stacks: Sequence[Stack]) -> tuple[Stack, list[IntArray]]:
    """All distinct needs of several readers, and which of them each reader's are."""
    joined = needs_of(
        Stack(
            np.concatenate([s.lo for s in stacks]),
            np.concatenate([s.hi for s in stacks]),
            np.concatenate([s.present for s in stacks]),
        )
    )
    ends = np.cumsum([len(s.lo) for s in stacks])
    return joined.stack, np.split(joined.index, ends[:-1])


def shared(held: Stack, needs: Sequence[Stack]) -> IntArray:
    """[layouts, needs of the first reader, of the second, ...] elements that cross between workers.

    Each worker takes what it needs of every other one's part; the same region of one part is sent
    to it once (see `plan.routing`).
    """
    found = []
    for layout in range(len(held.lo)):
        taken = [_taken(held, layout, need) for need in needs]
        total: IntArray = np.zeros((1,) * len(needs), np.int64)
        for j, (volume, names) in enumerate(taken):
            new = _along(volume, j, len(needs))
            for i in range(j):
                before = _along(taken[i][1], i, len(needs))
                new = np.where(before == _along(names, j, len(needs)), 0, new)
            total = total + new.sum(axis=-1)
        found.append(total)
    return np.stack(found)


def union(held: Stack, need: Stack) -> IntArray:
    """[layouts, sets] elements that cross between workers for each set of needs; bit n of a set's
    number stands for need n.
    """
    n = len(need.lo)
    found = np.zeros((len(held.lo), 1 << n), np.int64)
    for layout in range(len(held.lo)):
        volume, names = _taken(held, layout, need)
        total = np.zeros((1 << n, volume.shape[1]), np.int64)
        for i in range(n):
            alike = names[:i] == names[i]
            for before in range(1 << i):
                there = alike[[j for j in range(i) if before >> j & 1]].any(axis=0)
                total[before | 1 << i] = total[before] + np.where(there, 0, volume[i])
        found[layout] = total.sum(axis=1)
    return found


def _along(values: IntArray, axis: int, axes: int) -> IntArray:
    shape = [1] * axes + [values.shape[1]]
    shape[axis] = values.shape[0]
    return values.reshape(shape)


def _taken(held: Stack, layout: int, need: Stack) -> tuple[IntArray, IntArray]:
    """[needs, workers x owners] elements taken from each owner, and a name of their region."""
    lo, hi, present = held.lo[layout], held.hi[layout], held.present[layout]
    same = np.all((lo[:, None] == lo[None]) & (hi[:, None] == hi[None]), axis=2)
    same &= present[:, None] & present[None]
    first = present & ~np.tril(same, -1).any(axis=1)  # one owner of every distinct part
    left = np.maximum(need.lo[:, :, None], lo[None, None])
    right = np.minimum(need.hi[:, :, None], hi[None, None])
    volume = np.prod(np.maximum(right - left, 0), axis=3, dtype=np.int64)
    volume *= need.present[:, :, None] & first[None, None] & ~same[None]
    rank = lo.shape[1]
    with np.errstate(over="ignore"):
        names = (left * _MIXING[:rank] + right * _MIXING[rank : 2 * rank]).sum(axis=3)
    flat = (len(need.lo), len(lo) * len(lo))
    return volume.reshape(flat), np.where(volume > 0, names, 0).reshape(flat)
