"""Floating-point operations of contractions, and an Einsum's labels."""

from __future__ import annotations

from typing import Any

import pytest

from tofu_tf.graph.ir import TensorSpec
from tofu_tf.ops.matrix import equation_labels
from tofu_tf.ops.registry import REGISTRY


@pytest.mark.parametrize(
    "op, inputs, output, attributes, flops",
    [
        ("MatMul", [(4, 5), (5, 3)], (4, 3), {"transpose_a": False}, 2 * 4 * 5 * 3),
        ("MatMul", [(5, 4), (5, 3)], (4, 3), {"transpose_a": True}, 2 * 4 * 5 * 3),
        ("BatchMatMulV2", [(7, 4, 5), (7, 5, 3)], (7, 4, 3), {"adj_x": False}, 7 * 2 * 4 * 5 * 3),
        ("Einsum", [(4, 5), (5, 3)], (4, 3), {"equation": "ab,bc->ac"}, 2 * 4 * 5 * 3),
        ("AddN", [(4, 5)] * 3, (4, 5), {}, 2 * 4 * 5),
        ("Sum", [(4, 5), (1,)], (4,), {}, 4 * 5),
        ("Reshape", [(4, 5), (1,)], (20,), {}, 0),
    ],
)
def test_flops(
    op: str,
    inputs: list[tuple[int, ...]],
    output: tuple[int, ...],
    attributes: dict[str, Any],
    flops: int,
) -> None:
    count = REGISTRY[op].flops
    assert count is not None
    specs = [TensorSpec(s, "float32") for s in inputs]
    assert count(specs, [TensorSpec(output, "float32")], attributes) == flops


@pytest.mark.parametrize(
    "equation, ranks, operands, result",
    [
        ("ab,bc->ac", (2, 2), [["a", "b"], ["b", "c"]], ["a", "c"]),
        ("a b , b -> a", (2, 1), [["a", "b"], ["b"]], ["a"]),
        ("...a,...a->...", (2, 3), [[".1", "a"], [".0", ".1", "a"]], [".0", ".1"]),
        ("a->", (1,), [["a"]], []),
    ],
)
def test_labels(
    equation: str, ranks: tuple[int, ...], operands: list[list[str]], result: list[str]
) -> None:
    assert equation_labels(equation, ranks) == (operands, result)
