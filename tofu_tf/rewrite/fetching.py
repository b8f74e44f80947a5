"""Regions of tensors as nodes: sliced where they are owned, joined where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tofu_tf.plan.transfers import Part
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.tdl.regions import Region


def index_operand(make: Building, values: Sequence[int] | int, worker: int, dtype: str) -> str:
    """Indices as a constant: one node for all operands of a device that are alike."""
    value = np.asarray(values, dtype)
    text = "_".join(map(str, value.ravel().tolist())) or "none"
    return make.constant(
        value, worker, naming.piece("indices" if value.ndim else "axis", worker, text)
    )


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
    """The region `wanted` of a tensor that holds the region `held`, both in the whole's
    coordinates.
    """
    if held == wanted:
        return tensor
    local = wanted.within(held)
    index = "int64" if max((*local.origin, *local.shape), default=0) > 2**31 - 1 else "int32"
    begin = index_operand(make, local.origin, worker, index)
    size = index_operand(make, local.shape, worker, index)
    made = make.add(
        name, "Slice", worker, (tensor, begin, size), {"T": dtype, "Index": index}, controls
    )
    return naming.tensor(made)


def division(held: Region, wanted: Sequence[Region]) -> tuple[int, list[Region]] | None:
    """The dimension along which the `wanted` regions, in order, make up `held`; None where they do
    not.
    """
    for d, (lo, hi) in enumerate(held.bounds):
        if len({r.bounds[d] for r in wanted}) == len(wanted):
            order = sorted(wanted, key=lambda r: r.bounds[d])
            edges = [lo, *(r.bounds[d][1] for r in order)]
            along = all(
                r.bounds[d] == (a, b)
                and r.bounds[:d] == held.bounds[:d]
                and r.bounds[d + 1 :] == held.bounds[d + 1 :]
                for r, a, b in zip(order, edges[:-1], edges[1:], strict=True)
            )
            if along and edges[-1] == hi:
                return d, order
    return None


def divided(
    make: Building,
    tensor: str,
    held: Region,
    wanted: Sequence[Region],
    dtype: str,
    worker: int,
    name: str,
    controls: Sequence[str] = (),
) -> dict[Region, str]:
    """All the `wanted` regions of a tensor by one node, where they are its parts along a
    dimension.
    """
    found = division(held, wanted)
    if found is None:
        return {}
    axis, order = found
    sizes = index_operand(make, [r.shape[axis] for r in order], worker, "int32")
    where = index_operand(make, axis, worker, "int32")
    attrs = {"T": dtype, "Tlen": "int32", "num_split": len(order)}
    node = make.add(name, "SplitV", worker, (tensor, sizes, where), attrs, controls)
    return {r: naming.tensor(node, i) for i, r in enumerate(order)}


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
    where = index_operand(make, axis, worker, "int32")
    node = make.add(
        name,
        "ConcatV2",
        worker,
        (*columns, where),
        {"N": len(columns), "T": dtype, "Tidx": "int32"},
    )
    made(node)
    return naming.tensor(node)
