"""Regions of tensors as nodes: sliced where they are owned, joined where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tofu_tf.plan.transfers import Part
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.tdl.regions import Region


def index_operand(make: Building, values: Sequence[int], worker: int, name: str) -> str:
    """A vector of indices, on the host's side of a slice or a reshape."""
    large = any(v > 2**31 - 1 for v in values)
    return make.constant(np.asarray(values, np.int64 if large else np.int32), worker, name)


def sliced(
    make: Building,
    tensor: str,
    held: Region,
    wanted: Region,
    dtype: str,
    worker: int,
    name: str,
    controls: Sequence[str] = (),
) -> str:
    """The region `wanted` of a tensor that holds the region `held`, both in the whole's coordinates."""
    if held == wanted:
        return tensor
    local = wanted.within(held)
    begin = index_operand(make, local.origin, worker, f"{name}/begin")
    size = index_operand(make, local.shape, worker, f"{name}/size")
    index = "int64" if max((*local.origin, *local.shape), default=0) > 2**31 - 1 else "int32"
    made = make.add(
        name, "Slice", worker, (tensor, begin, size), {"T": dtype, "Index": index}, controls
    )
    return naming.tensor(made)


def joined(
    make: Building,
    parts: Sequence[Part],
    tensors: Sequence[str],
    dtype: str,
    worker: int,
    name: str,
    made: Callable[[str], None] = lambda _: None,
) -> str:
    """One tensor of parts that fill a grid; `made` is told of every new node."""
    if len(parts) == 1:
        return tensors[0]
    rank = len(parts[0].region.bounds)
    axis = next(d for d in range(rank) if len({p.region.bounds[d] for p in parts}) > 1)
    bands: dict[tuple[int, int], list[int]] = {}
    for i, p in enumerate(parts):
        bands.setdefault(p.region.bounds[axis], []).append(i)
    columns = [
        joined(
            make,
            [parts[i] for i in members],
            [tensors[i] for i in members],
            dtype,
            worker,
            f"{name}/band{n}",
            made,
        )
        for n, (_, members) in enumerate(sorted(bands.items()))
    ]
    where = make.constant(np.asarray(axis, np.int32), worker, f"{name}/axis")
    node = make.add(
        name,
        "ConcatV2",
        worker,
        (*columns, where),
        {"N": len(columns), "T": dtype, "Tidx": "int32"},
    )
    made(node)
    return naming.tensor(node)
