"""A program that captures one of Tofu's large models abstractly and prints what that took.

``python -m tests.capture.large NAME`` prints JSON: seconds to make the model and to capture its
step, by how many bytes memory grew, how many bytes the variables stand for, nodes of the graph.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tofu_tf.capture.keras_steps import capture_step

Made = tuple[keras.Model, Any]


def recurrent(layers: int, hidden: int, steps: int, batch: int, width: int) -> Made:
    """Tofu's RNN-`layers`-`hidden`: unrolled LSTM layers, then a layer of `width` outputs."""
    model = keras.Sequential([keras.layers.Input((steps, width), batch)])
    for i in range(layers):
        model.add(keras.layers.LSTM(hidden, return_sequences=True, unroll=True, name=f"lstm{i}"))
    model.add(keras.layers.Dense(width, name="outputs"))
    model.compile("adam", "mse")
    return model, tuple(tf.TensorSpec((batch, steps, width)) for _ in "xy")


def wide_resnet(depth: int, width: int, batch: int) -> Made:
    """Tofu's WResNet-`depth`-`width` on images of 224 x 224."""
    from models.residual import resnet

    model = resnet(depth=depth, width=width)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model, (tf.TensorSpec((batch, 224, 224, 3)), tf.TensorSpec((batch,), tf.int32))


MODELS: dict[str, Callable[[], Made]] = {
    "rnn-2-small": lambda: recurrent(2, 16, 3, 4, 8),
    "rnn-10-8k": lambda: recurrent(10, 8192, 20, 128, 512),
    "wresnet-152-10": lambda: wide_resnet(152, 10, 8),
}


def grown(before: int) -> int:
    """By how many bytes the resident memory of this process has grown at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def main(name: str) -> None:
    keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])  # loads what is lazy
    before, start = grown(0), time.perf_counter()
    with tofu_tf.abstract():
        model, data = MODELS[name]()
    made = time.perf_counter()
    captured = capture_step(model, "train", data, abstract=True)
    done = time.perf_counter()
    found = {
        "make": round(made - start, 1),
        "capture": round(done - made, 1),
        "grown": grown(before),
        "held": sum(v.spec.nbytes for v in captured.graph.variables.values()),
        "nodes": len(captured.graph.nodes),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
