"""Counted bytes against hand arithmetic and the _Send nodes that TensorFlow itself makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.report import sending
from tests.rewrite import steps
from tofu_tf import errors
from tofu_tf.capture.functions import capture_function
from tofu_tf.pipeline import apply_plan, find_plan
from tofu_tf.plan.machine import imagined
from tofu_tf.report import counting
from tofu_tf.rewrite.exporting import exported

v1 = tf.compat.v1


def cpu(index: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:CPU:{index}"


def built(build: Callable[[], object]) -> graph_pb2.GraphDef:
    """The GraphDef that `build` makes."""
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def made(shape: list[int], dtype: tf.DType, name: str) -> tf.Tensor:
    """A tensor that is no Const: TensorFlow copies small ones to where they are used."""
    return tf.raw_ops.RandomUniform(shape=shape, dtype=dtype, name=name)


def one_tensor_many_uses() -> None:
    with tf.device(cpu(0)):
        a = made([3, 5], tf.float32, "a")
    with tf.device(cpu(1)):
        b = tf.negative(a, name="b")
        c = tf.add(a, b, name="c")  # a is on CPU:1 already
    with tf.device(cpu(2)):
        tf.add_n([a, c], name="out")


def several_outputs_and_dtypes() -> None:
    with tf.device(cpu(3)):
        x = made([4], tf.float64, "x")
        values, indices = tf.raw_ops.TopKV2(input=x, k=3, name="top")
    with tf.device(cpu(4)):
        i = tf.negative(indices, name="i")
        h = tf.cast(values, tf.bfloat16, name="h")
    with tf.device(cpu(5)):
        s = tf.cast(h, tf.int32, name="s")
        tf.add(s, i, name="out")


def across_and_back_with_controls() -> None:
    with tf.device(cpu(0)):
        a = made([6], tf.float32, "a")
    with tf.device(cpu(1)):
        b = tf.slice(a, [2], [3], name="b")
        n = tf.no_op(name="n")
    with tf.device(cpu(0)), tf.control_dependencies([n]):
        c = tf.negative(a, name="c")
        d = tf.negative(b, name="d")
    with tf.device(cpu(0)):
        tf.concat([c, d], 0, name="out")


BUILDERS = [one_tensor_many_uses, several_outputs_and_dtypes, across_and_back_with_controls]


@pytest.mark.parametrize("build", BUILDERS)
def test_equals_what_tensorflow_sends(build: Callable[[], None]) -> None:
    graph_def = built(build)
    counted = counting.count_communication(graph_def)
    assert counted.total == sending.bytes_that_tensorflow_sends(graph_def, ["out"]) > 0


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("name", sorted(steps.STEPS))
def test_a_rewritten_training_step_sends_what_is_counted(name: str, workers: int) -> None:
    step, feeds, _ = steps.STEPS[name]()
    specs = [tf.TensorSpec(feed.shape, feed.dtype) for feed in feeds]
    graph = capture_function(step, specs).graph
    fetches = [f"result{i}" for i in range(len(graph.outputs))]
    placed = apply_plan(graph, find_plan(graph, imagined(workers), small_bytes=16))
    counted = counting.count_communication(placed.graph_def, placed.feed_nodes, placed.result_nodes)
    sent = sending.bytes_that_tensorflow_sends(
        exported(placed, graph, fetches),
        [*placed.effects, *fetches],
        dict(zip(placed.feeds, feeds, strict=True)),
    )
    assert counted.total + counted.feeds + counted.results == sent
    assert counted.total > 0


@pytest.mark.parametrize(
    "build, total, sent, received, by_kind, controls",
    [
        (
            one_tensor_many_uses,
            180,
            {cpu(0): 120, cpu(1): 60},
            {cpu(1): 60, cpu(2): 120},
            {"AddN": 120, "Neg": 60},
            0,
        ),
        (
            several_outputs_and_dtypes,
            24 + 12 + 12 + 6,
            {cpu(3): 36, cpu(4): 18},
            {cpu(4): 36, cpu(5): 18},
            {"AddV2": 12, "Cast": 30, "Neg": 12},
            0,
        ),
        (
            across_and_back_with_controls,
            24 + 12,
            {cpu(0): 24, cpu(1): 12},
            {cpu(0): 12, cpu(1): 24},
            {"Neg": 12, "Slice": 24},
            1,
        ),
    ],
)
def test_counts(build, total, sent, received, by_kind, controls) -> None:
    counted = counting.count_communication(built(build))
    assert (counted.total, counted.sent, counted.received) == (total, sent, received)
    assert (counted.by_kind, counted.controls) == (by_kind, controls)


def test_feeds_and_results_are_apart() -> None:
    def build() -> None:
        with tf.device(cpu(0)):
            x = v1.placeholder(tf.float32, [4], name="x")
        with tf.device(cpu(1)):
            y = tf.negative(x, name="y")
            z = tf.negative(y, name="z")
        with tf.device(cpu(0)):
            tf.identity(y, name="fetched_y")
            tf.identity(z, name="fetched_z")
            tf.negative(z, name="used_z")

    counted = counting.count_communication(
        built(build), feeds=["x"], results=["fetched_y", "fetched_z"]
    )
    # z crosses for the step's own sake; y only to be seen.
    assert [t.tensor for t in counted.fed] == ["x:0"]
    assert [t.tensor for t in counted.fetched] == ["y:0"]
    assert [t.tensor for t in counted.transfers] == ["z:0"]
    assert (counted.feeds, counted.results, counted.total) == (16, 16, 16)


def test_a_read_of_a_fed_handle_is_counted_by_its_given_shape() -> None:
    def build() -> None:
        with tf.device(cpu(0)):
            handle = v1.placeholder(tf.resource, [], name="handle")
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
        with tf.device(cpu(1)):
            tf.transpose(value, [1, 0], name="t")
        with tf.device(cpu(2)):
            tf.negative(value, name="n")

    graph_def = built(build)
    with pytest.raises(errors.GraphError, match="read:0: of unknown shape"):
        counting.count_communication(graph_def)
    for node in graph_def.node:
        if node.name == "read":
            shape = tf.TensorShape([3, 2]).as_proto()
            node.attr[counting.OUTPUT_SHAPES].list.shape.append(shape)
    counted = counting.count_communication(graph_def)
    assert {(t.tensor, t.nbytes) for t in counted.transfers} == {("read:0", 24)}
    assert counted.total == 48


@pytest.mark.parametrize(
    "device, full",
    [
        ("/cpu:1", cpu(1)),
        ("/device:CPU:1", cpu(1)),
        ("/job:worker/task:2/device:GPU:0", "/job:worker/replica:0/task:2/device:GPU:0"),
    ],
)
def test_devices_have_one_name(device: str, full: str) -> None:
    assert counting.full_device(device) == full


def unplaced() -> None:
    tf.constant(1.0, name="lost")


def foreign_resource() -> None:
    with tf.device(cpu(0)):
        handle = v1.placeholder(tf.resource, [], name="handle")
    with tf.device(cpu(1)):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")


def collective() -> None:
    with tf.device(cpu(0)):
        tf.raw_ops.CollectiveReduce(
            input=tf.constant([1.0]),
            group_size=2,
            group_key=1,
            instance_key=1,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
            name="reduce",
        )


def group(op: str, members: int, size: int = 3, shapes: int = 1) -> graph_pb2.GraphDef:
    """Tensors of 6, 12 ... float64 put into one collective of `size` members."""
    merge = {"merge_op": "Add", "final_op": "Id"} if "Reduce" in op else {}

    def build() -> None:
        for i in range(members):
            with tf.device(cpu(i)):
                x = made([3, 2 * (i % shapes + 1)], tf.float64, f"x{i}")
                getattr(tf.raw_ops, op)(
                    input=x,
                    group_size=size,
                    group_key=7,
                    instance_key=1,
                    ordering_token=[],
                    name=f"m{i}",
                    **merge,
                )

    return built(build)


@pytest.mark.parametrize(
    "op, nbytes, sent",
    [
        # three members that each put in 48 bytes
        ("CollectiveReduceV2", 2 * 2 * 48, 64),
        ("CollectiveGatherV2", 3 * 2 * 48, 96),
        ("CollectiveAllToAllV2", 2 * 48, 32),
        ("CollectiveReduceScatterV2", 2 * 48, 32),
    ],
)
def test_collectives_go_by_the_table(op: str, nbytes: int, sent: int) -> None:
    counted = counting.count_communication(group(op, 3))
    assert counted.total == nbytes
    assert counted.by_kind == {op: nbytes}
    assert counted.sent == counted.received == {cpu(i): sent for i in range(3)}


@pytest.mark.parametrize("members, shapes", [(2, 1), (4, 1), (3, 2)])
def test_groups_that_do_not_fit_together(members: int, shapes: int) -> None:
    with pytest.raises(errors.GraphError, match=r"m0, m1.* of group 7, 1: members that do not fit"):
        counting.count_communication(group("CollectiveReduceV2", members, shapes=shapes))


@pytest.mark.parametrize(
    "build, text",
    [
        (unplaced, "lost: no device"),
        (foreign_resource, "handle:0: resource"),
        (collective, r"reduce \(CollectiveReduce\): unknown collective ops"),
    ],
)
def test_what_cannot_be_counted_is_named(build: Callable[[], None], text: str) -> None:
    with pytest.raises(errors.GraphError, match=text):
        counting.count_communication(built(build))
