"""Unrolled recurrent nets, cut over k devices: no loop is left, so nothing runs whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle

L = keras.layers
R = np.random.RandomState(0)
ROWS, STEPS, FEATURES, UNITS, CLASSES = 13, 4, 10, 12, 11
# Two batches of 13 rows; activations of 13 x 12 doubles are large enough to be cut.
X = R.rand(2 * ROWS, STEPS, FEATURES) + 0.1
X_MASKED = X.copy()
for row, length in enumerate(R.randint(1, STEPS + 1, 2 * ROWS)):
    X_MASKED[row, length:] = 0.0
Y = R.randint(0, CLASSES, 2 * ROWS)
EACH = {"return_sequences": True, "unroll": True}
LAST = {"unroll": True}


class Gated(L.Layer):
    """A cell of one's own: a gate between the last state and a new one."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.state_size = units

    def build(self, shape: Any) -> None:
        size = (shape[-1] + self.state_size, 2 * self.state_size)
        self.kernel = self.add_weight(name="kernel", shape=size)
        super().build(shape)

    def call(self, x: Any, states: Any) -> Any:
        both = keras.backend.concatenate([x, states[0]])
        gate, new = tf.split(keras.backend.dot(both, self.kernel), 2, axis=-1)
        gate = keras.activations.sigmoid(gate)
        state = gate * states[0] + (1 - gate) * keras.activations.tanh(new)
        return state, [state]


NETS: dict[str, Callable[[], list[Any]]] = {
    "lstm": lambda: [L.LSTM(UNITS, **LAST)],
    "lstm of each step": lambda: [L.LSTM(UNITS, **EACH), L.Flatten()],
    "gru, reset after": lambda: [L.GRU(UNITS, reset_after=True, **LAST)],
    "gru, reset before": lambda: [L.GRU(UNITS, reset_after=False, **LAST)],
    "simple": lambda: [L.SimpleRNN(UNITS, **LAST)],
    "bidirectional": lambda: [L.Bidirectional(L.LSTM(UNITS, **LAST))],
    "bidirectional sum of each step": lambda: [
        L.Bidirectional(L.GRU(UNITS, **EACH), merge_mode="sum"),
        L.GlobalAveragePooling1D(),
    ],
    "stacked": lambda: [L.LSTM(UNITS, **EACH), L.GRU(UNITS, **EACH), L.SimpleRNN(UNITS, **LAST)],
    "stacked cells": lambda: [L.RNN([L.LSTMCell(UNITS), L.GRUCell(UNITS)], **LAST)],
    "custom cell": lambda: [L.RNN(Gated(UNITS), **LAST)],
    "backwards": lambda: [L.LSTM(UNITS, go_backwards=True, **LAST)],
    "unit forget bias off": lambda: [L.LSTM(UNITS, unit_forget_bias=False, **LAST)],
    "time distributed": lambda: [
        L.LSTM(UNITS, **EACH),
        L.TimeDistributed(L.Dense(UNITS, "tanh")),
        L.Flatten(),
    ],
}
QUICK = {"gru, reset before": 2}
# The rest says what the quick ones say, of other cells and more layers.
CASES = [
    pytest.param(name, k, marks=[] if QUICK.get(name) == k else pytest.mark.slow)
    for name in NETS
    for k in (2, 3)
]


def net(name: str, masked: bool = False) -> keras.Model:
    layers = [L.Input((STEPS, FEATURES))]
    layers += [L.Masking()] if masked else []
    model = keras.Sequential([*layers, *NETS[name](), L.Dense(CLASSES, name="logits")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def check(name: str, k: int, masked: bool = False, **options: Any) -> keras.Model:
    make = oracle.in_float64(lambda: net(name, masked))
    x = X_MASKED if masked else X
    return oracle.check(make, (x, Y), k, batch=ROWS, tolerance=oracle.FLOAT64, **options)


@pytest.mark.parametrize("name, k", CASES)
def test_cells_and_stacks(name, k):
    check(name, k)


MASKED = ["lstm", "lstm of each step", "gru, reset after", "bidirectional", "stacked"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_masks_stop_a_row_where_it_ends(name):
    check(name, 3, masked=True)


@pytest.mark.parametrize(
    "cut",
    [
        ("d0", None),
        (None, "d0"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_forced_cuts_of_both_kernels(cut):
    """Gates cut apart (columns: a part of one, and not the same of all), or the state (rows)."""
    asked = {"lstm/lstm_cell/kernel": cut, "lstm/lstm_cell/recurrent_kernel": cut}
    check("lstm", 3, constraints=asked)
