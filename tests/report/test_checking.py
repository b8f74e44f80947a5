"""Each kind of wrong placement is found, and a right one has no problem."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from tofu_tf.report import checking

v1 = tf.compat.v1
CPU = "/job:localhost/replica:0/task:0/device:CPU:%d"
GPU = "/job:localhost/replica:0/task:0/device:GPU:%d"


def multiply(device: str, dtype: tf.DType = tf.float32) -> None:
    with tf.device(device):
        a = v1.placeholder(dtype, [2, 2], name="a")
        tf.raw_ops.MatMul(a=a, b=a, name="product")


def read_elsewhere() -> None:
    with tf.device(CPU % 0):
        handle = v1.placeholder(tf.resource, [], name="handle")
    with tf.device(CPU % 1):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")


def read_at_home() -> None:
    with tf.device(GPU % 1):
        handle = v1.placeholder(tf.resource, [], name="handle")
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")


def colocated() -> None:
    with tf.device(CPU % 0):
        a = tf.constant(1.0, name="a")
        with v1.colocate_with(a):
            tf.negative(a, name="b")


def do_nothing() -> None:
    for device in (CPU % 0, GPU % 0):
        with tf.device(device):
            tf.no_op()


def concatenate_strings() -> None:
    with tf.device(GPU % 0):
        tf.raw_ops.StringLength(input=v1.placeholder(tf.string, [], name="text"), name="length")


@pytest.mark.parametrize(
    "build, device_type, problems",
    [
        (lambda: multiply(CPU % 0), None, []),
        (lambda: multiply(GPU % 0), None, []),
        (lambda: multiply(CPU % 0), "GPU", []),
        (
            lambda: multiply(CPU % 0, tf.uint16),
            None,
            ["product: no CPU kernel for MatMul(T=uint16)"],
        ),
        (lambda: multiply(CPU % 0, tf.int64), "GPU", ["product: no GPU kernel"]),
        (lambda: multiply(""), None, ["a: nothing in device ''", "product: nothing in device ''"]),
        (
            lambda: multiply("/device:CPU:0"),
            None,
            ["a: no job, replica, task in device", "product: no job, replica, task in device"],
        ),
        (read_at_home, None, []),
        (read_elsewhere, None, ["read: on "]),
        (colocated, None, ["b: attribute _class"]),
        (do_nothing, None, []),
        (concatenate_strings, None, ["length: no GPU kernel for StringLength()"]),
    ],
)
def test_problems(build: Callable[[], None], device_type: str | None, problems: list[str]) -> None:
    with tf.Graph().as_default() as graph:
        build()
    found = [str(p) for p in checking.check_placement(graph.as_graph_def(), device_type)]
    assert len(found) == len(problems), found
    for text, start in zip(found, problems, strict=True):
        assert text.startswith(start)
