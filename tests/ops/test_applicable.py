"""Describing nodes: once per signature, and constants that must be there."""

from __future__ import annotations

import numpy as np
import pytest

from tofu_tf.errors import DescriptionError
from tofu_tf.graph import attributes
from tofu_tf.graph.ir import CONST, PLACEHOLDER, Graph, Node, Ref, TensorSpec
from tofu_tf.ops.applicable import Describing
from tofu_tf.ops.registry import op

F = "float32"


def graph_of(*nodes: Node) -> Graph:
    return Graph({n.name: n for n in nodes}, (), (), {})


def given(name: str, *shape: int) -> Node:
    return Node(name, PLACEHOLDER, (), (TensorSpec(shape, F),), {})


def const(name: str, value: np.ndarray) -> Node:
    spec = TensorSpec(value.shape, value.dtype.name)
    return Node(name, CONST, (), (spec,), {"value": attributes.encode(value, "tensor")})


def node(name: str, op_name: str, inputs: tuple[str, ...], *out: int, **attrs: object) -> Node:
    encoded = {k: attributes.encode(v) for k, v in attrs.items()}
    spec = TensorSpec(out, F)
    return Node(name, op_name, tuple(Ref(i) for i in inputs), (spec,), encoded)


def test_equal_nodes_are_described_once() -> None:
    flags = {"transpose_a": False, "transpose_b": False}
    graph = graph_of(
        given("x", 4, 5),
        given("y", 4, 5),
        given("w", 5, 3),
        given("v", 5, 2),
        node("a", "MatMul", ("x", "w"), 4, 3, **flags),
        node("b", "MatMul", ("y", "w"), 4, 3, **flags),
        node("c", "MatMul", ("x", "v"), 4, 2, **flags),
    )
    describing = Describing(graph)
    a, b, c = (describing(graph.nodes[n]) for n in "abc")
    assert a is b
    assert a is not None
    assert c is not None
    assert a.signature != c.signature
    assert a.applied[0].axes == ("i", "j", "k")


def test_constants_are_part_of_the_signature() -> None:
    graph = graph_of(
        given("x", 4, 4),
        const("rows", np.array([0], np.int32)),
        const("columns", np.array([1], np.int32)),
        node("a", "Sum", ("x", "rows"), 4, keep_dims=False),
        node("b", "Sum", ("x", "columns"), 4, keep_dims=False),
    )
    describing = Describing(graph)
    a, b = (describing(graph.nodes[n]) for n in "ab")
    assert a is not None
    assert b is not None
    assert str(a.applied[0].description) == "[r0, i0], - -> [i0] by Sum over r0"
    assert str(b.applied[0].description) == "[i0, r0], - -> [i0] by Sum over r0"


def test_an_operand_that_decides_shapes_must_be_constant() -> None:
    graph = graph_of(
        given("x", 4, 4), given("axes", 1), node("a", "Sum", ("x", "axes"), 4, keep_dims=False)
    )
    describing = Describing(graph)
    assert describing(graph.nodes["a"]) is None
    assert "input 1 comes from axes:0 and is not a constant" in describing.why_not(graph.nodes["a"])


def test_an_op_that_nobody_has_heard_of_has_no_description() -> None:
    graph = graph_of(given("x", 4), node("a", "Frobnicate", ("x",), 4))
    assert Describing(graph)(graph.nodes["a"]) is None
    assert Describing(graph).why_not(graph.nodes["a"]) == "no description"


def test_sizes_that_depend_on_data_are_not_described() -> None:
    graph = graph_of(given("x", 4, -1), node("a", "Tanh", ("x",), 4, -1))
    assert Describing(graph)(graph.nodes["a"]) is None
    assert Describing(graph).why_not(graph.nodes["a"]) == "the size of input 0 depends on data"


def test_an_op_is_described_once_only() -> None:
    with pytest.raises(DescriptionError, match="MatMul"):
        op("MatMul")(lambda a, b: lambda i, j: a[i, j])
