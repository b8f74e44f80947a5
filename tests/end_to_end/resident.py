"""Prints the resident megabytes of a process before `distribute` and after each of the first steps.

  python resident.py OPTIMIZER K

A program of its own, as a process's memory is only its own once.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

import numpy as np
import tf_keras as keras

import tofu_tf

WIDTH, LAYERS, BATCH, STEPS = 4096, 3, 8, 3  # 201 MB of weights


def resident() -> float:
    """Megabytes of this process's memory that are in use now."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # it keeps what was freed, as much as 40% here
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(optimizer: str, k: int) -> None:
    tofu_tf.use_cpus(k)
    model = keras.Sequential([keras.layers.Input((WIDTH,))])
    for i in range(LAYERS):
        model.add(keras.layers.Dense(WIDTH, "relu", name=f"dense{i}"))
    model.compile(keras.optimizers.get(optimizer), "mse")
    model.optimizer.build(model.trainable_variables)  # slots are there before, as after
    x = np.random.RandomState(0).rand(BATCH, WIDTH).astype("float32")
    held = sum(v.numpy().nbytes for v in (*model.weights, *model.optimizer.variables)) / 1e6
    # What the first run of anything costs: kernels, threads.
    model.predict(x, verbose=0)
    print("variables", held)
    print("before", resident())
    model = tofu_tf.distribute(model, k, device_type="CPU")
    for step in range(STEPS):
        model.train_on_batch(x, x)
        print(f"step{step}", resident())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
