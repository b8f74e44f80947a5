"""Graphs as people export them: a frozen one, a v1 training graph, SavedModels with signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def frozen(path: Path) -> dict[str, np.ndarray]:
    """A classifier with weights as constants and an unknown batch; what a step is fed with."""
    r = np.random.RandomState(0)
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [None, 96], "x")
        scale = v1.placeholder(tf.float64, [], "scale")
        h = tf.nn.relu(x @ tf.constant(r.randn(96, 128), tf.float64, name="hidden"))
        table = tf.constant(r.randn(128, 63), tf.float64, name="out")
        logits = tf.multiply(h @ tf.identity(table), scale, "logits")
        tf.nn.softmax(logits, name="probabilities")
        tf.math.top_k(logits, 3, name="best")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return {"x": r.randn(11, 96), "scale": np.float64(0.5)}


def cnn(path: Path) -> list[dict[str, np.ndarray]]:
    """A training step of a convolutional net with dropout, as a v1 MetaGraphDef with what
    initialises it and its Saver; what three steps are fed with.
    """
    r = np.random.RandomState(1)
    with tf.Graph().as_default(), v1.variable_scope("net", use_resource=True):
        x = v1.placeholder(tf.float32, [None, 13, 11, 3], "x")
        y = v1.placeholder(tf.int32, [None], "y")
        h = x
        for n, (size, channels, stride) in enumerate([(5, 16, 2), (3, 24, 1)]):
            shape = (size, size, h.shape[-1], channels)
            start = v1.random_normal_initializer(0, 0.1, seed=n + 1)
            w = v1.get_variable(f"conv{n}", shape, initializer=start)
            b = v1.get_variable(f"bias{n}", [channels], initializer=v1.zeros_initializer())
            h = tf.nn.relu(tf.nn.conv2d(h, w, stride, "SAME") + b)
        h = tf.nn.dropout(tf.nn.max_pool2d(h, 3, 2, "SAME"), 0.25, seed=5)
        h = tf.reshape(h, [-1, 4 * 3 * 24])
        start = v1.glorot_uniform_initializer(seed=7)
        logits = h @ v1.get_variable("dense", [4 * 3 * 24, 10], initializer=start)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_mean(each, name="loss")
        v1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, name="train")
        v1.train.Saver(name="keep")
        init = v1.global_variables_initializer()
        assert (loss.op.name, init.name) == ("net/loss", "net/init")
        v1.train.export_meta_graph(str(path))
    return [
        {
            "net/x": r.randn(8, 13, 11, 3).astype("float32"),
            "net/y": r.randint(0, 10, 8).astype("int32"),
        }
        for _ in range(3)
    ]


class GPT(tf.Module):
    """One block of a small GPT with tied embeddings, trained with Adam; an example of what is saved
    with a signature for training.
    """

    def __init__(self, vocabulary: int = 50, width: int = 24, length: int = 9) -> None:
        super().__init__()
        r = np.random.RandomState(2)
        self.width, self.heads = width, 3

        def made(name: str, *shape: int) -> tf.Variable:
            return tf.Variable(r.randn(*shape).astype("float32") * 0.2, name=name)

        self.tokens = made("tokens", vocabulary, width)
        self.places = made("places", length, width)
        self.qkv = made("qkv", width, 3 * width)
        self.mixed = made("mixed", width, width)
        self.up = made("up", width, 4 * width)
        self.down = made("down", 4 * width, width)
        self.weights = [self.tokens, self.places, self.qkv, self.mixed, self.up, self.down]
        self.first = [
            tf.Variable(tf.zeros_like(w), name=f"m{i}") for i, w in enumerate(self.weights)
        ]
        self.second = [
            tf.Variable(tf.zeros_like(w), name=f"v{i}") for i, w in enumerate(self.weights)
        ]
        self.steps = tf.Variable(0, dtype=tf.int64, name="steps")

    def logits(self, ids: Any) -> Any:
        length = ids.shape[1]
        x = tf.gather(self.tokens, ids) + self.places
        mask = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        q, k, v = (
            tf.transpose(
                tf.reshape(part, [-1, length, self.heads, self.width // self.heads]), [0, 2, 1, 3]
            )
            for part in tf.split(self.norm(x) @ self.qkv, 3, -1)
        )
        scores = tf.matmul(q, k, transpose_b=True) / (self.width // self.heads) ** 0.5
        seen = tf.nn.softmax(scores + (1 - mask) * -1e9) @ v
        x += tf.reshape(tf.transpose(seen, [0, 2, 1, 3]), [-1, length, self.width]) @ self.mixed
        x += tf.nn.gelu(self.norm(x) @ self.up) @ self.down
        return tf.matmul(self.norm(x), self.tokens, transpose_b=True)

    def norm(self, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    @tf.function
    def train(self, ids: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.logits(ids))
            loss = tf.reduce_mean(each)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.weights)]
        self.steps.assign_add(1)
        t = tf.cast(self.steps, tf.float32)
        rate = 0.01 * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for w, m, v, g in zip(self.weights, self.first, self.second, gradients, strict=True):
            m.assign_add(0.1 * (g - m))
            v.assign_add(0.001 * (g * g - v))
            w.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))
        return {"loss": loss, "steps": tf.identity(self.steps)}

    @tf.function
    def infer(self, ids: Any) -> dict[str, Any]:
        return {"logits": self.logits(ids)}


def gpt(path: Path) -> list[dict[str, np.ndarray]]:
    """A SavedModel with signatures to train and to infer; what three steps of training are fed."""
    model = GPT()
    ids = tf.TensorSpec([None, 9], tf.int32, name="ids")
    labels = tf.TensorSpec([None, 9], tf.int32, name="labels")
    signatures = {
        "serving_default": model.infer.get_concrete_function(ids),
        "train": model.train.get_concrete_function(ids, labels),
    }
    tf.saved_model.save(model, str(path), signatures)
    r = np.random.RandomState(3)
    text = r.randint(0, 50, (3, 6, 10)).astype("int32")
    return [{"ids": t[:, :-1], "labels": t[:, 1:]} for t in text]
