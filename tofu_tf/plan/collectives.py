"""Which changes of layout TensorFlow's collective ops make, and the bytes that those move.

Costs count them and the rewriter prints them as nodes; everything else goes point to point.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tofu_tf.plan.classifying import Change, Kind, classify_regions
from tofu_tf.tdl.regions import IntArray, Regions

# reducer -> how the op is told to merge
MERGES = {"Sum": "Add", "Max": "Max", "Min": "Min", "Prod": "Mul"}
_FLOATS = frozenset({"float16", "float32", "float64"})
# Kind -> dtypes that its op takes. On GPUs int32 lies in host memory, and NCCL sums floats.
DTYPES = {
    "CPU": {
        Kind.ALL_REDUCE: _FLOATS | {"bfloat16", "int32", "int64"},
        Kind.ALL_GATHER: _FLOATS | {"int32", "int64"},
        Kind.ALL_TO_ALL: _FLOATS | {"bfloat16", "int32", "int64"},
    },
    # Only the GPU has a kernel of reduce-scatter that is more than a name.
    "GPU": {
        Kind.ALL_REDUCE: _FLOATS | {"bfloat16"},
        Kind.ALL_GATHER: _FLOATS,
        Kind.ALL_TO_ALL: _FLOATS | {"bfloat16"},
        Kind.REDUCE_SCATTER: _FLOATS | {"bfloat16"},
    },
}


def group_bytes(kind: Kind, members: int, nbytes: int) -> int:
    """What all members of a group send together when each puts in `nbytes`."""
    if kind is Kind.ALL_REDUCE:
        return 2 * (members - 1) * nbytes
    if kind is Kind.ALL_GATHER:
        return members * (members - 1) * nbytes
    return (members - 1) * nbytes


@dataclasses.dataclass(frozen=True)
class Choosing:
    """Yields for a change of layout the collective that makes it, None where it goes point to
    point.
    """

    device_type: str
    _known: dict[tuple[object, ...], Change | None] = dataclasses.field(default_factory=dict)

    def __call__(
        self,
        held: Regions,
        partial: IntArray | None,
        need: Regions,
        dtype: str,
        reducer: str | None = None,
    ) -> Change | None:
        one = np.zeros(held.workers, np.int64) if partial is None else partial
        key = (held.key, one.tobytes(), need.key, dtype, reducer)
        if key not in self._known:
            change = classify_regions(held, one, need)
            self._known[key] = change if self._fits(change, dtype, reducer) else None
        return self._known[key]

    def _fits(self, change: Change, dtype: str, reducer: str | None) -> bool:
        taken = DTYPES.get(self.device_type, {}).get(change.kind, frozenset())
        reduces = change.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
        return dtype in taken and (not reduces or (reducer or "Sum") in MERGES)
