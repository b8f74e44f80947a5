"""Recurrent nets (unrolled), transformers, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.zoo.step import Training

L = keras.layers
ROWS, STEPS, FEATURES, CLASSES, WORDS = 5, 3, 6, 3, 17


def series(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.normal(size=(ROWS, STEPS, FEATURES)), r.randint(0, CLASSES, ROWS)


def words(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.randint(0, WORDS, (ROWS, STEPS)), r.randint(0, WORDS, (ROWS, STEPS))


def compiled(inputs: Any, logits: Any, optimizer: Any) -> keras.Model:
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def lstm(layers: int = 2, optimizer: Any = "sgd") -> keras.Model:
    """LSTMs on each other, unrolled."""
    x = inputs = L.Input((STEPS, FEATURES))
    for n in range(layers):
        x = L.LSTM(5, return_sequences=n + 1 < layers, unroll=True)(x)
    return compiled(inputs, L.Dense(CLASSES)(x), optimizer)


def recurrent() -> keras.Model:
    """Cells of other kinds, there and back."""
    x = inputs = L.Input((STEPS, FEATURES))
    x = L.Bidirectional(L.GRU(3, return_sequences=True, unroll=True))(x)
    x = L.SimpleRNN(5, unroll=True)(x)
    return compiled(inputs, L.Dense(CLASSES)(x), "sgd")


def attention(heads: int) -> keras.Model:
    inputs = L.Input((STEPS, FEATURES))
    x = L.MultiHeadAttention(heads, 7)(inputs, inputs)
    return compiled(inputs, L.Dense(CLASSES)(L.Flatten()(x)), keras.optimizers.SGD(0.1))


def embedding() -> keras.Model:
    """Words looked up; the rows of some come several times."""
    inputs = L.Input((STEPS,), dtype="int32")
    x = L.Flatten()(L.Embedding(WORDS, 10)(inputs))
    x = L.Dense(7)(L.Dense(13, activation="relu")(x))
    return compiled(inputs, x, keras.optimizers.Adam(0.01))


def lines(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.randint(0, WORDS, (ROWS, STEPS)), r.randint(0, 7, ROWS)


class Place(L.Layer):
    """A learnt vector for every place."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=shape[1:])

    def call(self, x: Any) -> Any:
        return x + self.table


def transformer(causal: bool, optimizer: Any = "sgd") -> keras.Model:
    """One block of GPT (norm first, causal) or of BERT (norm last, the first token pooled)."""
    width, heads = 10, 3
    inputs = L.Input((STEPS,), dtype="int32")
    x = Place()(L.Embedding(WORDS, width)(inputs))
    if causal:
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(heads, 7)(y, y, use_causal_mask=True)
        y = L.LayerNormalization()(x)
        x = x + L.Dense(width)(L.Dense(19, activation="gelu")(y))
    else:
        x = L.LayerNormalization()(x + L.MultiHeadAttention(heads, 7)(x, x))
        x = L.LayerNormalization()(x + L.Dense(width)(L.Dense(19, activation="gelu")(x)))
        pooled = L.Dense(width, activation="tanh")(x[:, 0])
        x = x + pooled[:, tf.newaxis]
    return compiled(inputs, L.Dense(WORDS)(x), optimizer)


class Tied(L.Layer):
    """A table that words are looked up in, and that their successors are scored with."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=(WORDS, 7))

    def call(self, ids: Any) -> Any:
        h = tf.tanh(tf.nn.embedding_lookup(self.table, ids))
        return tf.einsum("bsw,vw->bsv", h, self.table)


def tied() -> keras.Model:
    inputs = L.Input((STEPS,), dtype="int32")
    return compiled(inputs, Tied()(inputs), keras.optimizers.SGD(0.1, momentum=0.9))


MODELS = {
    "lstm": Training(lstm, series),
    "recurrent": Training(recurrent, series),
    "attention-1": Training(lambda: attention(1), series),
    "attention-3": Training(lambda: attention(3), series),
    "attention-5": Training(lambda: attention(5), series),
    "embedding": Training(embedding, lines),
    "gpt": Training(lambda: transformer(True), words),
    "bert": Training(lambda: transformer(False), words),
    "tied": Training(tied, words),
}
