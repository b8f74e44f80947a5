"""A GraphDef as versions: reads, writes, order, effects, and what disappears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.graph.building import fed, graph_of
from tests.graph.running import Running
from tofu_tf.errors import GraphError
from tofu_tf.graph.importing import import_graph
from tofu_tf.graph.ir import Graph, Ref, TensorSpec
from tofu_tf.graph.traversal import versions

raw = tf.raw_ops


def handle(name: str = "v", shape: tuple[int, ...] = (2,)) -> tf.Tensor:
    return raw.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name, name=name)


def read(h: tf.Tensor, name: str) -> tf.Tensor:
    return raw.ReadVariableOp(resource=h, dtype=tf.float32, name=name)


def after(*ops: Any) -> Any:
    return tf.control_dependencies(ops)


def shown(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {n.name: (n.op, *map(str, n.inputs)) for n in graph}


def test_reads_see_the_version_that_their_order_says() -> None:
    def build() -> Any:
        h = handle()
        first = read(h, "first")
        with after(first):
            add = raw.AssignAddVariableOp(resource=h, value=[1.0, 1.0], name="add")
        with after(add):
            second = read(h, "second")
        with after(second):
            put = raw.AssignVariableOp(resource=h, value=second * 2.0, name="put")
        with after(put):
            third = read(h, "third")
        return tf.stack([first, second, third], name="all")

    graph = graph_of(build)
    assert graph.nodes["all"].inputs == (Ref("v"), Ref("add"), Ref("put"))
    assert versions(graph) == {"v": (Ref("v"), Ref("add"), Ref("put"))}
    assert graph.nodes["add"].variables == {0: "v"}
    assert graph.effects == ("add", "put")
    (out,), state = Running(graph).step([], {"v": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(out, [[1, 2], [2, 3], [4, 6]])
    np.testing.assert_array_equal(state["v"], [4, 6])


def momentum(h: tf.Tensor, m: tf.Tensor) -> Any:
    return raw.ResourceApplyMomentum(
        var=h, accum=m, lr=0.5, grad=[1.0, 2.0], momentum=0.5, name="write"
    )


def scatter(h: tf.Tensor, m: tf.Tensor) -> Any:
    del m
    return raw.ResourceScatterAdd(resource=h, indices=[1], updates=[5.0], name="write")


def subtract(h: tf.Tensor, m: tf.Tensor) -> Any:
    return raw.AssignSubVariableOp(resource=h, value=read(m, "read_m"), name="write")


@pytest.mark.parametrize(
    ("write", "writes", "v", "m"),
    [
        (momentum, ("v", "m"), [-4.5, -9], [11, 22]),
        (scatter, ("v",), [1, 7], [20, 40]),
        (subtract, ("v",), [-19, -38], [20, 40]),
    ],
)
def test_writers(write: Callable[..., Any], writes: tuple[str, ...], v: Any, m: Any) -> None:
    def build() -> Any:
        h, a = handle("v"), handle("m")
        with after(write(h, a)):
            return read(h, "read_v"), read(a, "read_m_last")

    graph = graph_of(build)
    assert graph.nodes["write"].writes == writes
    assert len(graph.nodes["write"].outputs) == len(writes)
    outputs, _ = Running(graph).step(
        [], {"v": np.array([1, 2], np.float32), "m": np.array([20, 40], np.float32)}
    )
    np.testing.assert_array_equal(outputs, [v, m])


def test_gather_reads_a_version_and_handles_pass_through_identity() -> None:
    def build() -> Any:
        h = tf.identity(handle(shape=(3, 2)), name="carried")
        rows = raw.ResourceGather(resource=h, indices=[2, 0], dtype=tf.float32, name="rows")
        with after(rows):
            add = raw.ResourceScatterAdd(resource=h, indices=[2], updates=[[1.0, 1.0]], name="add")
        with after(add):
            again = raw.ResourceGather(resource=h, indices=[2], dtype=tf.float32, name="again")
        return rows, again

    graph = graph_of(build)
    assert graph.nodes["rows"].inputs[0] == graph.variables["v"].ref
    assert graph.nodes["again"].inputs[0] == graph.nodes["add"].version("v")
    assert graph.nodes["rows"].writes == ()


def test_equal_pure_nodes_merge_and_others_do_not() -> None:
    def build() -> Any:
        x = fed("x")
        sums = [tf.add(x, tf.constant([1.0, 2.0], name=f"c{i}"), name=f"sum{i}") for i in (0, 1)]
        sums.append(tf.add(x, tf.constant([1.0, 3.0], name="other"), name="sum2"))
        noise = [raw.RandomUniform(shape=[2], dtype=tf.float32, name=f"noise{i}") for i in (0, 1)]
        return *sums, *noise

    graph = graph_of(build, ["x"])
    assert [str(r) for r in graph.outputs] == ["sum0:0", "sum0:0", "sum2:0", "noise0:0", "noise1:0"]
    assert "c1" not in graph.nodes


def test_what_passes_values_on_is_bypassed() -> None:
    def build() -> Any:
        x = fed("x")
        y = tf.stop_gradient(tf.identity(x))
        a, b = raw.IdentityN(input=[y, tf.exp(y, name="exp")])
        with after(tf.no_op("wait")):
            return a, tf.identity(b, name="fetched"), x

    graph = graph_of(build, ["x"])
    assert set(graph.nodes) == {"x", "exp"}
    assert [str(r) for r in graph.outputs] == ["x:0", "exp:0", "x:0"]


def test_dead_nodes_go_and_unused_inputs_stay() -> None:
    def build() -> Any:
        x = fed("x")
        tf.exp(x, name="dead")
        raw.AssignVariableOp(resource=handle(), value=x, name="never_reached")
        return tf.abs(x, name="used"), fed("unused")

    graph = graph_of(build, ["unused", "x"], ["used"])
    assert set(graph.nodes) == {"unused", "x", "used"}
    assert graph.effects == ()
    assert graph.variables == {}


def test_side_effects_keep_their_order_through_nodes_that_have_none() -> None:
    def build() -> Any:
        x = fed("x")
        first = tf.print(x, name="first")
        with after(first):
            between = tf.identity(tf.abs(x))
        with after(between, tf.no_op()):
            second = raw.Assert(condition=True, data=[x], name="second")
        with after(second):
            return tf.exp(x, name="exp")

    graph = graph_of(build, ["x"])
    printed = next(n.name for n in graph if n.op == "PrintV2")
    assert graph.effects == (printed, "second")
    assert graph.nodes["second"].controls == (printed,)
    assert graph.nodes["exp"].controls == ()


def test_checks_stay() -> None:
    def build() -> Any:
        return tf.debugging.check_numerics(fed("x"), "no", name="checked")

    assert shown(graph_of(build, ["x"])) == {
        "x": ("Placeholder",),
        "checked": ("CheckNumerics", "x:0"),
    }


def test_feeding_the_middle_cuts_what_is_before_it() -> None:
    def build() -> Any:
        return tf.abs(tf.exp(fed("x"), name="middle"), name="out")

    graph = graph_of(build, ["middle"], ["out"])
    assert shown(graph) == {"middle": ("Placeholder",), "out": ("Abs", "middle:0")}


def graph_def(*nodes: tuple[str, str, list[str]]) -> tuple[graph_pb2.GraphDef, Any]:
    result = graph_pb2.GraphDef()
    for name, op, inputs in nodes:
        result.node.add(name=name, op=op, input=inputs)
    return result, {n: (TensorSpec((), "float32"),) for n, *_ in nodes}


@pytest.mark.parametrize(
    ("nodes", "fetch", "message"),
    [
        ([("a", "Nope", []), ("b", "Neither", [])], "a", r"Neither \(node b\); Nope \(node a\)"),
        ([("a", "Abs", ["x"]), ("b", "Abs", ["^y", "a"])], "b", r"a <- x; b <- \^y"),
        ([("a", "NoOp", []), ("b", "Abs", ["a:3"])], "b", "a:3"),
        ([("a", "Abs", ["b"]), ("b", "Abs", ["a"])], "b", "2 nodes on or behind a cycle"),
        ([("a", "Placeholder", []), ("b", "Abs", ["a"])], "b", "neither fed"),
        ([("a", "NoOp", []), ("a", "NoOp", [])], "a", "several nodes of one name"),
        ([("a", "NoOp", [])], "c", "c: a fetch that the graph does not hold"),
    ],
)
def test_errors_name_the_offenders(nodes: Any, fetch: str, message: str) -> None:
    given, shapes = graph_def(*nodes)
    with pytest.raises(GraphError, match=message):
        import_graph(given, shapes, [], [fetch])
