"""Trains by a loop of one's own, with tf.GradientTape and no Keras, partitioned over k devices.

  python examples/custom_loop.py --devices=4 --check

A network of plain variables learns scikit-learn's handwritten digits. Its step is an ordinary
Python function under `tofu_tf.function`; between the steps the loop reads and changes variables.
With --check the same loop runs under tf.function on one device too. Exit code 1 when the validation
accuracy stays at or below 95%, or when losses and weights leave the tolerance; 2 when the step
cannot be partitioned.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn import datasets

import tofu_tf

WANTED = 0.95  # validation accuracy
RTOL, ATOL = 1e-4, 1e-5  # float32 after a few steps: sums in another order
CHECKED = 5  # steps after which losses and weights are compared

_DEVICES = flags.DEFINE_integer("devices", 4, "Over how many devices.", lower_bound=1)
_DEVICE_TYPE = flags.DEFINE_enum(
    "device_type", "CPU", ["CPU", "GPU"], "CPU makes that many logical CPUs of this host's."
)
_CHECK = flags.DEFINE_bool("check", False, "Train on one device as well, and compare.")
_EPOCHS = flags.DEFINE_integer("epochs", 8, "How often to go through the data.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Examples per step; the last step has fewer.", 1)
_UNITS = flags.DEFINE_integer("units", 256, "Of each hidden layer.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of weights and of the order of the data.", lower_bound=0)
_REPORT = flags.DEFINE_bool("report", False, "Print what each device does and what moves.")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a loop leaves: the first losses, the weights after those, the validation accuracy."""

    losses: list[float]
    weights: list[np.ndarray]
    accuracy: float


class Network(tf.Module):
    """Three layers of plain variables, trained by momentum; made on the first step."""

    def __init__(self, units: int, seed: int) -> None:
        super().__init__()
        self._units, self._seed = units, seed
        self.weights: list[tf.Variable] = []
        self.slots: list[tf.Variable] = []

    def make(self, pixels: int, classes: int) -> None:
        """The variables."""
        sizes = (pixels, self._units, self._units, classes)
        random = np.random.RandomState(self._seed)
        for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
            start = random.normal(0, rows**-0.5, (rows, columns)).astype("float32")
            self.weights.append(tf.Variable(start, name=f"kernel{i}"))
            self.weights.append(tf.Variable(np.zeros(columns, "float32"), name=f"bias{i}"))
        for weight in self.weights:
            zeros = tf.zeros(weight.shape)
            self.slots.append(tf.Variable(zeros, trainable=False, name=f"{weight.name[:-2]}/slot"))

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """(n, classes)."""
        for i in range(0, len(self.weights), 2):
            x = tf.nn.bias_add(tf.matmul(x, self.weights[i]), self.weights[i + 1])
            if i + 2 < len(self.weights):
                x = tf.nn.relu(x)
        return x

    def step(self, batch: dict[str, tf.Tensor], rate: tf.Tensor) -> tf.Tensor:
        """One update; the mean loss before it."""
        if not self.weights:
            self.make(batch["x"].shape[1], 10)
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                batch["y"], self.logits(batch["x"])
            )
            loss = tf.reduce_mean(each)
        gradients = tape.gradient(loss, self.weights)
        for i, gradient in enumerate(gradients):
            self.slots[i].assign(0.9 * self.slots[i] + gradient)
            self.weights[i].assign_sub(rate * self.slots[i])
        return loss


def train(network: Network, step: Callable[..., Any], logits: Callable[..., Any]) -> Run:
    """A loop like any other: batches of two sizes, a rate that falls, weights clipped by hand."""
    images, digits = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(_SEED.value).permutation(len(images))
    x, y = (images[order] / 16).astype("float32"), digits[order].astype("int32")
    cut = len(x) * 4 // 5
    losses: list[float] = []
    weights: list[np.ndarray] = []
    for epoch in range(_EPOCHS.value):
        rate = tf.constant(0.1 / (1 + epoch))
        for start in range(0, cut, _BATCH.value):
            rows = slice(start, min(start + _BATCH.value, cut))
            loss = step({"x": x[rows], "y": y[rows]}, rate)
            if len(losses) < CHECKED:
                losses.append(float(loss))
                last = network.weights[-2]
                last.assign(tf.clip_by_value(last, -0.5, 0.5))
                weights = [weight.numpy() for weight in network.weights]
    guesses = np.argmax(logits(tf.constant(x[cut:])), axis=1)
    return Run(losses, weights, float(np.mean(guesses == y[cut:])))


def within_tolerance(run: Run, one: Run) -> bool:
    """Prints how far the first losses and weights are from one device's; whether that is near."""
    pairs = [(run.losses, one.losses), *zip(run.weights, one.weights, strict=True)]
    far = [float(np.max(np.abs(np.subtract(a, b)))) for a, b in pairs]
    fits = all(np.allclose(a, b, RTOL, ATOL) for a, b in pairs)
    print(f"one device: validation accuracy {one.accuracy:.4f}")
    print(f"after {len(run.losses)} steps losses differ by {far[0]:.2e}, weights by", end=" ")
    print(f"{max(far[1:]):.2e}: {'within' if fits else 'OUTSIDE'} rtol {RTOL}, atol {ATOL}")
    return fits


def main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1:
        raise app.UsageError(f"what is {' '.join(arguments[1:])!r}? Only flags are taken.")
    if _DEVICE_TYPE.value == "CPU":
        tofu_tf.use_cpus(_DEVICES.value)
    options = {"devices": _DEVICES.value, "device_type": _DEVICE_TYPE.value}
    network = Network(_UNITS.value, _SEED.value)
    step = tofu_tf.function(network.step, **options)
    try:
        run = train(network, step, tofu_tf.function(network.logits, **options))
    except tofu_tf.TofuError as error:
        print(error, file=sys.stderr)
        return 2
    print(step.plan)
    if _REPORT.value:
        print(tofu_tf.describe(step.concrete_functions[0]))
    enough = run.accuracy > WANTED
    print(f"{_DEVICES.value} devices: validation accuracy {run.accuracy:.4f}", end=", ")
    print(f"{'above' if enough else 'NOT above'} {WANTED}")
    equal = True
    if _CHECK.value:
        plain = Network(_UNITS.value, _SEED.value)
        equal = within_tolerance(run, train(plain, tf.function(plain.step), plain.logits))
    return 0 if enough and equal else 1


if __name__ == "__main__":
    app.run(main)
