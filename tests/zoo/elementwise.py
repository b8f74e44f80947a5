"""Element by element: every such op, on values that it is defined for."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.zoo.step import Step

raw = tf.raw_ops
ROWS, COLUMNS = 5, 7
SHAPE = (ROWS, COLUMNS)

# Of x in (0, 1).
UNARY = [
    "Abs",
    "Acos",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BesselI0e",
    "BesselI1e",
    "Ceil",
    "Cos",
    "Cosh",
    "Digamma",
    "Elu",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Expm1",
    "Floor",
    "Inv",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "Lgamma",
    "Log",
    "Log1p",
    "Ndtri",
    "Neg",
    "OnesLike",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rint",
    "Round",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "Tan",
    "Tanh",
    "ZerosLike",
]
# Of x and y in (0, 1).
BINARY = [
    "Add",
    "AddV2",
    "Atan2",
    "Div",
    "DivNoNan",
    "FloorDiv",
    "FloorMod",
    "Igamma",
    "IgammaGradA",
    "Igammac",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "MulNoNan",
    "NextAfter",
    "Pow",
    "RealDiv",
    "SquaredDifference",
    "Sub",
    "TruncateMod",
    "Xdivy",
    "Xlog1py",
    "Xlogy",
    "ApproximateEqual",
    "Equal",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "NotEqual",
]
SAME_SHAPE = ("ApproximateEqual", "IgammaGradA")
# Of a value and what flows back to it, by the names of their arguments.
GRADIENTS = {
    "EluGrad": "gradients outputs",
    "InvGrad": "dy y",
    "LeakyReluGrad": "gradients features",
    "ReciprocalGrad": "dy y",
    "Relu6Grad": "gradients features",
    "ReluGrad": "gradients features",
    "RsqrtGrad": "dy y",
    "SeluGrad": "gradients outputs",
    "SigmoidGrad": "dy y",
    "SoftplusGrad": "gradients features",
    "SoftsignGrad": "gradients features",
    "SqrtGrad": "dy y",
    "TanhGrad": "dy y",
}
BITS = ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "TruncateDiv"]


def _called(name: str, *values: Any) -> Any:
    function = getattr(raw, name)
    names = list(function.__signature__.parameters)
    return function(**dict(zip(names, values, strict=False)))


def unary() -> Step:
    def step(x: Any) -> Any:
        found = [_called(name, x) for name in UNARY]
        found.append(raw.Acosh(x=1 + x))
        found.append(raw.CheckNumerics(tensor=x, message="no number"))
        found.append(raw.ClipByValue(t=x, clip_value_min=0.2, clip_value_max=0.7))
        found.append(raw.Bucketize(input=x, boundaries=[0.2, 0.5, 0.8]))
        found.append(raw.Cast(x=9 * x, DstT=tf.int32))
        return found

    return Step(step, (_inner(0),))


def binary() -> Step:
    def step(x: Any, y: Any, row: Any) -> Any:
        found = [_called(name, x, y) for name in BINARY]
        found += [_called(name, x, row) for name in BINARY if name not in SAME_SHAPE]
        found.append(raw.Polygamma(a=tf.ones_like(x), x=y))
        found.append(raw.Zeta(x=1 + x, q=y))
        found.append(raw.Betainc(a=x, b=y, x=(x + y) / 2))
        found.append(raw.AddN(inputs=[x, y, x]))
        return found

    return Step(step, (_inner(1), _inner(2), _inner(3)[0]))


def gradients() -> Step:
    def step(x: Any, y: Any) -> Any:
        found = []
        for name, arguments in GRADIENTS.items():
            found.append(getattr(raw, name)(**dict(zip(arguments.split(), (x, y), strict=True))))
        return found

    return Step(step, (_inner(4) - 0.5, _inner(5) - 0.5 + 0.01))


def bits() -> Step:
    """Integers and truth."""

    def step(a: Any, b: Any) -> Any:
        found = [_called(name, a, b) for name in BITS]
        found += [raw.Invert(x=a), raw.PopulationCount(x=a), raw.Bitcast(input=a, type=tf.int64)]
        p, q = a > 5, b > 2
        found += [raw.LogicalAnd(x=p, y=q), raw.LogicalOr(x=p, y=q), raw.LogicalNot(x=p)]
        found += [raw.Select(condition=p, x=a, y=b), raw.SelectV2(condition=p, t=a, e=b[0])]
        found += [raw.All(input=p, axis=[1]), raw.Any(input=q, axis=[0])]
        return found

    random = np.random.default_rng(6)
    return Step(step, (random.integers(0, 40, SHAPE), random.integers(1, 5, SHAPE)))


def quantised() -> Step:
    """What has kernels for 32 bits only."""

    def step(x: Any, y: Any) -> Any:
        levels = {"min": -0.8, "max": 0.7, "num_bits": 4}
        found = [raw.FakeQuantWithMinMaxArgs(inputs=x, **levels)]
        found.append(raw.FakeQuantWithMinMaxArgsGradient(gradients=y, inputs=x, **levels))
        return found

    random = np.random.default_rng(7)
    return Step(step, tuple(random.uniform(-1, 1, SHAPE).astype("float32") for _ in "xy"), 1e-6)


def _inner(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.05, 0.95, SHAPE)
