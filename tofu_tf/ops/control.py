"""Ops that pass a value on: identities, gradient barriers, checks."""

from __future__ import annotations

from typing import Any

from tofu_tf.ops.parts import passed
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Named, apply

_BOTH = {"": ("i0", "i1")}
_F64 = (((5, 4), "float64"),)


def same_value(x: Any) -> Any:
    """``x[i]``."""
    return lambda *i: x[i]


op(
    "Identity",
    "StopGradient",
    "PreventGradient",
    "Snapshot",
    "CheckNumerics",
    elementwise=True,
    flops=lambda inputs, outputs, attributes: 0,
    samples={
        "Identity": (Sample(_F64, _BOTH), Sample((((), "float32"),), {"": ()})),
        "StopGradient": (Sample(_F64, _BOTH),),
        "PreventGradient": (Sample(_F64, _BOTH),),
        "Snapshot": (Sample(_F64, _BOTH),),
        "CheckNumerics": (Sample(_F64, _BOTH, {"message": "not finite"}),),
    },
)(same_value)


def _identity(emit: Emitter, piece: Piece) -> list[str]:
    # the attribute names the whole shape, which a piece has not
    return passed(emit, piece.inputs[0], piece.node.outputs[0].dtype)


op(
    "EnsureShape",
    body=_identity,
    elementwise=True,
    flops=lambda inputs, outputs, attributes: 0,
    samples=(Sample(_F64, _BOTH, {"shape": (5, 4)}),),
)(same_value)


@op(
    "PlaceholderWithDefault",
    body=_identity,
    elementwise=True,
    flops=lambda inputs, outputs, attributes: 0,
    samples=(Sample(_F64, _BOTH, {"shape": (5, 4)}),),
)
def default_value(x: Any) -> Any:
    """``x[i]``: inside a step nothing else is fed."""
    return lambda *i: apply(x[i])


@op(
    "IdentityN",
    flops=lambda inputs, outputs, attributes: 0,
    samples=(
        Sample(
            (((5, 4), "float64"), ((3,), "int32"), ((), "float32")),
            {"": ("x0d0", "x0d1", "x1d0")},
        ),
    ),
)
def identities(*operands: Any) -> Any:
    """Every input, along axes of its own."""
    return tuple(
        Named(tuple(f"x{n}d{d}" for d in range(x.rank)), lambda *i, x=x: x[i])
        for n, x in enumerate(operands)
    )
