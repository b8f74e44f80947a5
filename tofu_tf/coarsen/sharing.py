"""Who reads which tensors: a region that several operators need crosses between workers once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tofu_tf.coarsen.groups import COPIED, HOME, Coarse
from tofu_tf.graph.ir import Ref

Reader = tuple[int, int]  # position of an operator in Coarse.operators, and one of its inputs


@dataclasses.dataclass(frozen=True)
class Reading:
    """`count` tensors that lie alike and that the same operators read at the same inputs.

    `at`: their group, or HOME.
    """

    at: int
    readers: tuple[Reader, ...]
    count: int


def readings_of(coarse: Coarse) -> tuple[Reading, ...]:
    """Every tensor that costs something to read, in classes.

    Operators inside one group read where the tensor lies, and copies cost nothing. What lies on
    worker 0 is small: its readers are taken one by one.
    """
    readers: dict[Ref, dict[Reader, None]] = {}
    for o, operator in enumerate(coarse.operators):
        if operator.internal:
            continue
        for name in operator.nodes:
            for i, ref in enumerate(coarse.graph.nodes[name].inputs):
                if operator.inputs[i] != COPIED:
                    readers.setdefault(ref, {})[o, i] = None
    counts: dict[tuple[int, tuple[Reader, ...]], int] = {}
    for ref, found in readers.items():
        at = coarse.group_of.get(ref, HOME)
        sets = [(reader,) for reader in found] if at == HOME else [tuple(sorted(found))]
        for one in sets:
            counts[at, one] = counts.get((at, one), 0) + 1
    return tuple(Reading(at, who, n) for (at, who), n in counts.items())


def weights_of(coarse: Coarse, readings: Sequence[Reading]) -> tuple[tuple[int, ...], ...]:
    """For every operator how many tensors it alone reads at each input."""
    found = [[0] * len(operator.inputs) for operator in coarse.operators]
    for reading in readings:
        if len(reading.readers) == 1:
            ((o, i),) = reading.readers
            found[o][i] += reading.count
    return tuple(tuple(weights) for weights in found)
