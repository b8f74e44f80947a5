"""Placed graphs written as FunctionDefs compute what the same operators compute eagerly."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tofu_tf import errors
from tofu_tf.graph.ir import TensorSpec
from tofu_tf.rewrite.placed import Placed, Shard
from tofu_tf.runtime import devices, function, private_api, variables
from tofu_tf.tdl.regions import Region

ROWS = (Region(((0, 2), (0, 3))), Region(((2, 4), (0, 3))))
CPUS = devices.find_devices(2, "CPU")


def placed(build, shards=(), **fields):
    """A Placed from a function that makes nodes in a graph; the names of feeds etc. are given."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    made = {
        "graph_def": graph.as_graph_def(),
        "feeds": (),
        "fetches": (),
        "effects": (),
        "shards": tuple(Shard("w", i, ROWS[i], name) for i, name in enumerate(shards)),
    }
    return Placed(**(made | fields))


def two_device_step():
    """w (4, 3) cut by rows; y = x w summed over both; then w -= 0.1 x^T y on each."""
    with tf.device(CPUS[0]):
        x = tf.compat.v1.placeholder(tf.float32, [5, 4], "x")
    partial, handles = [], []
    for i, cpu in enumerate(CPUS):
        with tf.device(cpu):
            handle = tf.raw_ops.Placeholder(dtype=tf.resource, shape=[], name=f"w/{i}")
            value = tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=tf.float32, name=f"read/piece{i}"
            )
            value = tf.ensure_shape(value, [2, 3])
            rows = tf.split(x, 2, axis=1, name=f"split/piece{i}")[i]
            partial.append(tf.matmul(rows, value))
            handles.append((handle, rows))
    for i, cpu in enumerate(CPUS):
        with tf.device(cpu), tf.control_dependencies([p.op for p in partial]):
            handle, rows = handles[i]
            y = tf.add_n(partial, name=f"y/piece{i}")
            update = 0.1 * tf.matmul(rows, y, transpose_a=True)
            tf.raw_ops.AssignSubVariableOp(resource=handle, value=update, name=f"step/piece{i}")


def two_device_placed():
    return placed(
        two_device_step,
        shards=("w/0", "w/1"),
        feeds=("x",),
        fetches=("y/piece0:0", "split/piece1:1", "x:0"),
        effects=("step/piece0", "step/piece1"),
    )


X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def sharded():
    weight = tf.Variable(W, name="w")
    parts = [variables.Part(d, r) for d, r in zip(CPUS, ROWS, strict=True)]
    return weight, variables.shard_variable(weight, parts).handles


def reference(steps):
    w, ys = W, []
    for _ in range(steps):
        ys.append(X @ w)
        w = w - 0.1 * X.T @ ys[-1]
    return w, ys


def test_a_step_over_two_devices_equals_one():
    step = function.PlacedFunction(two_device_placed())
    weight, handles = sharded()
    w, ys = reference(3)
    for y in ys:
        got, half, fed = step([X], handles)
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-6)  # sums in another order
        np.testing.assert_array_equal(half, X[:, 2:])
        np.testing.assert_array_equal(fed, X)
    np.testing.assert_allclose(weight.numpy(), w, rtol=1e-5, atol=1e-6)


def test_nodes_run_on_their_devices():
    made = two_device_placed()
    step = function.PlacedFunction(made)
    _, handles = sharded()
    context.context().enable_run_metadata()
    try:
        step([X], handles)
        ran = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    found = {
        node.name.removeprefix("StatefulPartitionedCall/"): node.device
        for graphs in ran.function_graphs
        for graph in graphs.partition_graphs
        for node in graph.node
    }
    asked = {node.name: node.device for node in made.graph_def.node if node.device}
    asked = {name: device for name, device in asked.items() if name in found}
    assert {"read/piece0", "y/piece0", "step/piece0", "step/piece1", "y/piece1"} <= set(asked)
    assert {name: found[name] for name in asked} == asked


def test_inside_a_function():
    specs = [
        TensorSpec((5, 3), "float32"),
        TensorSpec((5, 2), "float32"),
        TensorSpec((5, 4), "float32"),
    ]
    step = function.PlacedFunction(two_device_placed(), specs)
    weight, handles = sharded()

    @tf.function
    def three(x):
        y = tf.zeros([5, 3])
        for _ in tf.range(3):
            y, half, fed = step([x], handles)
            assert [t.shape.as_list() for t in (y, half, fed)] == [[5, 3], [5, 2], [5, 4]]
        return y, weight.read_value()

    w, ys = reference(3)
    y, after = three(tf.constant(X))
    np.testing.assert_allclose(y, ys[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "feeds, said",
    [
        ([np.zeros([5, 3], np.float32)], r"x is float32\(5, 3\), expected float32\(5, 4\)"),
        ([tf.zeros([5, 4], tf.int32)], r"x is int32\(5, 4\), expected float32"),
        ([], "0 fed tensors"),
    ],
)
def test_wrong_feeds_are_refused(feeds, said):
    step = function.PlacedFunction(two_device_placed())
    _, handles = sharded()
    with pytest.raises(errors.PlanError, match=said):
        step(feeds, handles)


def list_outputs():
    with tf.device(CPUS[0]):
        x = tf.compat.v1.placeholder(tf.float32, [6], "x")
        tf.raw_ops.IdentityN(input=[x, tf.cast(x, tf.int32)], name="types")
        tf.raw_ops.Unique(x=x, name="unique")
    with tf.device(CPUS[1]):
        tf.raw_ops.SplitV(value=x, size_splits=[1, 2, 3], axis=0, num_split=3, name="parts")


def test_outputs_are_named_as_their_definitions_say():
    fetches = ("types:1", "types", "unique:0", "unique:1", "parts:2", "parts:0", "x")
    step = function.PlacedFunction(placed(list_outputs, feeds=("x",), fetches=fetches))
    x = np.float32([3, 1, 3, 2, 1, 3])
    expected = [x, x, [3, 1, 2], [0, 1, 0, 2, 1, 0], x[3:], x[:1], x]
    got = step([x], [])
    assert got[0].dtype == tf.int32
    for value, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(value, want)


def failing():
    with tf.device(CPUS[1]):
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        tf.raw_ops.CheckNumerics(tensor=x, message="not a number here", name="checked")


def test_errors_keep_their_type_and_the_next_call_works():
    step = function.PlacedFunction(placed(failing, feeds=("x",), fetches=("checked",)))
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number here"):
            step([np.float32([1, np.nan])], [])
        np.testing.assert_array_equal(step([np.float32([1, 2])], [])[0], [1, 2])


def unreached():
    for i, cpu in enumerate(CPUS):
        with tf.device(cpu):
            handle = tf.raw_ops.Placeholder(dtype=tf.resource, shape=[], name=f"w/{i}")
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([2, 3]), name=f"write/{i}")


def test_effects_run_that_no_fetch_needs():
    made = placed(unreached, shards=("w/0", "w/1"), effects=("write/0", "write/1"))
    weight, handles = sharded()
    assert function.PlacedFunction(made)([], handles) == []
    np.testing.assert_array_equal(weight, np.ones([4, 3]))


def calling():
    @tf.function
    def foreign(x):
        return x * 2

    with tf.device(CPUS[1]):
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        branch = tf.cond(x[0] > 0, lambda: foreign(x), lambda: x)
        tf.identity(branch, name="y")


def test_functions_in_the_library_are_called():
    step = function.PlacedFunction(placed(calling, feeds=("x",), fetches=("y",)))
    np.testing.assert_array_equal(step([np.float32([1, 2])], [])[0], [2, 4])


def test_unknown_names_are_refused():
    with pytest.raises(errors.RewriteError, match="nothing"):
        function.PlacedFunction(placed(failing, feeds=("x",), effects=("nothing",)))
    with pytest.raises(errors.RewriteError, match="output 1 is read"):
        function.PlacedFunction(placed(failing, feeds=("x",), fetches=("checked:1",)))


def test_a_dropped_function_is_unregistered():
    step = function.PlacedFunction(placed(failing, feeds=("x",), fetches=("checked",)))
    name = step.name
    assert private_api.has_function(name)
    del step
    gc.collect()
    assert not private_api.has_function(name)


def test_threads_share_a_step():
    step = function.PlacedFunction(two_device_placed())
    weight, handles = sharded()
    threads = [threading.Thread(target=lambda: step([X], handles)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(weight.numpy(), reference(6)[0], rtol=1e-5, atol=1e-6)
