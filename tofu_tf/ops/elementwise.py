"""Element-wise ops: an element depends on the same element of every input, or its broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tofu_tf.ops.parts import filled
from tofu_tf.ops.registry import Emitter, Piece, Sample, op
from tofu_tf.tdl.expressions import Opaque, apply

Describe = Any

ANY = (-2.0, 2.0)
POSITIVE = (0.2, 3.0)
UNIT = (-0.9, 0.9)
ABOVE_ONE = (1.1, 4.0)

BOTH = {"": ("i0", "i1")}


def _unary_samples(dtypes: Sequence[str], bounds: tuple[float, float]) -> tuple[Sample, ...]:
    return tuple(Sample((((5, 4), d),), BOTH, low=bounds[0], high=bounds[1]) for d in dtypes)


# Ops of one input without attributes: dtypes to try, range of the data.
UNARY: Mapping[str, tuple[Sequence[str], tuple[float, float]]] = {
    "Abs": (("float64", "int32"), ANY),
    "Neg": (("float64", "float16"), ANY),
    "Sign": (("float64",), ANY),
    "Square": (("float64", "int64"), ANY),
    "Sqrt": (("float64",), POSITIVE),
    "Rsqrt": (("float64",), POSITIVE),
    "Reciprocal": (("float64",), POSITIVE),
    "Inv": (("float64",), POSITIVE),
    "Exp": (("float64", "complex128"), ANY),
    "Expm1": (("float64",), ANY),
    "Log": (("float64",), POSITIVE),
    "Log1p": (("float64",), POSITIVE),
    "Sin": (("float64",), ANY),
    "Cos": (("float64",), ANY),
    "Tan": (("float64",), UNIT),
    "Asin": (("float64",), UNIT),
    "Acos": (("float64",), UNIT),
    "Atan": (("float64",), ANY),
    "Sinh": (("float64",), ANY),
    "Cosh": (("float64",), ANY),
    "Tanh": (("float64", "float32"), ANY),
    "Asinh": (("float64",), ANY),
    "Acosh": (("float64",), ABOVE_ONE),
    "Atanh": (("float64",), UNIT),
    "Sigmoid": (("float64", "bfloat16"), ANY),
    "Relu": (("float64", "float32"), ANY),
    "Relu6": (("float64",), (-3.0, 9.0)),
    "Elu": (("float64",), ANY),
    "Selu": (("float64",), ANY),
    "Softplus": (("float64",), ANY),
    "Softsign": (("float64",), ANY),
    "Erf": (("float64",), ANY),
    "Erfc": (("float64",), ANY),
    "Erfinv": (("float64",), UNIT),
    "Ndtri": (("float64",), (0.1, 0.9)),
    "Lgamma": (("float64",), POSITIVE),
    "Digamma": (("float64",), POSITIVE),
    "BesselI0e": (("float64",), ANY),
    "BesselI1e": (("float64",), ANY),
    "Floor": (("float64",), ANY),
    "Ceil": (("float64",), ANY),
    "Round": (("float64",), ANY),
    "Rint": (("float64",), ANY),
    "IsFinite": (("float64",), ANY),
    "IsInf": (("float32",), ANY),
    "IsNan": (("float32",), ANY),
    "LogicalNot": (("bool",), ANY),
    "Invert": (("int32",), ANY),
    "PopulationCount": (("int32",), (0, 9)),
    "Conj": (("complex64",), ANY),
    "Real": (("complex64",), ANY),
    "Imag": (("complex64",), ANY),
    "ComplexAbs": (("complex64",), ANY),
    "Angle": (("complex64",), ANY),
}

# Ops of one input with attributes.
UNARY_WITH_ATTRIBUTES: Mapping[str, Sequence[Sample]] = {
    "Cast": (
        Sample((((5, 4), "float32"),), BOTH, {"DstT": "float64"}),
        Sample((((5, 4), "int32"),), BOTH, {"DstT": "int64"}),
        Sample((((5, 4), "bool"),), BOTH, {"DstT": "float32"}),
        Sample((((5, 4), "float32"),), BOTH, {"DstT": "bfloat16", "Truncate": True}),
    ),
    "LeakyRelu": (Sample((((5, 4), "float64"),), BOTH, {"alpha": 0.3}),),
    "Bucketize": (Sample((((5, 4), "float64"),), BOTH, {"boundaries": (-1.0, 0.0, 1.0)}),),
    "FakeQuantWithMinMaxArgs": (Sample((((5, 4), "float32"),), BOTH, {"min": -1.0, "max": 1.0}),),
}


def unary(x: Any) -> Describe:
    """``f(x[i])``."""
    return lambda *i: apply(x[i])


op(
    *UNARY,
    *UNARY_WITH_ATTRIBUTES,
    elementwise=True,
    samples={**{n: _unary_samples(*v) for n, v in UNARY.items()}, **UNARY_WITH_ATTRIBUTES},
)(unary)


# Binary ops whose inputs broadcast: dtypes to try, range of the data.
BINARY: Mapping[str, tuple[Sequence[str], tuple[float, float]]] = {
    "Add": (("float64",), ANY),
    "AddV2": (("float64", "float32", "int64"), ANY),
    "Sub": (("float64", "int32"), ANY),
    "Mul": (("float64", "float16", "int64"), ANY),
    "MulNoNan": (("float64",), ANY),
    "Div": (("float64",), POSITIVE),
    "RealDiv": (("float64", "bfloat16"), POSITIVE),
    "DivNoNan": (("float64",), POSITIVE),
    "FloorDiv": (("float64", "int32"), (1, 7)),
    "TruncateDiv": (("int32",), (1, 7)),
    "FloorMod": (("float64", "int32"), (1, 7)),
    "Mod": (("int32",), (1, 7)),
    "TruncateMod": (("int32",), (1, 7)),
    "Pow": (("float64",), POSITIVE),
    "Maximum": (("float64",), ANY),
    "Minimum": (("float64",), ANY),
    "SquaredDifference": (("float64",), ANY),
    "Xdivy": (("float64",), POSITIVE),
    "Xlogy": (("float64",), POSITIVE),
    "Xlog1py": (("float64",), POSITIVE),
    "Atan2": (("float64",), ANY),
    "NextAfter": (("float64",), ANY),
    "Igamma": (("float64",), POSITIVE),
    "Igammac": (("float64",), POSITIVE),
    "Zeta": (("float64",), ABOVE_ONE),
    "Equal": (("int32", "float64"), ANY),
    "NotEqual": (("int32",), ANY),
    "Less": (("float64",), ANY),
    "LessEqual": (("int32",), ANY),
    "Greater": (("float64",), ANY),
    "GreaterEqual": (("int32",), ANY),
    "LogicalAnd": (("bool",), ANY),
    "LogicalOr": (("bool",), ANY),
    "BitwiseAnd": (("int32",), ANY),
    "BitwiseOr": (("int32",), ANY),
    "BitwiseXor": (("int32",), ANY),
    "LeftShift": (("int32",), (0, 5)),
    "RightShift": (("int32",), (0, 5)),
    "Complex": (("float32",), ANY),
}
# How two shapes may meet: equal, a row, a scalar, one in two directions.
MEETINGS = (
    (((4, 5), (4, 5)), ("i0", "i1")),
    (((4, 5), (5,)), ("i0", "i1")),
    (((), (3, 4)), ("i0", "i1")),
    (((3, 1, 2), (4, 1)), ("i0", "i1", "i2")),
)


def _binary_samples(dtypes: Sequence[str], bounds: tuple[float, float]) -> tuple[Sample, ...]:
    tried = [(dtypes[0], m) for m in MEETINGS] + [(d, MEETINGS[1]) for d in dtypes[1:]]
    return tuple(
        Sample(tuple((s, d) for s in shapes), {"": axes}, low=bounds[0], high=bounds[1])
        for d, (shapes, axes) in tried
    )


def broadcasting(*operands: Any) -> Describe:
    """``f(a[i], b[i], ...)`` with right-aligned broadcasting."""
    return lambda *i: apply(*(x.broadcast(*i) for x in operands))


op(*BINARY, elementwise=True, samples={n: _binary_samples(*v) for n, v in BINARY.items()})(
    broadcasting
)

op(
    "ClipByValue",
    "SelectV2",
    "Betainc",
    elementwise=True,
    samples={
        "ClipByValue": (
            Sample((((5, 4), "float64"), ((), "float64"), ((), "float64")), BOTH),
            Sample((((5, 4), "float64"), ((5, 4), "float64"), ((), "float64")), BOTH),
        ),
        "SelectV2": (
            Sample((((5, 4), "bool"), ((5, 4), "float64"), ((5, 4), "float64")), BOTH),
            Sample((((5, 4), "bool"), ((5, 4), "float64"), ((), "float64")), BOTH),
            Sample((((4,), "bool"), ((5, 1), "int32"), ((5, 4), "int32")), BOTH),
            Sample((((), "bool"), ((5, 4), "float64"), ((4,), "float64")), BOTH),
        ),
        "Betainc": (
            Sample(
                (((5, 4), "float64"), ((5, 4), "float64"), ((5, 4), "float64")),
                BOTH,
                low=0.2,
                high=0.9,
            ),
        ),
    },
)(broadcasting)

# Ops on inputs of one shape: gradients of the unary ones, and a few more.
SAME_SHAPE: Mapping[str, tuple[Sequence[str], tuple[float, float], Mapping[str, Any]]] = {
    "ReluGrad": (("float64", "float32"), ANY, {}),
    "Relu6Grad": (("float64",), (-3.0, 9.0), {}),
    "EluGrad": (("float64",), ANY, {}),
    "SeluGrad": (("float64",), ANY, {}),
    "LeakyReluGrad": (("float64",), ANY, {"alpha": 0.3}),
    "SoftplusGrad": (("float64",), ANY, {}),
    "SoftsignGrad": (("float64",), ANY, {}),
    "SigmoidGrad": (("float64",), UNIT, {}),
    "TanhGrad": (("float64",), UNIT, {}),
    "SqrtGrad": (("float64",), POSITIVE, {}),
    "RsqrtGrad": (("float64",), POSITIVE, {}),
    "ReciprocalGrad": (("float64",), POSITIVE, {}),
    "InvGrad": (("float64",), POSITIVE, {}),
    "ApproximateEqual": (("float64",), ANY, {"tolerance": 0.5}),
    "FakeQuantWithMinMaxArgsGradient": (("float32",), ANY, {"min": -1.0, "max": 1.0}),
    "Polygamma": (("float64",), ABOVE_ONE, {}),
    "IgammaGradA": (("float64",), POSITIVE, {}),
}


def same_shape(*operands: Any) -> Describe:
    """``f(a[i], b[i], ...)``."""
    return lambda *i: apply(*(x[i] for x in operands))


op(
    *SAME_SHAPE,
    elementwise=True,
    samples={
        n: tuple(
            Sample((((5, 4), d), ((5, 4), d)), BOTH, attrs, bounds[0], bounds[1]) for d in dtypes
        )
        for n, (dtypes, bounds, attrs) in SAME_SHAPE.items()
    },
)(same_shape)

op(
    "AddN",
    elementwise=True,
    flops=lambda inputs, outputs, attributes: (len(inputs) - 1) * outputs[0].size,
    samples=(
        Sample((((5, 4), "float64"),) * 3, BOTH),
        Sample((((5, 4), "float32"),), BOTH),
    ),
)(same_shape)


@op(
    "Select",
    elementwise=True,
    samples=(
        Sample((((5, 4), "bool"), ((5, 4), "float64"), ((5, 4), "float64")), BOTH),
        Sample((((5,), "bool"), ((5, 4), "float64"), ((5, 4), "float64")), BOTH),
        Sample((((), "bool"), ((5, 4), "float64"), ((5, 4), "float64")), BOTH),
    ),
)
def select(condition: Any, then: Any, otherwise: Any) -> Describe:
    """``condition[i] ? then[i] : otherwise[i]``; a vector `condition` chooses rows."""
    rank = condition.rank
    return lambda *i: apply(condition[i[:rank]], then[i], otherwise[i])


def _constant_body(value: float) -> Any:
    def body(emit: Emitter, piece: Piece) -> list[str]:
        return filled(emit, piece.writes[0].shape, value, piece.node.outputs[0].dtype)

    return body


def _unread(x: Any) -> Describe:
    """A constant: no element of `x` is read."""
    return lambda *i: apply()


for _name, _value in (("ZerosLike", 0), ("OnesLike", 1)):
    op(
        _name,
        body=_constant_body(_value),
        samples=(
            Sample((((5, 4), "float64"),), BOTH),
            Sample((((5, 4), "bfloat16"),), BOTH),
            Sample((((5,), "bool"),), {"": ("i0",)}),
        ),
    )(_unread)


@op(
    "Bitcast",
    samples=(
        Sample((((5, 4), "float32"),), BOTH, {"type": "int32"}),
        Sample((((5, 4), "float64"),), BOTH, {"type": "int32"}),
        Sample((((5, 2), "int32"),), {"": ("i0",)}, {"type": "int64"}),
    ),
)
def bitcast(x: Any, *, out: tuple[tuple[int, ...], ...]) -> Describe:
    """``x[i]`` read as another type: a last dimension appears or goes where the sizes differ."""
    grown = len(out[0]) - x.rank
    if grown > 0:
        return lambda *i: Opaque(x[i[:-1]])[i[-1]]
    if grown < 0:
        return lambda *i: apply(x[(*i, slice(None))])
    return lambda *i: apply(x[i])
