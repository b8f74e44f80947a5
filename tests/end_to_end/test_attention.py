"""Attention with numbers of heads and widths that do not divide, cut over k devices."""

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
ROWS, STEPS, WIDTH, CLASSES = 7, 5, 15, 11
X = R.rand(2 * ROWS, STEPS, WIDTH)
Y = R.randint(0, CLASSES, 2 * ROWS)
PADDED = X.copy()
for row, length in enumerate(R.randint(1, STEPS + 1, 2 * ROWS)):
    PADDED[row, length:] = 0


def attention(heads: int, **call: Any) -> Callable[[Any], Any]:
    return lambda x: L.MultiHeadAttention(heads, 7, name="mha")(x, x, **call)


def scored(x: Any) -> Any:
    """Scores are of use too, beside what was attended to."""
    out, scores = L.MultiHeadAttention(3, 7, name="mha")(x, x, return_attention_scores=True)
    return L.Concatenate()([L.Flatten()(out), L.Flatten()(scores)])


def block(x: Any) -> Any:
    h = L.MultiHeadAttention(3, 7, value_dim=9, output_shape=WIDTH)(x, x, use_causal_mask=True)
    x = L.LayerNormalization(epsilon=1e-6)(x + h)
    h = L.EinsumDense("abc,cd->abd", output_shape=(None, 29), activation="gelu", bias_axes="d")(x)
    h = L.EinsumDense("abc,cd->abd", output_shape=(None, WIDTH), bias_axes="d")(h)
    return L.LayerNormalization()(x + h)


def masked(x: Any) -> Any:
    """A mask that is given, of each row's own length."""
    lengths = tf.constant([[1, 2, 3, 4, 5, 4, 3]])
    keep = tf.transpose(lengths) > tf.range(STEPS)[tf.newaxis]
    return L.MultiHeadAttention(5, 7)(x, x, attention_mask=keep[:, tf.newaxis])


def crossed(x: Any) -> Any:
    memory = L.Dense(13)(x[:, ::2])
    return L.MultiHeadAttention(3, 7)(x, memory, memory)


def images(x: Any) -> Any:
    """Attention over two axes at once."""
    x = L.Reshape((STEPS, 3, 5))(x)
    return L.MultiHeadAttention(3, 7, attention_axes=(1, 2))(x, x)


def heads_apart(x: Any) -> Any:
    """Projections into heads by EinsumDense, and the contractions by hand."""
    q = L.EinsumDense("abc,chd->abhd", output_shape=(None, 3, 7), bias_axes="hd")(x)
    scores = tf.nn.softmax(tf.einsum("bqhd,bkhd->bhqk", q, q) / 7**0.5)
    return tf.einsum("bhqk,bkhd->bqhd", scores, q)


NETS: dict[str, Callable[[Any], Any]] = {
    "1 head": attention(1),
    "3 heads": attention(3),
    "5 heads": attention(5),
    "causal": attention(3, use_causal_mask=True),
    "scores": scored,
    "block": block,
    "given mask": masked,
    "cross": crossed,
    "two axes": images,
    "einsum": heads_apart,
    "luong": lambda x: L.Attention(use_scale=True, score_mode="concat")([x, x]),
    "bahdanau": lambda x: L.AdditiveAttention()([x, x]),
}


def net(name: str) -> keras.Model:
    x = L.Input((STEPS, WIDTH), batch_size=ROWS)
    out = NETS[name](x)
    model = keras.Model(x, L.Dense(CLASSES, name="logits")(L.Flatten()(out)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def padded() -> keras.Model:
    """The mask of padded places goes through attention to the mean."""
    x = L.Input((STEPS, WIDTH))
    out = L.MultiHeadAttention(3, 7)(L.Masking()(x), L.Masking()(x))
    model = keras.Model(x, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(out)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


QUICK = {("5 heads", 3)}
CASES = [
    pytest.param(name, k, marks=[] if (name, k) in QUICK else pytest.mark.slow)
    for name in NETS
    for k in (2, 3, 4, 5, 8)
    if (name, k) in QUICK or k in (3, 4) or "heads" in name
]


@pytest.mark.parametrize("name, k", CASES)
def test_attention(name, k):
    make = oracle.in_float64(lambda: net(name))
    oracle.check(make, (X, Y), k, batch=ROWS, tolerance=oracle.FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 4])
def test_padding_is_masked(k):
    make = oracle.in_float64(padded)
    oracle.check(make, (PADDED, Y), k, batch=ROWS, tolerance=oracle.FLOAT64)


@pytest.mark.parametrize(
    "cut",
    [
        # 15 rows, 5 heads and 7 columns of each: none divides by 2 or 4.
        ("d0d1", None, None),
        (None, "d0d1", None),
        (None, "d0", "d1"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_forced_cuts_of_the_projections(cut):
    asked = {f"mha/{part}/kernel": cut for part in ("query", "key", "value")}
    make = oracle.in_float64(lambda: net("5 heads"))
    oracle.check(make, (X, Y), 4, batch=ROWS, tolerance=oracle.FLOAT64, constraints=asked)
