"""Variables changed in place: assignments, the Resource* update of every optimizer, by rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.zoo.step import Step, variable

raw = tf.raw_ops
SHAPE = (7, 5)

# Op -> its slots in order, then scalars by name.
DENSE: dict[str, tuple[str, dict[str, float]]] = {
    "AdaMax": ("m v", {"beta1_power": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-7}),
    "Adadelta": ("accum accum_update", {"rho": 0.9, "epsilon": 1e-6}),
    "Adagrad": ("accum", {}),
    "AdagradV2": ("accum", {"epsilon": 1e-6}),
    "Adam": (
        "m v",
        {"beta1_power": 0.9, "beta2_power": 0.99, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-7},
    ),
    "AdamWithAmsgrad": (
        "m v vhat",
        {"beta1_power": 0.9, "beta2_power": 0.99, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-7},
    ),
    "AddSign": ("m", {"alpha": 1.0, "sign_decay": 0.9, "beta": 0.9}),
    "CenteredRMSProp": ("mg ms mom", {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-3}),
    "Ftrl": ("accum linear", {"l1": 0.01, "l2": 0.02, "lr_power": -0.5}),
    "FtrlV2": (
        "accum linear",
        {"l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.01, "lr_power": -0.5},
    ),
    "GradientDescent": ("", {}),
    "KerasMomentum": ("accum", {"momentum": 0.9}),
    "Momentum": ("accum", {"momentum": 0.9}),
    "PowerSign": ("m", {"logbase": 1.0, "sign_decay": 0.9, "beta": 0.9}),
    "ProximalAdagrad": ("accum", {"l1": 0.01, "l2": 0.02}),
    "ProximalGradientDescent": ("", {"l1": 0.01, "l2": 0.02}),
    "RMSProp": ("ms mom", {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-3}),
}
SPARSE = [
    "Adadelta",
    "Adagrad",
    "AdagradV2",
    "CenteredRMSProp",
    "Ftrl",
    "FtrlV2",
    "KerasMomentum",
    "Momentum",
    "ProximalAdagrad",
    "ProximalGradientDescent",
    "RMSProp",
]
# Ops that name an argument otherwise.
RENAMED = {
    "GradientDescent": {"lr": "alpha", "grad": "delta"},
    "ProximalGradientDescent": {"lr": "alpha", "grad": "delta"},
}
SPARSE_RENAMED = {"ProximalGradientDescent": {"lr": "alpha"}}


def _variables(slots: str) -> list[tf.Variable]:
    random = np.random.default_rng(len(slots))
    # Accumulators are positive; a mean of squares is above the square of the mean.
    values = {"var": random.normal(size=SHAPE), "linear": random.normal(size=SHAPE)}
    values |= {"mg": random.uniform(0, 0.1, SHAPE), "m": random.normal(size=SHAPE)}
    names = ["var", *slots.split()]
    return [variable(values.get(n, random.uniform(0.5, 1.5, SHAPE))) for n in names]


def _arguments(
    op: str, held: list[tf.Variable], renamed: dict[str, str], **given: Any
) -> dict[str, Any]:
    slots, scalars = DENSE[op]
    found: dict[str, Any] = dict(zip(["var", *slots.split()], held, strict=True))
    found = {name: v.handle for name, v in found.items()}
    found |= {name: tf.constant(s, tf.float64) for name, s in scalars.items()}
    found |= {renamed.get(name, name): value for name, value in given.items()}
    return found


def dense() -> Step:
    """Every optimizer's update of a whole variable."""
    held = {op: _variables(slots) for op, (slots, _) in DENSE.items()}

    def step(grad: Any, rate: Any) -> Any:
        for op, variables in held.items():
            renamed = RENAMED.get(op, {})
            arguments = _arguments(op, variables, renamed, lr=rate, grad=grad)
            getattr(raw, f"ResourceApply{op}")(**arguments)
        return rate * 2

    random = np.random.default_rng(3)
    return Step(step, (random.normal(size=SHAPE), np.asarray(0.1)))


def sparse() -> Step:
    """Every optimizer's update of some rows."""
    held = {op: _variables(DENSE[op][0]) for op in SPARSE}

    def step(grad: Any, rows: Any, rate: Any) -> Any:
        for op, variables in held.items():
            renamed = SPARSE_RENAMED.get(op, {})
            arguments = _arguments(op, variables, renamed, lr=rate, grad=grad, indices=rows)
            if op == "Adadelta":
                arguments["lr"] = rate
            getattr(raw, f"ResourceSparseApply{op}")(**arguments)
        return rate * 2

    random = np.random.default_rng(4)
    rows = np.array([5, 0, 3])
    return Step(step, (random.normal(size=(3, SHAPE[1])), rows, np.asarray(0.1)))


SCATTERS = ["Add", "Div", "Max", "Min", "Mul", "Sub", "Update"]


PLACES = ["Add", "Max", "Min", "Sub", "Update"]


def assigned() -> Step:
    """Assignments of the whole and of rows, between reads."""
    random = np.random.default_rng(5)
    whole = variable(random.normal(size=SHAPE))
    by_rows = {op: variable(random.normal(size=SHAPE)) for op in SCATTERS}
    by_places = {op: variable(random.normal(size=SHAPE)) for op in PLACES}

    def step(x: Any, rows: Any, values: Any, pairs: Any) -> Any:
        before = tf.reduce_sum(whole)
        whole.assign_add(x)
        middle = tf.reduce_sum(whole, 0)
        whole.assign_sub(0.3 * x)
        picked = [tf.gather(whole, rows), tf.gather_nd(whole, pairs)]
        whole.assign(2 * whole)
        for op, v in by_rows.items():
            getattr(raw, f"ResourceScatter{op}")(resource=v.handle, indices=rows, updates=values)
        for op, v in by_places.items():
            scatter = getattr(raw, f"ResourceScatterNd{op}")
            scatter(ref=v.handle, indices=pairs, updates=values[0, :4])
        return before, middle, *picked

    rows = np.array([5, 0, 3])
    pairs = np.array([[1, 2], [6, 4], [0, 0], [3, 2]])
    return Step(step, (random.normal(size=SHAPE), rows, random.normal(size=(3, 5)), pairs))
