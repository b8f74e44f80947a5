"""On accelerators, what they have no kernel for runs on the CPU beside them, and nothing else.

There is no GPU here: the placed graph is checked as it is, and then run with CPU:1, CPU:2 ... in
the GPUs' places beside CPU:0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.rewrite.random_plans import run_placed
from tofu_tf.capture.functions import capture_function
from tofu_tf.pipeline import apply_plan, find_plan, with_bytes
from tofu_tf.plan.machine import imagined
from tofu_tf.report import checking, counting
from tofu_tf.rewrite.placed import Placed

R = np.random.default_rng(0)
X = R.normal(size=(8, 24))


def on_cpus(placed: Placed) -> Placed:
    """The same step with a CPU of its own in every GPU's place."""

    def renamed(device: str) -> str:
        return re.sub(r"GPU:(\d+)", lambda m: f"CPU:{int(m[1]) + 1}", device)

    graph_def = type(placed.graph_def)()
    graph_def.CopyFrom(placed.graph_def)
    for node in graph_def.node:
        node.device = renamed(node.device)
        if "communication_hint" in node.attr:
            node.attr["communication_hint"].s = b"ring"
    groups = {key: tuple(map(renamed, devices)) for key, devices in placed.groups.items()}
    return dataclasses.replace(placed, graph_def=graph_def, groups=groups)


class Variables:
    def __init__(self) -> None:
        with tf.device("/device:CPU:0"):
            self.w = tf.Variable(R.normal(size=(24, 16)))
            self.table = tf.Variable(R.integers(0, 9, (24, 16)), dtype=tf.int64)
            self.first = tf.Variable(0, dtype=tf.int64)
            self.words = tf.Variable(["a", "b"])


def integers(v: Variables) -> Callable[..., Any]:
    """Integer products, for which GPUs have no kernel, between products that they have."""

    def step(x: Any) -> Any:
        y = tf.matmul(x, v.w)
        n = tf.matmul(tf.cast(y * 4, tf.int64), v.table, transpose_b=True)
        v.w.assign_add(0.01 * tf.matmul(x, tf.tanh(y), transpose_a=True))
        return tf.reduce_sum(tf.matmul(tf.cast(n, tf.float64), v.w)), tf.argmax(n % 5, 1)

    return step


def bytes_summed(v: Variables) -> Callable[..., Any]:
    """Sums of uint8, in parts: GPUs add none."""

    def step(x: Any) -> Any:
        n = tf.cast(tf.abs(x) * 3, tf.uint8)
        return tf.reduce_max(n, 0), tf.cumsum(n, 1), tf.add_n([n, n, n]), tf.matmul(x, v.w)

    return step


def strings(v: Variables) -> Callable[..., Any]:
    def step(x: Any) -> Any:
        y = tf.matmul(x, v.w)
        words = tf.strings.join([tf.strings.as_string(y[:, 0]), v.words[1]])
        v.words.assign(words[:2])
        return tf.strings.length(words), y

    return step


def looped(v: Variables) -> Callable[..., Any]:
    """A loop over variables with an op inside that GPUs lack: they are on the CPU with it."""

    def step(x: Any) -> Any:
        def again(i: Any, n: Any) -> Any:
            v.first.assign_add(1)
            return i + 1, tf.matmul(n, v.table[:16], transpose_b=True) % 11 + v.first

        n = tf.cast(tf.abs(tf.matmul(x, tf.matmul(v.w, v.w[:16]))), tf.int64)
        v.first.assign_add(2)
        _, n = tf.while_loop(lambda i, n: i < 3, again, (0, n))
        return tf.cast(n, tf.float64) + tf.cast(v.first, tf.float64), tf.matmul(x, v.w)

    return step


CASES: dict[str, tuple[Callable[[Variables], Any], set[str]]] = {
    "integers": (integers, {"MatMul", "ArgMax"}),
    "bytes": (bytes_summed, {"Max", "Cumsum", "AddN"}),
    "strings": (strings, {"AsString", "StringJoin", "StringLength", "ReadVariableOp"}),
    "looped": (looped, {"While", "AssignAddVariableOp"}),
}


@pytest.mark.parametrize("lowering", ["p2p", "collective"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_device(name: str, k: int, lowering: str) -> None:
    make, expected = CASES[name]
    v = Variables()
    step = make(v)
    every = [v.w, v.table, v.first, v.words]
    before = [x.numpy() for x in every]
    outputs = [t.numpy() for t in tf.nest.flatten(tf.function(step)(tf.constant(X)))]
    after = [x.numpy() for x in every]
    for x, value in zip(every, before, strict=True):
        x.assign(value)

    captured = capture_function(step, [tf.TensorSpec(X.shape, X.dtype)], dynamic=True)
    graph = captured.graph
    plan = find_plan(graph, imagined(k, "GPU"))
    placed = apply_plan(graph, plan, lowering)
    assert not checking.check_placement(placed.graph_def)
    moved = counting.count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    assert moved.total == with_bytes(graph, plan, lowering).predicted_bytes
    on_host = {n.op for n in placed.graph_def.node if "CPU" in n.device}
    assert expected <= on_host
    assert {n.op for n in placed.graph_def.node if n.op == "MatMul" and "GPU" in n.device}

    got, variables = run_placed(on_cpus(placed), captured, [X])
    for a, b in zip(got, outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    named = {u.ref(): n for n, u in captured.variables.items()}
    for x, value in zip(every, after, strict=True):
        if x.ref() in named and value.dtype == object:
            assert list(variables[named[x.ref()]]) == list(value)
        elif x.ref() in named:
            np.testing.assert_allclose(variables[named[x.ref()]], value, rtol=1e-10)
