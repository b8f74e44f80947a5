"""The listing of a small training step, and the fingerprint that its names do not enter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.graph.building import fed, graph_of
from tofu_tf.graph.ir import Graph, Ref, TensorSpec
from tofu_tf.graph.text import counts_text, graph_text, spec_text
from tofu_tf.graph.traversal import ancestors, consumers, fingerprint, last_versions

raw = tf.raw_ops


def step(prefix: str = "layer", rate: float = 0.5, shape: tuple[int, int] = (4, 3)) -> Graph:
    """x W, its gradient for a sum, and a step of gradient descent."""

    def build() -> Any:
        x = fed("x", (2, 4))
        w = raw.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=f"{prefix}/w", name=prefix)
        value = raw.ReadVariableOp(resource=w, dtype=tf.float32)
        y = tf.matmul(x, value, name=f"{prefix}/y")
        gradient = tf.matmul(x, tf.ones_like(y), transpose_a=True, name=f"{prefix}/grad")
        with tf.control_dependencies([y]):
            down = raw.AssignSubVariableOp(resource=w, value=rate * gradient, name=f"{prefix}/down")
        return tf.reduce_sum(y, 1, name=f"{prefix}/sum"), tf.print("sum", y), down

    return graph_of(build, ["x"])


def test_listing(golden: Callable[..., None]) -> None:
    golden(graph_text(step()))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec((2, 3), "float32"), "f32[2, 3]"),
        (TensorSpec((), "uint8"), "u8[]"),
        (TensorSpec((-1,), "int64"), "i64[?]"),
        (TensorSpec((1,), "bfloat16"), "bf16[1]"),
        (TensorSpec((), "string"), "string[]"),
    ],
)
def test_spec_text(spec: TensorSpec, text: str) -> None:
    assert spec_text(spec) == text


def test_counts() -> None:
    assert "     2 MatMul" in counts_text(step()).splitlines()


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"prefix": "renamed"}, True),
        ({"rate": 0.25}, False),
        ({"shape": (4, 5)}, False),
    ],
)
def test_fingerprint(other: dict[str, Any], same: bool) -> None:
    assert (fingerprint(step(**other)) == fingerprint(step())) is same


def test_traversal() -> None:
    graph = step()
    uses = consumers(graph)
    assert {name for name, _ in uses[Ref("x")]} == {"layer/y", "layer/grad"}
    assert Ref("layer/sum") not in uses
    assert last_versions(graph) == {"layer/w": Ref("layer/down")}
    assert "layer/grad" not in ancestors(graph, ["layer/sum"])
    assert {"layer/y", "x"} <= ancestors(graph, ["layer/sum"])
