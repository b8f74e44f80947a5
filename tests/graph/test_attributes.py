"""Attributes: decoded, encoded, and what of them tells nodes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tofu_tf.graph.attributes import attribute, complete, decode, encode, matters, signature
from tofu_tf.graph.ir import Node, TensorSpec

VALUES: list[tuple[str, Any, Any]] = [
    # kind, given, decoded
    ("", 3, 3),
    ("", True, True),
    ("", 0.5, 0.5),
    ("", "SAME", "SAME"),
    ("string", b"\xff", b"\xff"),
    ("type", "bfloat16", "bfloat16"),
    ("", tf.int64, "int64"),
    ("shape", (2, -1), (2, -1)),
    ("shape", None, None),
    ("shape", (), ()),
    ("", tf.TensorShape([None, 4]), (-1, 4)),
    ("", (1, 2), (1, 2)),
    ("list(int)", (), ()),
    ("list(type)", ("int32", "float32"), ("int32", "float32")),
    ("list(shape)", ((2,), None), ((2,), None)),
    ("list(float)", (0.5,), (0.5,)),
    ("list(bool)", (True, False), (True, False)),
    ("list(string)", ("a", "b"), ("a", "b")),
    ("func", "body", "body"),
]


@pytest.mark.parametrize(("kind", "given", "decoded"), VALUES)
def test_decode_encode(kind: str, given: Any, decoded: Any) -> None:
    assert decode(encode(given, kind)) == decoded


def test_empty_list_is_a_list() -> None:
    assert encode((), "list(int)").WhichOneof("value") == "list"


def test_tensor() -> None:
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(decode(encode(value)), value)


def const(tensor: Any, **attrs: Any) -> Node:
    found = {"value": attr_value_pb2.AttrValue(tensor=tensor), "dtype": encode("float32", "type")}
    found |= {name: encode(v) for name, v in attrs.items()}
    return Node("c", "Const", (), (TensorSpec((3,), "float32"),), found)


def test_signature_sees_values_not_encodings_or_names() -> None:
    packed = tf.make_tensor_proto(np.full(3, 2, np.float32))
    spread = tf.make_tensor_proto(2.0, tf.float32, (3,))
    assert packed != spread
    same = signature(const(packed))
    assert signature(const(spread)) == same
    assert signature(const(packed, _class=("loc:@a",), _output_shapes=(1,))) == same
    assert signature(const(tf.make_tensor_proto(np.full(3, 3, np.float32)))) != same


def test_complete_adds_defaults_and_drops_internal_ones() -> None:
    attrs = complete("MatMul", {"T": encode("float32", "type"), "_class": encode("loc:@a")})
    assert "_class" not in attrs
    assert decode(attrs["transpose_a"]) is False


@pytest.mark.parametrize(
    ("op", "name", "value", "shown"),
    [
        ("MatMul", "T", tf.float32, False),
        ("MatMul", "transpose_a", False, False),
        ("MatMul", "transpose_a", True, True),
        ("AddN", "N", 2, False),
        ("VarHandleOp", "shared_name", "v", False),
        ("Conv2D", "_internal", 1, False),
    ],
)
def test_matters(op: str, name: str, value: Any, shown: bool) -> None:
    assert matters(op, name, encode(value)) is shown


def test_attribute_default() -> None:
    node = const(tf.make_tensor_proto(1.0), axis=2)
    assert (attribute(node, "axis"), attribute(node, "absent", 7)) == (2, 7)
