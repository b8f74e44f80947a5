"""Trains a Keras model partitioned over k devices on scikit-learn's handwritten digits.

  python examples/train_digits.py --model=cnn --devices=8 --check

With --check the same model trains on one device too, from the same weights and data, and once
more with every weight moved to a neighbouring float: that run shows what rounding alone does.
Exit code 1 when the validation accuracy stays at or below 95%, or when the partitioned run leaves
the tolerance; 2 when the model cannot be distributed as asked.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tf_keras as keras
from absl import app, flags
from models import MODELS, build_model
from sklearn import datasets

import tofu_tf

OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "nesterov": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    "adam": lambda rate: keras.optimizers.Adam(rate),
    "adamw": lambda rate: keras.optimizers.AdamW(rate),
}
# Learning rate where none is given, by kind of optimizer.
RATES = {"sgd": 0.1, "momentum": 0.05, "nesterov": 0.05, "adam": 0.002, "adamw": 0.002}
DIGITS_MODELS = sorted(set(MODELS) - {"vgg", "resnet"})  # 8x8 images are too small for those

WANTED = 0.95  # validation accuracy
STEPS = 5  # after which weights are compared
RTOL, ATOL = 1e-4, 1e-5  # float32 after a few steps of SGD: sums in another order

_MODEL = flags.DEFINE_enum("model", "mlp", DIGITS_MODELS, "What to train.")
_DEVICES = flags.DEFINE_integer("devices", 8, "Over how many devices.", lower_bound=1)
_DEVICE_TYPE = flags.DEFINE_enum(
    "device_type", "CPU", ["CPU", "GPU"], "CPU makes that many logical CPUs of this host's."
)
_CHECK = flags.DEFINE_bool("check", False, "Train on one device as well, and compare.")
_EPOCHS = flags.DEFINE_integer("epochs", 10, "How often to go through the data.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Examples per step; the last step has fewer.", 1)
_OPTIMIZER = flags.DEFINE_enum("optimizer", "momentum", sorted(OPTIMIZERS), "The update rule.")
_RATE = flags.DEFINE_float(
    "learning_rate",
    None,
    "Learning rate; by default " + ", ".join(f"{v} ({k})" for k, v in RATES.items()) + ".",
    lower_bound=0.0,
)
_SEED = flags.DEFINE_integer("seed", 0, "Of weights and of the order of the data.", lower_bound=0)
_VERBOSE = flags.DEFINE_enum("progress", "epoch", ["off", "bar", "epoch"], "Keras's progress.")

flags.register_validator(
    "learning_rate", lambda rate: rate is None or rate > 0, "a learning rate is above 0"
)


@dataclasses.dataclass(frozen=True)
class Data:
    """Images (n, 8, 8, 1) in [0, 1] and their digits, for training and validation."""

    x: np.ndarray
    y: np.ndarray
    x_validation: np.ndarray
    y_validation: np.ndarray


@dataclasses.dataclass(frozen=True)
class Run:
    """Keras's history of a run, and the mean losses and the weights after its first steps."""

    history: dict[str, list[float]]
    first_losses: list[float]
    weights: list[np.ndarray]
    seconds: float


class _FirstSteps(keras.callbacks.Callback):
    """Keeps the mean loss so far at each of the first steps, and the weights after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.weights: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if len(self.losses) < STEPS:
            self.losses.append(float(logs["loss"]))
            if len(self.losses) == STEPS:
                self.weights = self.model.get_weights()


def load_digits(seed: int) -> Data:
    """scikit-learn's 1797 digits in an order drawn from `seed`, a fifth of them for validation."""
    images, digits = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(seed).permutation(len(images))
    x = (images[order] / 16).astype("float32").reshape(-1, 8, 8, 1)
    y = digits[order].astype("int32")
    cut = len(x) * 4 // 5
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def make_model(weights: Sequence[np.ndarray] | None = None) -> keras.Model:
    """The compiled model that the flags name, with these weights if given."""
    model = build_model(_MODEL.value, input_shape=(8, 8, 1), classes=10)
    rate = RATES[_OPTIMIZER.value] if _RATE.value is None else _RATE.value
    model.compile(
        OPTIMIZERS[_OPTIMIZER.value](rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if weights is not None:
        model.set_weights(weights)
    return model


def train(model: keras.Model, data: Data, progress: str) -> Run:
    """Keras's own `fit`, on the data in their order: every run sees the same batches."""
    first = _FirstSteps()
    start = time.perf_counter()
    fitted = model.fit(
        data.x,
        data.y,
        batch_size=_BATCH.value,
        epochs=_EPOCHS.value,
        shuffle=False,
        validation_data=(data.x_validation, data.y_validation),
        callbacks=[first],
        verbose={"off": 0, "bar": 1, "epoch": 2}[progress],
    )
    return Run(fitted.history, first.losses, first.weights, time.perf_counter() - start)


def neighbours(weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Every float moved by one unit in its last place, up or down."""
    signs = np.random.RandomState(seed)
    return [
        np.nextafter(w, np.where(signs.rand(*w.shape) < 0.5, -np.inf, np.inf).astype(w.dtype))
        for w in weights
    ]


def farthest(values: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest absolute difference."""
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0.0))
        for a, b in zip(values, others, strict=True)
    )


def within_tolerance(run: Run, oracle: Run) -> bool:
    """Whether losses and weights of the first steps are equal up to rounding."""
    pairs = [
        (run.first_losses, oracle.first_losses),
        *zip(run.weights, oracle.weights, strict=True),
    ]
    return all(np.allclose(a, b, RTOL, ATOL) for a, b in pairs)


def compare(run: Run, data: Data, weights: Sequence[np.ndarray]) -> bool:
    """Trains on one device, prints how far the partitioned run is from it; False when too far."""
    one = train(make_model(weights), data, "off")
    moved = train(make_model(neighbours(weights, _SEED.value)), data, "off")
    print(
        f"\none device trained in {one.seconds:.1f} s\nepoch  loss, {_DEVICES.value} devices",
        end="",
    )
    print("  loss, one device  one device, weights moved by 1 ulp")
    curves = [r.history["loss"] for r in (run, one, moved)]
    for epoch, (ours, theirs, other) in enumerate(zip(*curves, strict=True), start=1):
        print(f"{epoch:5d}  {ours:15.8f}  {theirs:16.8f}  {other:34.8f}")
    print(f"largest difference from one device           {_DEVICES.value} devices  1 ulp")
    for what, a, b, c in (
        ("loss of an epoch", *curves),
        (f"mean loss so far, steps 1 to {STEPS}", *(r.first_losses for r in (run, one, moved))),
        (f"weights after {STEPS} steps", *(r.weights for r in (run, one, moved))),
    ):
        print(f"  {what:40s}  {farthest(a, b):9.2e}  {farthest(c, b):8.2e}")
    fits = within_tolerance(run, one)
    print(f"after {STEPS} steps {'within' if fits else 'OUTSIDE'} rtol {RTOL}, atol {ATOL}")
    if not fits and _OPTIMIZER.value.startswith("adam"):
        print(
            "not held against it: Adam divides by roots of tiny gradients and so magnifies rounding"
        )
        return True
    return fits


def main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1:
        raise app.UsageError(f"what is {' '.join(arguments[1:])!r}? Only flags are taken.")
    try:
        return show()
    except tofu_tf.TofuError as error:  # says itself where, what and what to do
        print(error, file=sys.stderr)
        return 2


def show() -> int:
    """Plans, trains, prints and, with --check, compares; the exit code."""
    if _DEVICE_TYPE.value == "CPU":
        tofu_tf.use_cpus(_DEVICES.value)
    keras.utils.set_random_seed(_SEED.value)
    data = load_digits(_SEED.value)
    if len(data.x) < _BATCH.value * STEPS:
        raise app.UsageError(f"--batch: at most {len(data.x) // STEPS}, for {STEPS} steps an epoch")
    model = make_model()
    weights = model.get_weights()

    start = time.perf_counter()
    batch = (data.x[: _BATCH.value], data.y[: _BATCH.value])
    model = tofu_tf.distribute(
        model, devices=_DEVICES.value, device_type=_DEVICE_TYPE.value, batch=batch
    )
    print(model.tofu.plan)
    print(f"planned in {time.perf_counter() - start:.1f} s\n", flush=True)
    run = train(model, data, _VERBOSE.value)
    accuracy = run.history["val_accuracy"][-1]
    enough = accuracy > WANTED
    print(f"\n{_DEVICES.value} devices: {run.seconds:.1f} s with set-up,", end=" ")
    print(f"validation accuracy {accuracy:.4f}, {'above' if enough else 'NOT above'} {WANTED}")
    equal = compare(run, data, weights) if _CHECK.value else True
    return 0 if enough and equal else 1


if __name__ == "__main__":
    app.run(main)
