"""Ops that write variables: assignments, optimizer updates, scatters into variables.

A node's inputs stand for the current version at the resource operand; its outputs are the
versions that it writes (variables are versions in the graph).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.graph.attributes import PADDED
from tofu_tf.ops.parts import kept_rows, localised, reshaped, scalar
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque, Sum, apply

_BOTH = {"": ("i0", "i1")}
_X = ((5, 4), "float64")
_S = ((), "float64")


@op(
    "AssignVariableOp",
    elementwise=True,
    samples=(
        Sample((_X, _X), _BOTH),
        Sample((((), "int64"), ((), "int64")), {"": ()}),
        Sample((((5,), "bool"), ((5,), "bool")), {"": ("i0",)}),
    ),
)
def assign(variable: Any, value: Any) -> Any:
    """``value[i]``; the version before it is not read."""
    return lambda *i: value[i]


def update(*operands: Any, out: tuple[tuple[int, ...], ...]) -> Any:
    """New versions from the old ones, the gradient and scalars, all of them element by element."""

    def element(*i: Any) -> Any:
        return apply(*(x.broadcast(*i) for x in operands))

    return tuple(element for _ in out)


op(
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    elementwise=True,
    samples=(
        Sample((_X, _X), _BOTH),
        Sample((((5,), "float32"), ((5,), "float32")), {"": ("i0",)}),
        Sample((((), "int64"), ((), "int64")), {"": ()}),
    ),
)(update)

# v: a variable of the sample's shape, g: a gradient, s: a scalar. Data are positive, as roots need.
UPDATES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ResourceApplyGradientDescent": ("vsg", {}),
    "ResourceApplyProximalGradientDescent": ("vsssg", {}),
    "ResourceApplyMomentum": ("vvsgs", {"use_nesterov": True}),
    "ResourceApplyKerasMomentum": ("vvsgs", {"use_nesterov": True}),
    "ResourceApplyAdagrad": ("vvsg", {}),
    "ResourceApplyAdagradV2": ("vvssg", {}),
    "ResourceApplyProximalAdagrad": ("vvsssg", {}),
    "ResourceApplyAdadelta": ("vvvsssg", {}),
    "ResourceApplyAdam": ("vvvssssssg", {}),
    "ResourceApplyAdamWithAmsgrad": ("vvvvssssssg", {}),
    "ResourceApplyAdaMax": ("vvvsssssg", {}),
    "ResourceApplyFtrl": ("vvvgssss", {}),
    "ResourceApplyFtrlV2": ("vvvgsssss", {}),
    "ResourceApplyRMSProp": ("vvvssssg", {}),
    "ResourceApplyCenteredRMSProp": ("vvvvssssg", {}),
    "ResourceApplyAddSign": ("vvssssg", {}),
    "ResourceApplyPowerSign": ("vvssssg", {}),
}


def _update_samples(kinds: str, attrs: Mapping[str, Any]) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            tuple(((), "float64") if kind == "s" else (shape, "float64") for kind in kinds),
            {"": axes},
            {"use_locking": True, **attrs},
            low=0.3,
            high=0.8,
        )
        for shape, axes in (((5, 4), ("i0", "i1")), ((3,), ("i0",)))
    )


op(
    *UPDATES,
    elementwise=True,
    flops=lambda inputs, outputs, attributes: 4 * sum(o.size for o in outputs),
    samples={name: _update_samples(*v) for name, v in UPDATES.items()},
)(update)


def _rows_body(indices: int, rows: Sequence[int], depth: bool = False) -> Any:
    """The body of an op on the rows that `indices` names: a part of the rows takes its own only,
    and rows that pad the others are left out.

    `depth`: whether the indices' last dimension, of extent 1, is that of a place.
    """

    def body(emit: Emitter, piece: Piece) -> list[str]:
        inputs = list(piece.inputs)
        attrs = {k: v for k, v in piece.node.attrs.items() if k != PADDED}
        shape, dtype = piece.specs[indices].shape, piece.specs[indices].dtype
        if not piece.whole("i0"):
            ids = _in_line(emit, inputs[indices], shape, dtype)
            ids, taken = localised(emit, ids, piece.box["i0"], dtype)
        elif PADDED in piece.node.attrs:
            ids = _in_line(emit, inputs[indices], shape, dtype)
            zero = scalar(emit, 0, dtype, "zero")
            taken = emit.add("GreaterEqual", [ids, zero], {"T": dtype}, part="real")[0]
        else:
            return emit.add(piece.node.op, inputs, attrs, outputs=0)
        lead = len(shape) - depth
        filtered = {"ids": (ids, dtype)}
        for n in rows:
            read, kind = piece.reads[n], piece.specs[n].dtype
            assert read is not None
            if len(read.shape) != lead + len(piece.writes[0].shape) - 1:
                continue  # one value for all rows
            flat = [math.prod(read.shape[:lead]), *read.shape[lead:]]
            line = inputs[n] if lead == 1 else reshaped(emit, inputs[n], flat, kind, f"rows{n}")[0]
            filtered[f"rows{n}"] = (line, kind)
        kept = kept_rows(emit, taken, filtered)
        inputs[indices] = kept["ids"]
        if depth:
            inputs[indices] = reshaped(emit, kept["ids"], [-1, 1], dtype, "places")[0]
        for n in rows:
            inputs[n] = kept.get(f"rows{n}", inputs[n])
        return emit.add(piece.node.op, inputs, attrs, outputs=0)

    return body


def _in_line(emit: Emitter, ids: str, shape: tuple[int, ...], dtype: str) -> str:
    return ids if len(shape) == 1 else reshaped(emit, ids, [-1], dtype, "ids")[0]


def _scatter(variable: Any, indices: Any, updates: Any) -> Any:
    """Row r changed by the updates whose index is r."""
    extra = (
        updates.rank - variable.rank + 1
    )  # the rank of `indices`, unless the updates are one row

    def element(*i: Any) -> Any:
        if extra <= 0 or indices.rank == 0:
            every = tuple(slice(None) for _ in indices.shape)
            return apply(variable[i], indices[every], updates.broadcast(*i))
        return apply(
            variable[i],
            Sum(lambda *n: apply(indices[n], updates[(*n, *i[1:])]), n=indices.shape),
        )

    return element


_IDS = np.asarray([3, 0, 3, 4, 1, 0], np.int32)
_DISTINCT = np.asarray([3, 0, 4, 1], np.int64)
_CUT = {"": ("i0", "i1")}

op(
    "ResourceScatterAdd",
    "ResourceScatterSub",
    "ResourceScatterMul",
    "ResourceScatterDiv",
    "ResourceScatterMin",
    "ResourceScatterMax",
    "ResourceScatterUpdate",
    body=_rows_body(1, (2,)),
    flops=lambda inputs, outputs, attributes: inputs[2].size,
    samples={
        f"ResourceScatter{kind}": (
            Sample((_X, ids, ((len(ids), 4), "float64")), _CUT, low=0.5, high=2.0),
            Sample((_X, ids[:4].reshape(2, 2), ((2, 2, 4), "float64")), _CUT, low=0.5, high=2.0),
            Sample((_X, ids[0], ((4,), "float64")), _CUT, low=0.5, high=2.0),
            Sample((_X, ids, _S), _CUT, low=0.5, high=2.0),
        )
        for kind, ids in (
            ("Add", _IDS),
            ("Sub", _IDS),
            ("Mul", _IDS),
            ("Div", _IDS),
            ("Min", _IDS),
            ("Max", _IDS),
            ("Update", _DISTINCT),
        )
    },
)(_scatter)


def _places_body(emit: Emitter, piece: Piece) -> Any:
    if piece.specs[1].shape[-1] == 1:
        return _rows_body(1, (2,), depth=True)(emit, piece)
    return emit.add(piece.node.op, piece.inputs, piece.node.attrs, outputs=0)


def _scatter_places(variable: Any, places: Any, updates: Any) -> Any:
    """The part at a place changed by the updates for it; of places of several dimensions these stay
    whole.
    """
    depth, lead = places.shape[-1], places.rank - 1

    def element(*i: Any) -> Any:
        def change(*n: Any) -> Any:
            return apply(places[(*n, slice(None))], updates[(*n, *i[depth:])])

        if depth > 1:
            Opaque()[i[:depth]]
        return apply(variable[i], Sum(change, n=places.shape[:-1]) if lead else change())

    return element


_PLACES = np.asarray([[3], [0], [4], [1]], np.int64)
_PAIRS = np.asarray([[3, 0], [4, 1], [0, 3]], np.int32)

op(
    "ResourceScatterNdAdd",
    "ResourceScatterNdSub",
    "ResourceScatterNdUpdate",
    "ResourceScatterNdMin",
    "ResourceScatterNdMax",
    body=_places_body,
    flops=lambda inputs, outputs, attributes: inputs[2].size,
    samples=(
        Sample((_X, _PLACES, ((4, 4), "float64")), _CUT),
        Sample((_X, _PLACES.reshape(2, 2, 1), ((2, 2, 4), "float64")), _CUT),
        Sample((_X, _PAIRS, ((3,), "float64")), {"": ()}),
        Sample((((5, 4, 3), "float64"), _PAIRS, ((3, 3), "float64")), {"": ("i2",)}),
    ),
)(_scatter_places)

# As UPDATES; r: gradient rows, n: their indices, p: a negative power.
SPARSE_UPDATES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ResourceSparseApplyMomentum": ("vvsrns", {}),
    "ResourceSparseApplyKerasMomentum": ("vvsrns", {"use_nesterov": True}),
    "ResourceSparseApplyAdagrad": ("vvsrn", {}),
    "ResourceSparseApplyAdagradV2": ("vvssrn", {}),
    "ResourceSparseApplyAdadelta": ("vvvsssrn", {}),
    "ResourceSparseApplyFtrl": ("vvvrnsssp", {}),
    "ResourceSparseApplyFtrlV2": ("vvvrnssssp", {}),
    "ResourceSparseApplyRMSProp": ("vvvssssrn", {}),
    "ResourceSparseApplyCenteredRMSProp": ("vvvvssssrn", {}),
    "ResourceSparseApplyProximalAdagrad": ("vvsssrn", {}),
    "ResourceSparseApplyProximalGradientDescent": ("vsssrn", {}),
}


def _sparse_update(kinds: str) -> Any:
    def describe(*operands: Any, out: tuple[tuple[int, ...], ...]) -> Any:
        def element(*i: Any) -> Any:
            def change(n: Any) -> Any:
                rows = (
                    x[n] if kind == "n" else x[(n, *i[1:])]
                    for kind, x in zip(kinds, operands, strict=True)
                    if kind in "nr"
                )
                return apply(*rows)

            own = (
                x[()] if kind in "sp" else x[i]
                for kind, x in zip(kinds, operands, strict=True)
                if kind in "vsp"
            )
            return apply(*own, Sum(lambda n: change(n)))

        return tuple(element for _ in out)

    return describe


def _sparse_sample(kinds: str, attrs: Mapping[str, Any]) -> Sample:
    given = {"v": _X, "s": _S, "r": ((4, 4), "float64"), "n": _DISTINCT, "p": np.asarray(-0.5)}
    return Sample(tuple(given[k] for k in kinds), _CUT, attrs, low=0.3, high=0.8)


for _name, (_kinds, _attrs) in SPARSE_UPDATES.items():
    op(
        _name,
        body=_rows_body(_kinds.index("n"), (_kinds.index("r"),)),
        flops=lambda inputs, outputs, attributes: 4 * sum(o.size for o in outputs),
        samples=(_sparse_sample(_kinds, _attrs),),
    )(_sparse_update(_kinds))
