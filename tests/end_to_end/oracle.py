"""The same Keras model, seed and data on one device and over k: all that training leaves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

import tofu_tf
from tofu_tf.report import checking, counting

# Five steps in float32 (float64), whose sums run in another order.
FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}
FLOAT64 = {"rtol": 1e-9, "atol": 1e-9}

Make = Callable[[], keras.Model]


@dataclasses.dataclass(frozen=True)
class Left:
    """What a run leaves: mean losses after each batch, Keras's history, every variable's value."""

    losses: list[float]
    history: dict[str, list[float]]
    state: dict[str, np.ndarray]


class _Losses(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def train(model: keras.Model, data: Sequence[np.ndarray], batch: int, **fit: Any) -> Left:
    """Keras's own fit on the data in their order."""
    kept = _Losses()
    options = {"epochs": 1, "shuffle": False, "verbose": 0, **fit}
    x, y, *weights = data
    fitted = model.fit(
        x,
        y,
        batch_size=batch,
        sample_weight=weights[0] if weights else None,
        callbacks=[kept],
        **options,
    )
    return Left(kept.losses, fitted.history, dict(state(model)))


def state(model: keras.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Every variable by a distinct name: weights, optimizer, metrics, counters."""
    optimizer = model.optimizer.variables
    groups = {
        "weight": model.weights,
        "optimizer": optimizer() if callable(optimizer) else optimizer,
        "metric": [v for metric in model.metrics for v in metric.variables],
        "counter": [model._train_counter],
    }
    for group, variables in groups.items():
        for i, variable in enumerate(variables):
            yield f"{group}{i} {variable.name}", np.asarray(variable.numpy())


@contextlib.contextmanager
def floatx(dtype: str) -> Iterator[None]:
    """Keras layers made inside compute in `dtype`."""
    before = keras.backend.floatx()
    keras.backend.set_floatx(dtype)
    try:
        yield
    finally:
        keras.backend.set_floatx(before)


def in_float64(make: Make) -> Make:
    def double() -> keras.Model:
        with floatx("float64"):
            return make()

    return double


def made(make: Make, seed: int = 1) -> keras.Model:
    """A model of `make`; equal for equal seeds."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    return make()


def distributed(make: Make, k: int, seed: int = 1, **options: Any) -> keras.Model:
    """The same model over k logical CPUs; an op that could only run whole is refused unless asked
    for.
    """
    options = {"undescribed": "refuse", **options}
    return tofu_tf.distribute(made(make, seed), k, device_type="CPU", **options)


def check(
    make: Make,
    data: Sequence[np.ndarray],
    k: int,
    *,
    batch: int,
    tolerance: dict[str, float] = FLOAT32,
    constraints: dict[str, Any] | None = None,
    lowering: str | None = None,
    undescribed: str = "refuse",
    **fit: Any,
) -> keras.Model:
    """The distributed model after training, which has left what one device leaves."""
    one = train(made(make), data, batch, **fit)
    options = {"undescribed": undescribed, **({"lowering": lowering} if lowering else {})}
    model = distributed(make, k, constraints=constraints, **options)
    assert_equal(train(model, data, batch, **fit), one, tolerance)
    assert_steps_hold(model)
    return model


def assert_equal(left: Left, expected: Left, tolerance: dict[str, float]) -> None:
    close = np.testing.assert_allclose
    close(left.losses, expected.losses, err_msg="loss after each batch", **tolerance)
    assert list(left.history) == list(expected.history)
    for key, values in expected.history.items():
        close(left.history[key], values, err_msg=f"history of {key}", **tolerance)
    assert list(left.state) == list(expected.state)
    for name, value in expected.state.items():
        assert left.state[name].dtype == value.dtype
        close(left.state[name], value, err_msg=name, **tolerance)


def steps(model: keras.Model) -> list[Any]:
    """Every step of a distributed model: its kind, plan, captured and placed graph."""
    found = list(model.tofu.steps)
    assert found
    return found


def assert_steps_hold(model: keras.Model) -> None:
    """Of every step: predicted bytes equal counted ones, and every node can run where it is."""
    for step in steps(model):
        placed = step.placed
        moved = counting.count_communication(
            placed.graph_def, placed.feed_nodes, placed.result_nodes
        )
        assert step.plan.predicted_bytes == moved.total, step.kind
        assert not checking.check_placement(placed.graph_def)
